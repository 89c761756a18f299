"""Microbenchmarks of `backends.ceilings.measurement`: each kernel saturates one resource."""

from __future__ import annotations

from ...ir import MMA_INSTRUCTIONS, Argument, DType, KernelFunction

#: Default number of threads of a block.
THREADS = 256

#: Warps of a quarter SM that multiply matrices at the same time, accumulators of each, and products of a trip.
ATOM_WARPS, _ATOM_CHAINS, ATOMS = 4, 8, 32

#: Independent multiply-adds of a thread per trip.
FMAS = 256


def _kernel(
    name: str, parameters: str, body: str, blocks: int, threads: int = THREADS, prelude: str = ""
) -> KernelFunction:
    text = f'{prelude}extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{\n{body}}}\n'
    names = [part.split()[-1].strip("*") for part in parameters.split(",")]
    arguments = tuple(Argument(n, DType.F32, n == "out") for n in names)
    return KernelFunction(name, "cuda", text, (blocks, 1, 1), (threads, 1, 1), arguments)


_OUT_AND_SOURCE = "float* out, const float4* source"
_PLACE = "  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
_STEP = "  const long long step = (long long)gridDim.x * blockDim.x;\n"
#: Keeps a sum alive without ever writing it: no sum of the read values is this number.
_KEEP = "  if (sum == 123456.789f) out[threadIdx.x] = sum;\n"


def copy_kernel(nbytes: int, blocks: int) -> KernelFunction:
    """Copy with 16 bytes a thread and four loads in flight."""
    body = _PLACE + _STEP + (
        f"  for (long long i = first; i < {nbytes // 16}LL; i += 4 * step) {{\n"
        "    float4 part[4];\n"
        "#pragma unroll\n"
        f"    for (int k = 0; k < 4; ++k) if (i + k * step < {nbytes // 16}LL) "
        "part[k] = __ldcs(source + i + k * step);\n"
        "#pragma unroll\n"
        f"    for (int k = 0; k < 4; ++k) if (i + k * step < {nbytes // 16}LL) __stcs(out + i + k * step, part[k]);\n"
        "  }\n"
    )  # fmt: skip
    return _kernel("copy_global", "float4* out, const float4* source", body, blocks)


def read_kernel(name: str, nbytes: int, passes: int, blocks: int) -> KernelFunction:
    """Read a buffer `passes` times past the L1 caches.

    Each thread has four loads of 16 bytes in flight.
    """
    body = _PLACE + _STEP + (
        "  float sum = 0.0f;\n"
        f"  for (int pass = 0; pass < {passes}; ++pass)\n"
        f"    for (long long i = first; i < {nbytes // 16}LL; i += 4 * step) {{\n"
        "#pragma unroll\n"
        "      for (int k = 0; k < 4; ++k)\n"
        f"        if (i + k * step < {nbytes // 16}LL) {{\n"
        "          const float4 part = __ldcg(source + i + k * step);\n"
        "          sum += part.x + part.y + part.z + part.w;\n"
        "        }\n"
        "    }\n"
    ) + _KEEP  # fmt: skip
    return _kernel(name, _OUT_AND_SOURCE, body, blocks)


def shared_kernel(trips: int, blocks: int) -> KernelFunction:
    """Read 16 bytes a thread and trip from shared memory, coalesced."""
    body = (
        "  __shared__ float4 tile[2048];\n"
        "  for (int i = threadIdx.x; i < 2048; i += blockDim.x) tile[i] = make_float4(i, i, i, i);\n"
        "  __syncthreads();\n"
        "  float sum = 0.0f;\n"
        "#pragma unroll 8\n"
        f"  for (int i = 0; i < {trips}; ++i) {{\n"
        "    float x, y, z, w;\n"
        "    const unsigned at = "
        "(unsigned)__cvta_generic_to_shared((const void*)(tile + ((threadIdx.x + 32 * i) & 2047)));\n"
        '    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(at));\n'
        "    sum += (x + y) + (z + w);\n"
        "  }\n"
    ) + _KEEP  # fmt: skip
    return _kernel("read_shared", "float* out", body, blocks, 1024)


def fma_kernel(trips: int, blocks: int) -> KernelFunction:
    """Multiply and add in 16 independent chains of registers."""
    chains = 16
    body = (
        f"  float part[{chains}];\n"
        "#pragma unroll\n"
        f"  for (int k = 0; k < {chains}; ++k) part[k] = threadIdx.x + k;\n"
        "  const float a = 1.0f + 1e-7f * threadIdx.x, b = 1e-7f * blockIdx.x;\n"
        "#pragma unroll 1\n"
        f"  for (int i = 0; i < {trips}; ++i) {{\n"
        "#pragma unroll\n"
        f"    for (int j = 0; j < {FMAS // chains}; ++j)\n"
        "#pragma unroll\n"
        f"      for (int k = 0; k < {chains}; ++k) part[k] = fmaf(part[k], a, b);\n"
        "  }\n"
        "  float sum = 0.0f;\n"
        "#pragma unroll\n"
        f"  for (int k = 0; k < {chains}; ++k) sum += part[k];\n"
    ) + _KEEP  # fmt: skip
    return _kernel("multiply_add", "float* out", body, blocks)


