"""Dialects: tables of CUDA C++ and OpenCL C for one C-like printer."""

from __future__ import annotations

from ....ir import TF32_NEAR
from .arithmetic import arithmetic_helpers, clamped_conversions, cuda_powers
from .atomic_text import CUDA_ATOMICS, CUDA_SHARED_ATOMICS, OPENCL_ATOMICS, Atomics
from .bulk_text import MAP_TYPE, bulk_helpers, cluster_helpers
from .byte_conversions import bit_conversions, packed_conversions, pair_conversions, single_conversions
from .dialect import Dialect
from .float8 import FLOAT8_LOAD, FLOAT8_ROUND, FLOAT8_STORE, FLOATS8, cuda_floats8, opencl_floats8
from .halves import (
    CUDA_LOAD,
    CUDA_ROUND,
    CUDA_STORE,
    OPENCL_LOAD,
    OPENCL_ROUND,
    OPENCL_STORE,
    cuda_halves,
    opencl_halves,
)
from .instruction_text import (
    CUDA_INSTRUCTIONS,
    OPENCL_INSTRUCTIONS,
    addition_helpers,
    copy_helpers,
    extreme_helpers,
    matrix_load_helpers,
)
from .mma_text import emulations, instructions, lane_products
from .shared_helpers import byte_packs, index_helpers, ordering_helpers, reinterpretations, vote_helpers
from .special_functions import half_functions
from .vectors import CUDA_VECTORS, OPENCL_VECTORS
from .warpgroup_text import (
    descriptor_text,
    emulated_matrix,
    exchange_emulation,
    exchange_helper,
    held_rows_emulations,
    swizzle_helper,
    warpgroup_emulations,
    warpgroup_instructions,
)

_TYPES = {
    **dict.fromkeys(("f32", "f16", "bf16", *FLOATS8), "float"), "f64": "double", "i64": "long", "i32": "int",
    "i16": "short", "i8": "signed char", "u64": "unsigned long", "u32": "unsigned int", "u16": "unsigned short",
    "u8": "unsigned char", "bool": "bool",
}  # fmt: skip


def _guarded_load(words: int, bits: int) -> str:
    """Return the helper that loads words of some `bits` of read-only memory where a condition holds."""
    name, kind = ("cuts_guarded", "uint") if bits == 32 else ("cuts_guarded_pairs", "ushort")
    parts = [f"v.{c}" for c in "xyzw"[:words]]
    several, into = (f"v{words}." if words > 1 else "", ", ".join(f"%{n}" for n in range(words)))
    text = f"{{.reg .pred p; setp.ne.b32 p, %{words + 1}, 0; @p ld.global.nc.{several}u{bits} {{{into}}}, [%{words}];}}"
    out = ", ".join(f'"+{"r" if bits == 32 else "h"}"({part})' for part in parts)
    head = f"{_DEVICE} void {name}{words}({kind}{words}& v, const void* s, bool ok) {{"
    return f'{head}\n  asm("{text}" : {out} : "l"(s), "r"((int)ok));\n}}'


_DEVICE, _INLINE = "static __device__ __forceinline__", "static inline"
_ALWAYS_INLINE = f"{_INLINE} __attribute__((always_inline))"
_OPENCL_BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"
_TF32_NEAR = f"{TF32_NEAR!r}f"
_CUDA_TYPES = _TYPES | {"i64": "long long", "u64": "unsigned long long"}
_OPENCL_TYPES = _TYPES | {"i8": "char", "bool": "int"}


def _cuda_extreme(name: str) -> str:
    """Return `max` or `min` with NaN: one PTX instruction from sm_80 on, which CUDA C++ has no name for."""
    order = "a < b" if name == "max" else "b < a"
    return (
        f"{_DEVICE} float cuts_{name}_f32(float a, float b) {{\n#if __CUDA_ARCH__ >= 800\n"
        f'  float r; asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;\n'
        f"#else\n  return {order} || b != b ? b : a;\n#endif\n}}"
    )


