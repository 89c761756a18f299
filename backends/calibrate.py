"""Measuring the ceilings of a CUDA device once: the rates that a lower bound of time divides by.

Each ceiling has a small kernel that does nothing else. The best of several runs counts, because a ceiling is what the device can reach, and
`calibrated` adds 3 % on top, so that a bound made of ceilings stays a bound. Results are kept per device in the cache folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import cattrs
import numpy as np
from attrs import asdict, evolve, fields, frozen

from ..ir.errors import BackendError
from ..ir.launch import Argument, KernelFunction
from ..ir.target import Target
from ..ir.types import DType
from .cache import cache_key, cache_root
from .device import Device, Launch, Pointer

#: Changed whenever a kernel below changes what it measures.
FORMAT = 1
#: How much faster than measured a device is assumed to be.
HEADROOM = 1.03

_THREADS = 256
_LARGE = 1 << 30  # bytes that no cache holds
_CHASE = 1 << 28  # bytes through which latency is measured: more than a cache, less than what address translation covers
_LAUNCHES = 200
_ROUNDS = 7


@frozen
class Ceilings:
    """What one device reached: bytes, operations and clocks per second, seconds, and clocks, as each name says."""

    device: str
    copy_bandwidth: float  #: bytes/s read and written by a copy in global memory
    read_bandwidth: float  #: bytes/s read from global memory
    l2_bandwidth: float  #: bytes/s read from the L2 cache
    shared_bandwidth: float  #: bytes per clock and SM read from shared memory
    fma_rate: float  #: fp32 FLOP/s of multiply-adds
    clock: float  #: highest clock seen, Hz
    launch_time: float  #: seconds of an empty kernel inside a graph
    barrier_clocks: float  #: clocks of a block-wide barrier
    dram_latency: float  #: seconds of a dependent load from global memory
    format: int = FORMAT


def measure_ceilings(device: Device) -> Ceilings:
    """Run every microbenchmark; takes a few seconds, most of them for compilation."""
    return _Calibrator(device).run()


def calibrated(target: Target, ceilings: Ceilings | None) -> Target:
    """Return the target with measured ceilings in the place of those of its description; latencies shrink by the head-room, rates grow."""
    if ceilings is None:
        return target
    return evolve(
        target,
        PERF_peak=HEADROOM * ceilings.fma_rate,
        BW_global=HEADROOM * max(ceilings.copy_bandwidth, ceilings.read_bandwidth),
        l2_bandwidth=HEADROOM * ceilings.l2_bandwidth,
        shared_bandwidth=min(target.shared_bandwidth, HEADROOM * ceilings.shared_bandwidth),
        clock=max(target.clock, ceilings.clock),
        launch_time=ceilings.launch_time / HEADROOM,
        barrier_clocks=ceilings.barrier_clocks / HEADROOM,
        dram_latency=ceilings.dram_latency / HEADROOM,
    )


# ---- what is kept


def save_ceilings(ceilings: Ceilings) -> Path | None:
    """Keep ceilings for later sessions; nothing where caching is switched off."""
    path = _path(ceilings.device)
    if path is not None:
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(asdict(ceilings), indent=1) + "\n", encoding="utf-8")
        os.replace(draft, path)
    return path


def load_ceilings(device: str) -> Ceilings | None:
    """Return the kept ceilings of a device; none where it was not calibrated, or by another version."""
    path = _path(device)
    try:
        found = cattrs.structure(json.loads(path.read_bytes()), Ceilings) if path is not None else None
    except (OSError, ValueError, KeyError, TypeError, cattrs.BaseValidationError):
        return None
    return found if found is not None and found.format == FORMAT and found.device == device and _plausible(found) else None


def _plausible(ceilings: Ceilings) -> bool:
    values = [getattr(ceilings, f.name) for f in fields(Ceilings) if f.type in (float, "float")]
    return all(isinstance(v, float) and 0.0 < v < float("inf") for v in values)


def _path(device: str) -> Path | None:
    root = cache_root()
    return None if root is None else root / f"ceilings-{cache_key([device])[:16]}.json"


# ---- how they are measured


class _Calibrator:
    """Builds and times the kernels on one device."""

    def __init__(self, device: Device) -> None:
        if device.target.dialect != "cuda":
            raise BackendError(f"{device.name} cannot be calibrated", hint="ceilings are measured on CUDA devices")
        self.device = device
        self.target = device.target
        self.out = Pointer(device.allocate(1 << 16))

    def run(self) -> Ceilings:
        """Measure everything; large buffers live only as long as what needs them."""
        clock = self._clock()
        copy, read = self._global()
        return Ceilings(
            device=self.device.name,
            copy_bandwidth=copy,
            read_bandwidth=read,
            l2_bandwidth=max(self._l2(share) for share in (16, 8, 4)),
            shared_bandwidth=self._shared() / (self.target.NUM_SM * clock),
            fma_rate=max(self._fma(trips) for trips in (64, 1024)),
            clock=clock,
            launch_time=self._launch(),
            barrier_clocks=min(self._barrier(threads) for threads in (64, 128, 256)) * clock,
            dram_latency=self._latency(),
        )

    def _best(self, kernel: KernelFunction, *pointers: Pointer, cold: bool = False) -> float:
        """Return the least seconds of a kernel."""
        (loaded,) = self.device.build([kernel])
        return self.device.time(self.device.bind(loaded, kernel, pointers), warmup=3, repeats=_ROUNDS, cold=cold).best

    def _global(self) -> tuple[float, float]:
        source, destination = Pointer(self.device.allocate(_LARGE)), Pointer(self.device.allocate(_LARGE))
        memcpy = self.device.time(lambda: self.device.copy(destination, source, _LARGE), warmup=2, repeats=_ROUNDS).best
        blocks = 16 * self.target.NUM_SM
        copy = min(memcpy, self._best(copy_kernel(_LARGE, blocks), destination, source))
        return 2 * _LARGE / copy, _LARGE / self._best(read_kernel("read_global", _LARGE, 1, blocks), self.out, source)

    def _l2(self, share: int) -> float:
        """Return the bandwidth of reading a part of what the cache holds again and again, past the L1 caches."""
        nbytes = (self.target.l2_bytes // share) // 4096 * 4096
        passes, blocks = 32, 8 * self.target.NUM_SM
        buffer = Pointer(self.device.allocate(nbytes))
        return passes * nbytes / self._best(read_kernel("read_l2", nbytes, passes, blocks), self.out, buffer)

    def _shared(self) -> float:
        trips, blocks = 4096, 2 * self.target.NUM_SM
        return blocks * 1024 * 16.0 * trips / self._best(shared_kernel(trips, blocks), self.out)

    def _fma(self, trips: int) -> float:
        blocks = 8 * self.target.NUM_SM
        return blocks * _THREADS * 2.0 * FMAS * trips / self._best(fma_kernel(trips, blocks), self.out)

    def _launch(self) -> float:
        kernel = empty_kernel()
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [self.out])
        return self.device.time(self.device.capture(_repeated(launch, _LAUNCHES)), warmup=3, repeats=_ROUNDS).best / _LAUNCHES

    def _barrier(self, threads: int) -> float:
        """Return the seconds of one barrier: the difference of two kernels that differ in how many they meet."""
        few, many = 1024, 9216
        return (self._best(barrier_kernel(many, threads), self.out) - self._best(barrier_kernel(few, threads), self.out)) / (many - few)

    def _latency(self) -> float:
        few, many = 512, 4608
        buffer = Pointer(self.device.allocate(_CHASE))
        times = [self._best(chase_kernel(steps, _CHASE), self.out, buffer, cold=True) for steps in (few, many)]
        return (times[1] - times[0]) / (many - few)

    def _clock(self) -> float:
        """Return the highest clock that a kernel saw: its clocks over its nanoseconds."""
        kernel = clock_kernel()
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [self.out])
        highest = 0.0
        for _ in range(_ROUNDS):
            launch()
            counts = np.zeros(2, np.int64)
            self.device.download(counts, self.out)
            highest = max(highest, counts[0] / max(1, counts[1]) * 1e9)
        return float(highest)


def _repeated(launch: Launch, count: int) -> Launch:
    def run() -> None:
        for _ in range(count):
            launch()

    return run


# ---- the kernels

#: Independent multiply-adds of a thread per trip.
FMAS = 256


def _kernel(name: str, parameters: str, body: str, blocks: int, threads: int = _THREADS, prelude: str = "") -> KernelFunction:
    text = f'{prelude}extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{\n{body}}}\n'
    names = [part.split()[-1].strip("*") for part in parameters.split(",")]
    arguments = tuple(Argument(n, DType.F32, n == "out") for n in names)
    return KernelFunction(name, "cuda", text, (blocks, 1, 1), (threads, 1, 1), arguments)


_OUT_AND_SOURCE = "float* out, const float4* source"
_PLACE = "  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
_STEP = "  const long long step = (long long)gridDim.x * blockDim.x;\n"
#: Keeps a sum alive without ever writing it: no sum of what is read is this number.
_KEEP = "  if (sum == 123456.789f) out[threadIdx.x] = sum;\n"


def copy_kernel(nbytes: int, blocks: int) -> KernelFunction:
    """Copy with 16 bytes a thread and four loads in flight."""
    body = _PLACE + _STEP + (
        f"  for (long long i = first; i < {nbytes // 16}LL; i += 4 * step) {{\n"
        "    float4 part[4];\n"
        "#pragma unroll\n"
        f"    for (int k = 0; k < 4; ++k) if (i + k * step < {nbytes // 16}LL) part[k] = __ldcs(source + i + k * step);\n"
        "#pragma unroll\n"
        f"    for (int k = 0; k < 4; ++k) if (i + k * step < {nbytes // 16}LL) __stcs(out + i + k * step, part[k]);\n"
        "  }\n"
    )  # fmt: skip
    return _kernel("copy_global", "float4* out, const float4* source", body, blocks)


def read_kernel(name: str, nbytes: int, passes: int, blocks: int) -> KernelFunction:
    """Read a buffer `passes` times past the L1 caches, 16 bytes a thread and four loads in flight."""
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
    """Read 16 bytes a thread and trip from shared memory, neighbours side by side."""
    body = (
        "  __shared__ float4 tile[2048];\n"
        "  for (int i = threadIdx.x; i < 2048; i += blockDim.x) tile[i] = make_float4(i, i, i, i);\n"
        "  __syncthreads();\n"
        "  float sum = 0.0f;\n"
        "#pragma unroll 8\n"
        f"  for (int i = 0; i < {trips}; ++i) {{\n"
        "    float x, y, z, w;\n"
        "    const unsigned at = (unsigned)__cvta_generic_to_shared((const void*)(tile + ((threadIdx.x + 32 * i) & 2047)));\n"
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


def barrier_kernel(count: int, threads: int) -> KernelFunction:
    """Meet at a barrier again and again, one block alone on its SM."""
    body = f"#pragma unroll 16\n  for (int i = 0; i < {count}; ++i) __syncthreads();\n  if (threadIdx.x == 2000) out[0] = 1.0f;\n"
    return _kernel("barriers", "float* out", body, 1, threads)


def chase_kernel(steps: int, nbytes: int) -> KernelFunction:
    """Load from one place after another, each known only when the one before has arrived (the buffer holds zeros)."""
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


#: Every kernel once, for those who only want to compile them.
KERNELS: tuple[Callable[[], KernelFunction], ...] = (
    lambda: copy_kernel(_LARGE, 132),
    lambda: read_kernel("read_global", _LARGE, 1, 132),
    lambda: shared_kernel(64, 132),
    lambda: fma_kernel(16, 132),
    empty_kernel,
    lambda: barrier_kernel(1024, 128),
    lambda: chase_kernel(64, _CHASE),
    clock_kernel,
)
