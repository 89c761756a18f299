"""Helper functions of kernels that all dialects have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ....ir import DType


def _index_helpers(device: str, dtype: DType, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the helpers of indices: one out of range becomes the nearest, or for `wrap` -1 or n.

    So no sum of them with variables overflows.
    """
    type_, negative = types[dtype.value], "i = i < 0 ? i + n : i; " if dtype.element.kind == "signed" else ""
    within = f"i < ({type_})n ? (int)i"
    for name, low, high in (("wrap", "-1", "n"), ("index", "0", "n - 1")):
        named = f"cuts_{name}{'' if dtype is DType.I32 else f'_{dtype}'}"
        result = f"i < 0 ? {low} : {within} : {high}" if negative else f"{within} : {high}"
        yield named, f"{device} int {named}({type_} i, int n) {{ {negative}return {result}; }}"


def index_helpers(device: str, types: Mapping[str, str]) -> dict[str, str]:
    """Return the helpers that bring indices into range."""
    return {
        **{
            name: text
            for dtype in (DType.I32, DType.I64, DType.U64, DType.U32)
            for name, text in _index_helpers(device, dtype, types)
        },
        "cuts_clamp": f"{device} int cuts_clamp(int i, int lo, int hi) {{ return i < lo ? lo : (i > hi ? hi : i); }}",
    }


def reinterpretations(qualifier: str, types: Mapping[str, str], routines: Sequence[str]) -> dict[str, str]:
    """Return the helpers that reinterpret bits, by a dialect's routines."""
    pairs = (("bits_of_f32", "i32", "f32"), ("f32_of_bits", "f32", "i32"), ("bits_of_f64", "i64", "f64"),
             ("f64_of_bits", "f64", "i64"))  # fmt: skip
    return {
        f"cuts_{name}": f"{qualifier} {types[found]} cuts_{name}({types[given]} x) {{ return {routine}(x); }}"
        for (name, found, given), routine in zip(pairs, routines, strict=True)
    }


def byte_packs(qualifier: str, word: str) -> dict[str, str]:
    """Return the helpers that pack four bytes into a register."""
    bits = " | ".join(f"({word})({x} & 255) << {8 * n}" for n, x in enumerate("abcd"))
    return {
        f"cuts_pack_{name}": f"{qualifier} {word} cuts_pack_{name}(int a, int b, int c, int d) {{ return {bits}; }}"
        for name in ("i8", "u8")
    }


def ordering_helpers(qualifier: str, types: Mapping[str, str]) -> dict[str, str]:
    """Return the helpers that map numbers to words in the same order.

    Zeros are equal, NaN is greatest.
    """
    float_ = "const unsigned u = cuts_pack_f32(x == 0 ? 0.0f : x); "
    bodies = {"f32": f"{float_}return x != x ? 0xffffffffu : u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);"}
    bodies |= dict.fromkeys(("i32", "i16", "i8"), "return (unsigned)(int)x ^ 0x80000000u;")
    bodies |= dict.fromkeys(("u32", "u16", "u8", "bool"), "return (unsigned)x;")
    return {
        f"cuts_ordered_{kind}": f"{qualifier} unsigned cuts_ordered_{kind}({types[kind]} x) {{ {body} }}"
        for kind, body in bodies.items()
    }


def vote_helpers(device: str) -> dict[str, str]:
    """Return the helper that numbers and counts a warp's words by digit."""
    body = (
        "unsigned peers = 0xffffffffu; "
        "for (int bit = 0; bit < 8; ++bit) { const int own = digit >> bit & 1; "
        "const unsigned set = __ballot_sync(0xffffffffu, own); peers &= own ? set : ~set; } "
        "__syncwarp(); const int before = counts[digit], lane = thread & 31; __syncwarp(); "
        "if (peers >> lane == 1u) counts[digit] = before + __popc(peers); "
        "return before + __popc(peers & ((1u << lane) - 1u));"
    )
    return {"cuts_number_in_warp": f"{device} int cuts_number_in_warp(int* counts, int digit, int thread) {{ {body} }}"}