_CUDA_HELPERS = (
    index_helpers(_DEVICE, _CUDA_TYPES)
    | arithmetic_helpers(_DEVICE, _CUDA_TYPES)
    | {
        **clamped_conversions(_DEVICE, _CUDA_TYPES),
        **cuda_powers(_DEVICE),
        "cuts_product_f32": f"{_DEVICE} float cuts_product_f32(float a, float b) {{ return __fmul_rn(a, b); }}",
        "cuts_product_f64": f"{_DEVICE} double cuts_product_f64(double a, double b) {{ return __dmul_rn(a, b); }}",
        "cuts_max_f32": _cuda_extreme("max"),
        "cuts_min_f32": _cuda_extreme("min"),
        "cuts_inf": f"{_DEVICE} float cuts_inf() {{ return __int_as_float(0x7f800000); }}",
        "cuts_nan": f"{_DEVICE} float cuts_nan() {{ return __int_as_float(0x7fffffff); }}",  # 0 / 0 would be divided
        # Off by less than a part in 120,000, and subnormal where the exponential is, as a square without scales.
        "cuts_exp_half": f"{_DEVICE} float cuts_exp_half(float x) {{ float r; "
        'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 0.7213475204444817f)); return r * r; }',
        # Off by two units in the last place at most, for operands of any size.
        "cuts_approximate_quotient_f32": f"{_DEVICE} float cuts_approximate_quotient_f32(float a, float b) "
        '{ float r; asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }',
        "cuts_near_exp2": f"{_DEVICE} float cuts_near_exp2(float x) "
        '{ float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }',
        **half_functions(_DEVICE, 'float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(p));'),
        # Blocks may be placed before the preceding kernel has written its results: they wait for that.
        "cuts_begin": f"{_DEVICE} void cuts_begin() {{\n#if __CUDA_ARCH__ >= 900\n"
        '  asm volatile("griddepcontrol.wait;" ::: "memory");\n#endif\n}',
        **cuda_halves(_DEVICE),
        **dict(cuda_floats8(_DEVICE)),
        **{f"cuts_guarded{words}": _guarded_load(words, 32) for words in (1, 2, 4)},
        **{f"cuts_guarded_pairs{words}": _guarded_load(words, 16) for words in (1, 2, 4)},
        **addition_helpers(_DEVICE),
        **extreme_helpers(_DEVICE),
        **packed_conversions(_DEVICE),
        **single_conversions(_DEVICE),
        **bit_conversions(_DEVICE),
        **pair_conversions(_DEVICE),
        **copy_helpers(_DEVICE),
        # The rounding to even is one instruction from sm_90 on; before, halves go away from zero.
        "cuts_tf32": f"{_DEVICE} float cuts_tf32(float x) {{\n  unsigned r;\n#if __CUDA_ARCH__ >= 900\n"
        '  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));\n#else\n'
        '  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));\n#endif\n  return __uint_as_float(r);\n}',
        "cuts_tf32_near": f"{_DEVICE} float cuts_tf32_near(float x) {{ return __fmul_rn(x, {_TF32_NEAR}); }}",
        "cuts_tf32_rest": f"{_DEVICE} float cuts_tf32_rest(float x) {{ return x - cuts_tf32(x); }}",
        "cuts_tf32_cut": f"{_DEVICE} float cuts_tf32_cut(float x) {{ return x - x == 0.0f ? "
        "__uint_as_float(__float_as_uint(x) & 0xffffe000u) : x; }",
        "cuts_pack_f32": f"{_DEVICE} unsigned cuts_pack_f32(float x) {{ return __float_as_uint(x); }}",
        **ordering_helpers(_DEVICE, _CUDA_TYPES),
        **vote_helpers(_DEVICE),
        **byte_packs(_DEVICE, "unsigned"),
        **reinterpretations(
            _DEVICE, _CUDA_TYPES, ("__float_as_int", "__int_as_float", "__double_as_longlong", "__longlong_as_double")
        ),
        **matrix_load_helpers(_DEVICE),
        **dict(instructions(_DEVICE, _CUDA_TYPES)),
        **dict(lane_products(_DEVICE)),
        "cuts_swizzled": swizzle_helper(_DEVICE),
        "cuts_exchange": exchange_helper(_DEVICE),
        **dict(warpgroup_instructions(_DEVICE, _CUDA_TYPES)),
        **dict(bulk_helpers(_DEVICE)),
        **dict(cluster_helpers(_DEVICE)),
    }
)


