"""Conversions between bytes and f32 in CUDA C++ at full rate.

An SM converts 16 bytes or 16 floats of a clock one by one. It packs two floats at once at four times that rate, and
merges a byte with the exponent of 2^23 at the same one:

    f32(b) = as_float(0x4b000000 | b) - 2^23            (unsigned)
    f32(b) = as_float(0x4b000000 | (b ^ 128)) - (2^23 + 128)      (signed)

Numbers of fewer bits are merged where they lie, `at` bits from the end of a word, and scaled as they lose 2^23:

    f32(b) - z = as_float(0x4b000000 | word & mask << at) * 2^-at - (2^(23 - at) + z)

Two of them, half a word from one another, become halves of a word, merged with the exponent of 2^7:

    bf16x2(b) - z = as_bf16x2(0x43004300 | word >> at & mask) - (2^7 + z)

Assemblers make one instruction of a maximum with 0, a conversion and a pack. An H200 stops at the one that packs
unsigned numbers, which a sum with 0 keeps from being made.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....ir import PACKED_CONVERSIONS, UNPACKED_BITS, UNPACKED_CONVERSIONS, UNPACKED_PAIRS, DType

#: Bytes of the word that holds neighbours.
WORD_BYTES = 4
#: Bits of a fraction.
FRACTION_BITS = 23
#: Suffix of packed conversions of sums, which are no maxima.
OF_SUMS = "_of_sums"


def _is_signed(dtype: DType) -> bool:
    return dtype.element.kind == "signed"


def packed_conversions(qualifier: str) -> Mapping[str, str]:
    """Return the helpers that convert four floats to integers of a byte.

    The first one is in the low bits.
    """
    found: dict[str, str] = {}
    for name, (dtype, _) in ((n, kinds) for n, kinds in PACKED_CONVERSIONS.items() if not kinds[0].is_float):
        a, b, c, d = (_integer_text(dtype, v) for v in "abcd")
        head = f"{qualifier} unsigned cuts_{name}(float a, float b, float c, float d)"
        packs = f"{_pack(dtype, d, c, '0')} {_pack(dtype, b, a, 'r')}"
        found[f"cuts_{name}"] = f"{head} {{ unsigned r; {packs} return r; }}"
        packs = f"{_pack(dtype, _cut('d'), _cut('c'), '0')} {_pack(dtype, _cut('b'), _cut('a'), 'r')}"
        found[f"cuts_{name}{OF_SUMS}"] = f"{head.replace(name, name + OF_SUMS)} {{ unsigned r; {packs} return r; }}"
    return found


def _integer_text(dtype: DType, value: str) -> str:
    """Return a float as an integer; no assembler merges a maximum through the sum with 0."""
    return _cut(value if _is_signed(dtype) else f"{value} + 0.0f")


def _cut(value: str) -> str:
    return f"__float2int_rz({value})"


def _pack(dtype: DType, high: str, low: str, rest: str) -> str:
    kind = "s8" if _is_signed(dtype) else "u8"
    return f'asm("cvt.pack.sat.{kind}.s32.b32 %0, %1, %2, %3;" : "=r"(r) : "r"({high}), "r"({low}), "r"({rest}));'


def single_conversions(qualifier: str) -> Mapping[str, str]:
    """Return the helpers that convert single floats to bytes, and back."""
    found: dict[str, str] = {}
    for dtype, kind in ((DType.I8, "signed char"), (DType.U8, "unsigned char")):
        name = f"cuts_{dtype}_of_f32"
        body = f"unsigned r; const int q = {_integer_text(dtype, 'a')}; {_pack(dtype, 'q', 'q', '0')} return ({kind})r;"
        found[name] = f"{kind} {name}(float a) {{ {body} }}"
    for dtype, bits in ((DType.I8, "(a & 255) ^ 0x4b000080"), (DType.U8, "(a & 255) | 0x4b000000")):
        name = f"cuts_f32_of_{dtype}"
        found[name] = f"float {name}(int a) {{ return __int_as_float({bits}) - {_base(dtype)}; }}"
    return {name: f"{qualifier} {text}" for name, text in found.items()}


def bit_conversions(qualifier: str) -> Mapping[str, str]:
    """Return the helpers that convert numbers of a word exactly, less integers."""
    merge = (
        'asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(w >> (place - at) * {bits}), "r"({mask}u << {bits} * at)'
    )
    return {
        f"cuts_{name}": f"{qualifier} float cuts_{name}(unsigned w, int place, float zero) {{ "
        f"const int at = place % {FRACTION_BITS // bits}; unsigned r; "
        f'{merge.format(bits=bits, mask=(1 << bits) - 1)}, "r"(0x4b000000u)); const float unit = 1 << {bits} * at; '
        f"return __fmaf_rn(__uint_as_float(r), 1.0f / unit, -(8388608.0f / unit + zero)); }}"
        for name, bits in UNPACKED_BITS.items()
    }


def pair_conversions(qualifier: str) -> Mapping[str, str]:
    """Return the helpers that convert numbers of both halves of a word."""
    found: dict[str, str] = {}
    for name, bits in UNPACKED_PAIRS.items():
        mask = (1 << bits) - 1
        numbers = ", ".join(f"(float)(v >> {at} & {mask}u) - zero" for at in (0, 16))
        found[f"cuts_{name}"] = (
            f"{qualifier} unsigned cuts_{name}(unsigned w, int place, float zero) {{\n"
            f"  const unsigned v = w >> {bits} * place;\n#if __CUDA_ARCH__ >= 800\n"
            f'  unsigned r; asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"({mask * 0x10001}u), '
            '"r"(0x43004300u));\n  const unsigned s = cuts_pack_bf16(-128.0f - zero, -128.0f - zero);\n'
            '  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(r) : "r"(0x3f803f80u), "r"(s)); return r;\n'
            f"#else\n  return cuts_pack_bf16({numbers});\n#endif\n}}"
        )
    return found


def _base(dtype: DType) -> str:
    return f"{float((1 << 23) + 128 * _is_signed(dtype))}f"


def _packing_text(name: str, dtype: DType) -> str:
    """Return the template of a call with the values of a word."""
    values = ", ".join(f"{{{number}}}" for number in range(WORD_BYTES // dtype.size))
    return f"cuts_{name}({values})"


def _unpacking_text(dtype: DType) -> str:
    """Return the template of the byte at a {place} of the word {x}.{c} as f32."""
    bits = "{x}.{c} ^ 0x80808080u" if _is_signed(dtype) else "{x}.{c}"
    return f"(__uint_as_float(__byte_perm({bits}, 0x4b000000u, 0x744{{place}})) - {_base(dtype)})"


#: Texts of conversions of neighbours.
CONVERSION_TEXTS: Mapping[str, str] = {
    **{name: _packing_text(name, dtype) for name, (dtype, _) in PACKED_CONVERSIONS.items()},
    **{
        name + OF_SUMS: _packing_text(name + OF_SUMS * (dtype.size == 1), dtype)
        for name, (dtype, _) in PACKED_CONVERSIONS.items()
    },
    **{name: _unpacking_text(dtype) for name, (dtype, _) in UNPACKED_CONVERSIONS.items()},
    **{name: f"cuts_{name}({{x}}.{{c}}, {{place}}, {{zero}}.0f)" for name in UNPACKED_BITS},
    **{name: f"cuts_{name}({{x}}, {{place}}, {{zero}}.0f)" for name in UNPACKED_PAIRS},
}
