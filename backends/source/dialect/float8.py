"""Conversions of 8-bit floats in source, single and packed in pairs.

Numbers are rounded to nearest even and NaN stays NaN. Too large numbers of `f8e4m3`, which has no infinity, become the
largest one, those of `f8e5m2` become infinite. From sm_89 on PTX converts two numbers at once; before that, and in
OpenCL, they are rounded as bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen


@frozen
class _Format:
    """One 8-bit format: bits of its significand without the leading one, exponent bias, and sources of its limits.

    Bits of a float without its sign are infinite from `infinite` on, and then stored as `largest`.
    """

    name: str
    mantissa: int
    bias: int
    infinite: int
    largest: int

    def encoding(self) -> str:
        """Return statements that convert a float's bits `u` to a byte."""
        shift = 23 - self.mantissa
        # A sum with this number, whose last place is that of the format's subnormal numbers, rounds to them.
        rounder = (127 - self.bias) + shift + 1 << 23
        normal, rebias = 128 - self.bias << 23, (self.bias - 127 << 23) & 0xFFFFFFFF
        return (
            "const {word} s = u >> 24 & 0x80u; u &= 0x7fffffffu; if (u > 0x7f800000u) return s | 0x7fu; "
            f"if (u >= {self.infinite:#x}u) return s | {self.largest:#x}u; "
            f"if (u < {normal:#x}u) return s | ({{bits}}({{number}}(u) + {{number}}({rounder:#x}u)) - {rounder:#x}u); "
            f"return s | (u + {rebias:#x}u + {(1 << shift - 1) - 1:#x}u + (u >> {shift} & 1u)) >> {shift};"
        )

    def half_bits(self) -> str:
        """Return the bits of a half: the byte `h` over `scale`."""
        return f"(({{half}})(h & 0x80u) << 8 | ({{half}})(h & 0x7fu) << {10 - self.mantissa})"

    @property
    def infinity(self) -> bool:
        """True where the format has infinities."""
        return self.largest == _INFINITY

    @property
    def scale(self) -> float:
        """The factor of the half."""
        return 2.0 ** (15 - self.bias)


#: Infinity of the format with five bits of exponent.
_INFINITY = 0x7C
_FORMATS = (_Format("f8e4m3", 3, 7, 0x43E80000, 0x7E), _Format("f8e5m2", 2, 15, 0x47700000, _INFINITY))
FLOATS8 = tuple(f.name for f in _FORMATS)


def _from_sm89(new: str, old: str) -> str:
    return f"\n#if __CUDA_ARCH__ >= 890\n  {new}\n#else\n  {old}\n#endif\n"


def _nan(format_: _Format, text: str, nan: str) -> str:
    """Return a number, or NaN for the byte that is one in a format whose half is a number."""
    return f"(h & 0x7fu) == 0x7fu ? {nan} : {text}" if format_.bias == 7 else text


def cuda_floats8(device: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of CUDA C++ by name.

    They convert to and from bytes, unpack the bytes of two and pack two numbers.
    """
    for f in _FORMATS:
        name, half = f.name, f.half_bits().format(half="unsigned short")
        old = f'float f; const unsigned short b = {half}; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(b)); '
        old += "return " + _nan(f, "f" + f" * {f.scale}f" * (f.scale != 1), "__int_as_float(0x7fffffff)") + ";"
        new = (
            "float f; { .reg .b32 w; .reg .b16 l, r; "
            f"cvt.rn.f16x2.{name[2:]}x2 w, %1; mov.b32 {{l, r}}, w; cvt.f32.f16 %0, l; }}"
        )
        new = f'float f; asm("{new.removeprefix("float f; ")}" : "=f"(f) : "h"((unsigned short)h)); return f;'
        yield f"cuts_from_{name}", f"{device} float cuts_from_{name}(unsigned char h) {{{_from_sm89(new, old)}}}"
        pair = (
            f'unsigned short w; asm("cvt.rn.satfinite.{name[2:]}x2.f32 %0, %2, %1;" : "=h"(w) : "f"({{}}), "f"({{}})); '
        )
        bits = "unsigned u = __float_as_uint(x); "
        bits += f.encoding().format(word="unsigned", bits="__float_as_uint", number="__uint_as_float")
        one = bits if f.infinity else _from_sm89(pair.format("x", "0.0f") + "return (unsigned char)w;", bits)
        yield f"cuts_to_{name}", f"{device} unsigned char cuts_to_{name}(float x) {{ {one} }}"
        for part, byte, place in (("low", "w & 0xff", 0), ("high", "w >> 8", 16)):
            # Both halves come from one conversion, which a compiler computes once.
            new = f'unsigned b; asm("cvt.rn.f16x2.{name[2:]}x2 %0, %1;" : "=r"(b) : "h"(w)); '
            new += f'float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)(b >> {place}))); return f;'
            text = _from_sm89(new, f"return cuts_from_{name}((unsigned char)({byte}));")
            yield f"cuts_{part}_{name}", f"{device} float cuts_{part}_{name}(unsigned short w) {{{text}}}"
        each = f"return cuts_to_{name}(a) | (unsigned short)cuts_to_{name}(b) << 8;"
        limit = f"__int_as_float({f.infinite:#x})"  # the instruction has no infinity
        both = f"if (!(fabsf(a) < {limit} && fabsf(b) < {limit})) {{ {each} }} " if f.infinity else ""
        both += pair.format("a", "b") + "return w;"
        yield (
            f"cuts_pair_{name}",
            f"{device} unsigned short cuts_pair_{name}(float a, float b) {{{_from_sm89(both, each)}}}",
        )
        four = f"return cuts_pair_{name}(a, b) | (unsigned)cuts_pair_{name}(c, d) << 16;"
        yield (
            f"cuts_pack_{name}",
            f"{device} unsigned cuts_pack_{name}(float a, float b, float c, float d) {{ {four} }}",
        )


def opencl_floats8(device: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of OpenCL C by name."""
    for f in _FORMATS:
        half = f.half_bits().format(half="ushort")
        found = _nan(f, "cuts_low_f16(b)" + f" * {f.scale}f" * (f.scale != 1), "NAN")
        yield (
            f"cuts_from_{f.name}",
            f"{device} float cuts_from_{f.name}(uchar h) {{ const ushort b = {half}; return {found}; }}",
        )
        bits = f.encoding().format(word="uint", bits="as_uint", number="as_float")
        yield (
            f"cuts_to_{f.name}",
            f"{device} uchar cuts_to_{f.name}(float x) {{ uint u = as_uint(x); {bits} }}",
        )
        four = " | ".join(f"(uint)cuts_to_{f.name}({x}) << {8 * n}" for n, x in enumerate("abcd"))
        yield (
            f"cuts_pack_{f.name}",
            f"{device} uint cuts_pack_{f.name}(float a, float b, float c, float d) {{ return {four}; }}",
        )


#: Templates by element type ({p} pointer, {i} element, {v} value) that load, store and round 8-bit floats.
FLOAT8_LOAD: Mapping[str, str] = {name: f"cuts_from_{name}({{p}}[{{i}}])" for name in FLOATS8}
FLOAT8_STORE: Mapping[str, str] = {name: f"{{p}}[{{i}}] = cuts_to_{name}({{v}});" for name in FLOATS8}
FLOAT8_ROUND: Mapping[str, str] = {name: f"cuts_from_{name}(cuts_to_{name}({{v}}))" for name in FLOATS8}