CUDA = Dialect(
    name="cuda",
    helpers=_CUDA_HELPERS,
    kernel='extern "C" __global__ void {cluster}__launch_bounds__({threads}{min_blocks}) {name}({params})',
    cluster="__cluster_dims__({blocks}, 1, 1) ",
    begin="cuts_begin",
    pointer="{const}{type}* __restrict__ {name}",
    map_parameter=f"const __grid_constant__ {MAP_TYPE} {{name}}",
    shared="__shared__ __align__({align}) {type} {name}[{count}];",
    shared_pool="extern __shared__ __align__({align}) unsigned char pool[];",
    shared_part="{type}* const {name} = reinterpret_cast<{type}*>(pool + {offset});",
    member_pool="__shared__ __align__({align}) unsigned char pool[{count}];",
    member_part="{type}* const {name} = reinterpret_cast<{type}*>(pool + {offset});",
    member_pointer="{const}{type}* const __restrict__ {name} = {value};",
    static_shared=48 * 1024,
    barrier="__syncthreads();",
    meeting_counter="int",
    block_index="(int)blockIdx.x",
    thread_index="(int)threadIdx.x",
    constant="static const {type} {name}[{count}] = {{{values}}};",
    unroll="#pragma unroll",
    unroll_by="#pragma unroll {count}",
    restrict_="__restrict__",
    math_suffix="f",
    types=_CUDA_TYPES,
    storage={
        **dict.fromkeys(("f16", "bf16"), "unsigned short"),
        **dict.fromkeys((*FLOATS8, "bool"), "unsigned char"),
    },
    spaces={"global": "", "shared": ""},
    load={**CUDA_LOAD, **FLOAT8_LOAD, "bool": "({p}[{i}] != 0)"},
    store={**CUDA_STORE, **FLOAT8_STORE, "bool": "{p}[{i}] = ({v}) ? 1 : 0;"},
    round={**CUDA_ROUND, **FLOAT8_ROUND},
    vectors=CUDA_VECTORS,
    instructions=CUDA_INSTRUCTIONS,
    commit='asm volatile("cp.async.commit_group;");',
    wait='asm volatile("cp.async.wait_group {pending};" ::: "memory");',
    shuffle="__shfl_xor_sync(0xffffffffu, {value}, {distance})",
    shuffle_from="__shfl_sync(0xffffffffu, {value}, {source})",
    warp=32,
    atomics=Atomics(
        qualifier=_DEVICE,
        pointer="{type}*",
        shared_pointer="{type}*",
        words={4: ("unsigned int", "atomicCAS"), 8: ("unsigned long long", "atomicCAS")},
        enable={},
        native=CUDA_ATOMICS,
        shared_native=CUDA_SHARED_ATOMICS,
    ),
    register_load="*reinterpret_cast<const unsigned*>(&{p}[{i}])",
    atom_result="{}",
    atoms_meet=False,
    fences={
        "ProxyFence": 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
        "ProductFence": 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
        "ProductCommit": 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
    },
    exchange="cuts_exchange<{pitch}>({registers});",
    product_wait='asm volatile("wgmma.wait_group.sync.aligned {pending};" ::: "memory");',
    product_wait_after='asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; vote.sync.any.pred p, p, -1; '
    "@p bra.uni a; wgmma.wait_group.sync.aligned {pending}; bra.uni b; "
    'a: wgmma.wait_group.sync.aligned {pending}; b:}" :: "f"({x}) : "memory");',
    pin='asm volatile("" : "+{kind}"({x}) :: "memory");',
    shared_matrix=descriptor_text,
)

