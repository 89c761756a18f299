"""Atomic operations of CUDA C++ and OpenCL C."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Atomics:
    """Atomic operations of a language on elements of memory.

    `words` has for each width in bytes an unsigned type and the compare-and-swap function, which returns the old value;
    `enable` is a line that must precede. `native` has the instructions for some reductions, by reduction and element
    type: {p} is `p`, a pointer, and the value is `v`; `shared_native` those that differ for shared memory.
    """

    qualifier: str
    pointer: str
    shared_pointer: str
    words: Mapping[int, tuple[str, str]]
    enable: Mapping[int, str]
    native: Mapping[str, str]
    shared_native: Mapping[str, str]


_UNSIGNED_ARGUMENTS = "(unsigned long long*)p, (unsigned long long)v"
#: Floats are ordered as integers: signed ones where the sign bit is clear, unsigned ones, reversed, where it is set;
#: zeros too, as in PTX. Values without effect, which are most, are not sent. The first NaN becomes the pattern that no
#: other value replaces.
_CUDA_FLOAT_EXTREME = (
    "const float a = *(volatile float*)p, m = cuts_{name}_f32(a, v); "
    "if (m != m) {{ if (__float_as_uint(a) != {none}) atomicExch((unsigned*)p, {none}); }} "
    "else if (__float_as_int(a) == __float_as_int(m)) return; "
    "else if (__float_as_int(v) >= 0) atomic{first}((int*)p, __float_as_int(v)); "
    "else atomic{second}((unsigned*)p, __float_as_uint(v));"
)
CUDA_ATOMICS = {
    "max_f32": _CUDA_FLOAT_EXTREME.format(name="max", none="0x7fffffffu", first="Max", second="Min"),
    "min_f32": _CUDA_FLOAT_EXTREME.format(name="min", none="0xffffffffu", first="Min", second="Max"),
    **{f"sum_{dtype}": "atomicAdd(p, v);" for dtype in ("i32", "u32", "u64", "f32", "f64")},
    "sum_i64": f"atomicAdd({_UNSIGNED_ARGUMENTS});",
    **{f"max_{dtype}": "atomicMax(p, v);" for dtype in ("i32", "u32", "i64", "u64")},
    **{f"min_{dtype}": "atomicMin(p, v);" for dtype in ("i32", "u32", "i64", "u64")},
    "append_u32": "return atomicAdd(p + i, 1u);",
}
#: Shared memory adds words of 32 bits; for 64 bits it has only compare-and-swap, which many threads repeat often.
_CUDA_ADD_WORDS = (
    "unsigned* const w = (unsigned*)p; const unsigned low = (unsigned)v, seen = atomicAdd(w, low); "
    "atomicAdd(w + 1, (unsigned)((unsigned long long)v >> 32) + (seen + low < low));"
)
CUDA_SHARED_ATOMICS = {f"sum_{dtype}": _CUDA_ADD_WORDS for dtype in ("i64", "u64")}
OPENCL_ATOMICS = {
    **{f"sum_{dtype}": "atomic_add(p, v);" for dtype in ("i32", "u32")},
    **{f"sum_{dtype}": "atom_add(p, v);" for dtype in ("i64", "u64")},
    **{f"max_{dtype}": "atomic_max(p, v);" for dtype in ("i32", "u32")},
    **{f"min_{dtype}": "atomic_min(p, v);" for dtype in ("i32", "u32")},
    "append_u32": "return atomic_inc(p + i);",
}