def empty_kernel() -> KernelFunction:
    """Do nothing."""
    return _kernel("empty", "float* out", "", 1, 32)


def touch_kernel() -> KernelFunction:
    """Load a line and store it."""
    return _kernel(
        "touch", "float* out, const float* source", "  out[threadIdx.x] = __ldcg(source + threadIdx.x);\n", 1, 32
    )


def barrier_kernel(count: int, threads: int) -> KernelFunction:
    """Synchronise repeatedly at a barrier, with one block on its SM."""
    loop = f"#pragma unroll 16\n  for (int i = 0; i < {count}; ++i) __syncthreads();\n"
    body = f"{loop}  if (threadIdx.x == 2000) out[0] = 1.0f;\n"
    return _kernel("barriers", "float* out", body, 1, threads)


def chase_kernel(steps: int, nbytes: int) -> KernelFunction:
    """Load from a chain of dependent addresses.

    Each address depends on the previous load (the buffer holds zeros).
    """
    body = (
        "  unsigned place = 0;\n"
        f"  for (int i = 0; i < {steps}; ++i) {{\n"
        "    const unsigned value = __ldcg(source + place);\n"
        f"    place = ((place + value) * 1664525u + 1013904223u) & {nbytes // 4 - 1}u;\n"
        "  }\n"
        "  if (place == 1u) out[0] = 1.0f;\n"
    )
    return _kernel("chase", "float* out, const unsigned* source", body, 1, 1)


def clock_kernel() -> KernelFunction:
    """Count clocks and nanoseconds over about a millisecond."""
    body = (
        "  unsigned long long begin, end;\n"
        '  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));\n'
        "  const long long first = clock64();\n"
        "  do {\n"
        '    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));\n'
        "  } while (end - begin < 2000000ull);\n"
        "  out[0] = clock64() - first;\n"
        "  out[1] = (long long)(end - begin);\n"
    )
    return _kernel("count_clocks", "long long* out", body, 1, 1)


def atom_kernel(name: str, trips: int, blocks: int) -> KernelFunction:
    """Count the clocks of a matrix instruction.

    Each block runs independent chains of accumulators, with `ATOM_WARPS` warps for each quarter of an SM.
    """
    atom = MMA_INSTRUCTIONS[name]
    from ..source import DIALECTS  # the compiler of kernels, which no other kernel of this module needs

    dialect = DIALECTS["cuda"]
    kind = dialect.type(atom.accumulator)
    held = [f"d[k][{n}]" for n in range(atom.c.registers)]
    operands = [f"{o}[{n}]" for o, f in (("a", atom.a), ("b", atom.b)) for n in range(f.registers)]
    body = (
        f"  {kind} d[{_ATOM_CHAINS}][{len(held)}];\n"
        f"  unsigned a[{atom.a.registers}], b[{atom.b.registers}];\n"
        "#pragma unroll\n"
        f"  for (int k = 0; k < {_ATOM_CHAINS}; ++k)\n"
        "#pragma unroll\n"
        f"    for (int n = 0; n < {len(held)}; ++n) d[k][n] = ({kind})(threadIdx.x + k);\n"
        "#pragma unroll\n"
        f"  for (int n = 0; n < {atom.a.registers}; ++n) a[n] = 0x3c003c00u ^ (threadIdx.x + n);\n"
        "#pragma unroll\n"
        f"  for (int n = 0; n < {atom.b.registers}; ++n) b[n] = 0x3c003c00u ^ (threadIdx.x + n);\n"
        "  __syncthreads();\n"
        "  const long long first = clock64();\n"
        "#pragma unroll 1\n"
        f"  for (int i = 0; i < {trips}; ++i) {{\n"
        "#pragma unroll\n"
        f"    for (int j = 0; j < {ATOMS // _ATOM_CHAINS}; ++j)\n"
        "#pragma unroll\n"
        f"      for (int k = 0; k < {_ATOM_CHAINS}; ++k) cuts_{name}({', '.join((*held, *operands))});\n"
        "  }\n"
        "  __syncthreads();\n"
        "  const long long last = clock64();\n"
        f"  {kind} sum = 0;\n"
        "#pragma unroll\n"
        f"  for (int k = 0; k < {_ATOM_CHAINS}; ++k) sum += {' + '.join(held)};\n"
        "  if (threadIdx.x == 0) out[blockIdx.x] = last - first;\n"
        "  if (sum == 123456) out[blockIdx.x] = 0;\n"  # keeps the products alive
    )
    helpers = dialect.helpers_of({f"cuts_{name}"})
    return _kernel(f"multiply_{name}", "long long* out", body, blocks, 4 * 32 * ATOM_WARPS, helpers)