OPENCL = Dialect(
    name="opencl",
    prologue="#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n",
    helpers=index_helpers(_INLINE, _OPENCL_TYPES)
    | arithmetic_helpers(_INLINE, _OPENCL_TYPES)
    | opencl_halves(_INLINE)
    | dict(opencl_floats8(_INLINE))
    | {
        "cuts_inf": "static inline float cuts_inf(void) { return INFINITY; }",
        "cuts_nan": "static inline float cuts_nan(void) { return 0.0f / 0.0f; }",
        "cuts_exp_half": "static inline float cuts_exp_half(float x) { return exp(x); }",
        "cuts_near_exp2": "static inline float cuts_near_exp2(float x) { return exp2(x); }",
        **half_functions("static inline", "const float r = exp2(p);"),
        "cuts_tf32": "static inline float cuts_tf32(float x) { if (!isfinite(x)) return x; "
        "const uint u = as_uint(x); return as_float((u + 0xfffu + (u >> 13 & 1u)) & 0xffffe000u); }",
        "cuts_tf32_near": f"static inline float cuts_tf32_near(float x) {{ return x * {_TF32_NEAR}; }}",
        "cuts_tf32_rest": "static inline float cuts_tf32_rest(float x) { return x - cuts_tf32(x); }",
        "cuts_tf32_cut": "static inline float cuts_tf32_cut(float x) { return isfinite(x) ? "
        "as_float(as_uint(x) & 0xffffe000u) : x; }",
        "cuts_pack_f32": "static inline uint cuts_pack_f32(float x) { return as_uint(x); }",
        **ordering_helpers(_INLINE, _OPENCL_TYPES),
        **byte_packs(_INLINE, "uint"),
        **reinterpretations(_INLINE, _OPENCL_TYPES, ("as_int", "as_float", "as_long", "as_double")),
        "cuts_swizzled": swizzle_helper(_INLINE),
        "cuts_exchange": exchange_emulation(_ALWAYS_INLINE, _OPENCL_BARRIER),
        **dict(warpgroup_emulations(_ALWAYS_INLINE, _OPENCL_TYPES)),
        **dict(held_rows_emulations(_ALWAYS_INLINE, _OPENCL_TYPES, _OPENCL_BARRIER)),
        **dict(emulations(_ALWAYS_INLINE, _OPENCL_TYPES, "__local ", _OPENCL_BARRIER)),
    },
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void {name}({params})",
    pointer="__global {const}{type}* restrict {name}, const int {name}_base",
    shared="__local {type} {name}[{count}] __attribute__((aligned({align})));",
    shared_part="__local {type}* const {name} = (__local {type}*){name}_bits;",
    member_pool="__local unsigned char pool[{count}] __attribute__((aligned({align})));",
    member_part="__local {type}* const {name} = (__local {type}*)(pool + {offset});",
    member_pointer="__global {const}{type}* const {name} = {value};",
    # Pointers to halves exist, but no variables where the machine does not compute with them.
    shared_bits={"half": "ushort"},
    static_shared=0,
    barrier=_OPENCL_BARRIER,
    # PoCL transforms a loop before it searches it for barriers, and then compiles these incorrectly; it leaves a loop
    # with a volatile counter unchanged.
    meeting_counter="volatile int",
    # After the last barrier under a condition PoCL takes the first thread's exit from the condition for all threads, if
    # there are several exits; after a barrier there is one.
    meeting_end=_OPENCL_BARRIER,
    block_index="(int)get_group_id(0)",
    thread_index="(int)get_local_id(0)",
    base="{name} += {name}_base;",
    constant="__constant {type} {name}[{count}] = {{{values}}};",
    restrict_="restrict",
    types=_OPENCL_TYPES,
    storage={"f16": "half", "bf16": "ushort", **dict.fromkeys((*FLOATS8, "bool"), "uchar")},
    spaces={"global": "__global ", "shared": "__local "},
    load={**OPENCL_LOAD, **FLOAT8_LOAD, "bool": "({p}[{i}] != 0)"},
    store={**OPENCL_STORE, **FLOAT8_STORE, "bool": "{p}[{i}] = ({v}) ? 1 : 0;"},
    round={**OPENCL_ROUND, **FLOAT8_ROUND},
    vectors=OPENCL_VECTORS,
    instructions=OPENCL_INSTRUCTIONS,
    warp=1,
    atomics=Atomics(
        qualifier=_INLINE,
        pointer="volatile __global {type}*",
        shared_pointer="volatile __local {type}*",
        words={4: ("unsigned int", "atomic_cmpxchg"), 8: ("unsigned long", "atom_cmpxchg")},
        enable={8: "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable"},
        native=OPENCL_ATOMICS,
        shared_native={},
    ),
    register_load="as_uint(*(const {space}uchar4*)(&{p}[{i}]))",
    atom_result="&{}",
    atom_scratch="__local uint atom_scratch[{count}];",
    atoms_meet=True,
    exchange="cuts_exchange(&atom_scratch[tid / 32 * {words}], {registers}, {pitch}, tid);",
    shared_matrix=emulated_matrix,
)

DIALECTS = {d.name: d for d in (CUDA, OPENCL)}
