"""Conversions of half types in source, single and packed in pairs.

Numbers are rounded to nearest even; NaN stays NaN, and too large numbers become infinite.
From sm_80 on two numbers are converted at once, faster than single ones, which are converted beside a zero; before
that, and in OpenCL, a bfloat16 is rounded by integer arithmetic: its bits are the upper half of those of a float.
"""

from __future__ import annotations

from collections.abc import Mapping


def _rounded_bits(bits: str) -> str:
    """Return statements that round the bits of a float to the upper half of them; a NaN keeps its sign and is quiet."""
    return (
        f"{bits} if ((u & 0x7fffffffu) > 0x7f800000u) return (u >> 16) | 0x40u; "
        "return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;"
    )


def _functions(device: str, bodies: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return definitions by name, of a head (the result's type, and parameters) and a body each."""
    found = {}
    for name, (head, body) in bodies.items():
        result, parameters = head.split(" of ")
        text = f"{body}}}" if body.startswith("\n") else f" {body} }}"
        found[name] = f"{device} {result} {name}({parameters}) {{{text}"
    return found


def _from_sm80(new: str, old: str) -> str:
    return f"\n#if __CUDA_ARCH__ >= 800\n  {new}\n#else\n  {old}\n#endif\n"


def cuda_halves(device: str) -> dict[str, str]:
    """Return the helpers of CUDA C++ by name.

    They convert to and from bits, unpack a word and pack two numbers.
    """
    number, bits = "float of unsigned short h", "unsigned short of float f"
    part, word = "float of unsigned int w", "unsigned int of float a, float b"
    one = 'unsigned int w; asm("cvt.rn.{}x2.f32 %0, %{}, %{};" : "=r"(w) : "f"(f), "f"(0.0f)); return {};'
    by_bits = _rounded_bits("unsigned int u = __float_as_uint(f);")
    to_f16 = 'unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h;'
    pack = 'unsigned int w; asm("cvt.rn.{}x2.f32 %0, %2, %1;" : "=r"(w) : "f"(a), "f"(b)); return w;'
    pair = "return cuts_to_{0}(a) | (unsigned int)cuts_to_{0}(b) << 16;"
    bodies = {
        "cuts_from_f16": (number, 'float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f;'),
        "cuts_from_bf16": (number, "return __uint_as_float((unsigned int)h << 16);"),
        "cuts_to_f16": (bits, _from_sm80(one.format("f16", 2, 1, "w"), to_f16)),
        "cuts_to_bf16": (bits, _from_sm80(one.format("bf16", 2, 1, "w"), by_bits)),
        "cuts_round_bf16": (
            "float of float f",
            _from_sm80(one.format("bf16", 1, 2, "__uint_as_float(w)"), "return cuts_from_bf16(cuts_to_bf16(f));"),
        ),
        "cuts_low_f16": (part, "return cuts_from_f16((unsigned short)w);"),
        "cuts_high_f16": (part, "return cuts_from_f16((unsigned short)(w >> 16));"),
        "cuts_low_bf16": (part, "return __uint_as_float(w << 16);"),
        "cuts_high_bf16": (part, "return __uint_as_float(w & 0xffff0000u);"),
    }
    # Of numbers that the type has: a compiler makes nothing of it where they are halves of one word.
    joined = "return __float_as_uint(a) >> 16 | (__float_as_uint(b) & 0xffff0000u);"
    bodies["cuts_join_bf16"] = (word, joined)
    for name in ("f16", "bf16"):
        bodies[f"cuts_pack_{name}"] = (word, _from_sm80(pack.format(name), pair.format(name)))
        plain = f"return cuts_pack_{name}(cuts_max_f32(a, 0.0f), cuts_max_f32(b, 0.0f));"
        bodies[f"cuts_{name}_from_zero_x2"] = (word, _from_sm80(pack.format(f"relu.{name}"), plain))
    return _functions(device, bodies)


def opencl_halves(device: str) -> dict[str, str]:
    """Return the helpers of OpenCL C by name.

    The language loads and stores f16, but has no variables of it to round with; compilers may take a half and an
    integer at one address for different variables.
    """
    bodies = {
        "cuts_to_f16": (
            "ushort of float f",
            "uint u = as_uint(f); const uint s = u >> 16 & 0x8000u; u &= 0x7fffffffu; "
            "if (u > 0x7f800000u) return s | 0x7e00u; if (u >= 0x477ff000u) return s | 0x7c00u; "
            # A half has 2^-24 as its least number, as the last place of 0.5.
            "if (u < 0x38800000u) return s | (as_uint(as_float(u) + 0.5f) - 0x3f000000u); "
            "return s | (u + 0xc8000fffu + (u >> 13 & 1u)) >> 13;",
        ),
        "cuts_low_f16": (
            "float of uint w",
            "const uint u = (w & 0x7fffu) << 13, s = (w & 0x8000u) << 16; if (u >= 0x0f800000u) "
            "return as_float(s | 0x70000000u | u); if (u >= 0x00800000u) return as_float(s | u + 0x38000000u); "
            "return as_float(s | as_uint(as_float(u + 0x38800000u) - as_float(0x38800000u)));",
        ),
        "cuts_round_f16": ("float of float f", "return cuts_low_f16(cuts_to_f16(f));"),
        "cuts_from_bf16": ("float of ushort h", "return as_float((uint)h << 16);"),
        "cuts_to_bf16": ("ushort of float f", _rounded_bits("uint u = as_uint(f);")),
        "cuts_high_f16": ("float of uint w", "return cuts_low_f16(w >> 16);"),
        "cuts_low_bf16": ("float of uint w", "return as_float(w << 16);"),
        "cuts_high_bf16": ("float of uint w", "return as_float(w & 0xffff0000u);"),
        "cuts_pack_f16": ("uint of float a, float b", "return cuts_to_f16(a) | (uint)cuts_to_f16(b) << 16;"),
        "cuts_pack_bf16": ("uint of float a, float b", "return cuts_to_bf16(a) | (uint)cuts_to_bf16(b) << 16;"),
        "cuts_join_bf16": ("uint of float a, float b", "return as_uint(a) >> 16 | (as_uint(b) & 0xffff0000u);"),
    }
    return _functions(device, bodies)


#: Templates by element type ({p} pointer, {i} element, {v} value) that load, store and round numbers of half types.
CUDA_LOAD: Mapping[str, str] = {name: f"cuts_from_{name}({{p}}[{{i}}])" for name in ("f16", "bf16")}
CUDA_STORE: Mapping[str, str] = {name: f"{{p}}[{{i}}] = cuts_to_{name}({{v}});" for name in ("f16", "bf16")}
CUDA_ROUND: Mapping[str, str] = {"f16": "cuts_from_f16(cuts_to_f16({v}))", "bf16": "cuts_round_bf16({v})"}
OPENCL_LOAD: Mapping[str, str] = {"f16": "vload_half({i}, {p})", "bf16": "cuts_from_bf16({p}[{i}])"}
OPENCL_STORE: Mapping[str, str] = {"f16": "vstore_half({v}, {i}, {p});", "bf16": "{p}[{i}] = cuts_to_bf16({v});"}
OPENCL_ROUND: Mapping[str, str] = {"f16": "cuts_round_f16({v})", "bf16": "cuts_from_bf16(cuts_to_bf16({v}))"}
