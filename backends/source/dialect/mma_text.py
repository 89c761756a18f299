"""Matrix instructions in each language: a helper for each table row.

CUDA C++ has the instruction. OpenCL C has none, so there the lanes of a warp store their fragments to local memory, by
the same maps as generated kernels, and each computes its elements of C: slow, but exact for integers, which verifies
the fragment layout of kernels. All threads of a block take part, because they synchronise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....ir import (
    ELEMENT,
    LANE,
    LANE_PRODUCTS,
    LANES,
    MMA_INSTRUCTIONS,
    MatrixFragment,
    MmaInstruction,
    as_index,
    substitute,
)
from ..index_ctext import index_text
from .float8 import FLOATS8

#: Names of types in PTX, where they differ.
PTX_TYPES = {"f8e4m3": "e4m3", "f8e5m2": "e5m2", "i8": "s8", "u8": "u8", "i32": "s32"}


def operand_words(atom: MmaInstruction) -> int:
    """Return the 32-bit words of a warp's A and B."""
    return (atom.m + atom.n) * atom.k


def _register_rows() -> Iterator[MmaInstruction]:
    """Yield the instructions of a warp, whose operands lie in registers."""
    return (row for row in MMA_INSTRUCTIONS.values() if not row.reads_shared)


def _parameters(atom: MmaInstruction) -> tuple[list[str], list[str], list[str]]:
    names = ((f"{o}{n}" for n in range(f.registers)) for o, f in (("d", atom.c), ("a", atom.a), ("b", atom.b)))
    d, a, b = (list(each) for each in names)
    return d, a, b


def instructions(qualifier: str, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the helpers of CUDA C++ by name, one `mma.sync` each."""
    for atom in _register_rows():
        d, a, b = _parameters(atom)
        kind = types[atom.accumulator.value]
        parameters = [*(f"{kind}& {x}" for x in d), *(f"unsigned {x}" for x in (*a, *b))]
        numbers = iter(range(len(parameters)))
        groups = ["{" + ", ".join(f"%{next(numbers)}" for _ in each) + "}" for each in (d, a, b)]
        of_a, of_b, adds = (PTX_TYPES.get(t, t) for t in (*atom.formats, atom.accumulator.value))
        name = f"mma.sync.aligned.m{atom.m}n{atom.n}k{atom.k}.row.col.{adds}.{of_a}.{of_b}.{adds}"
        constraint = "f" if atom.accumulator.is_float else "r"
        out, into = ", ".join(f'"+{constraint}"({x})' for x in d), ", ".join(f'"r"({x})' for x in (*a, *b))
        text = f'asm volatile("{name} {", ".join(groups)}, {groups[0]};" : {out} : {into});'
        yield f"cuts_{atom.name}", f"{qualifier} void cuts_{atom.name}({', '.join(parameters)}) {{ {text} }}"


def lane_products(qualifier: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of CUDA C++ that multiply numbers of lanes.

    Before sm_80 lanes exchange their sums.
    """
    for name, dtype in LANE_PRODUCTS.items():
        sums, rows, pairs = [f"d{n}" for n in range(4)], [f"a{n}" for n in range(4)], ["b0", "b1"]
        parameters = [*(f"float& {x}" for x in sums), *(f"unsigned {x}" for x in (*rows, *pairs))]
        term = "cuts_{0}_{1}({2}) * cuts_{0}_{1}({3})"
        own = []
        for row in range(2):
            words = [(half, rows[row + 2 * n], pairs[n]) for n in range(2) for half in ("low", "high")]
            text = " + ".join(term.format(half, dtype, a, b) for half, a, b in words)
            own.append(
                f"float s{row} = {text}; "
                + "".join(f"s{row} += __shfl_xor_sync(0xffffffffu, s{row}, {n}); " for n in (1, 2))
                + f"d{2 * row} += s{row}; d{2 * row + 1} += s{row};"
            )
        yield (
            f"cuts_{name}",
            (
                f"{qualifier} void cuts_{name}({', '.join(parameters)}) {{\n#if __CUDA_ARCH__ >= 800\n"
                f"  cuts_m16n8k16_{dtype}({', '.join((*sums, *rows, *pairs))});\n#else\n  {' '.join(own)}\n#endif\n}}"
            ),
        )


def emulations(qualifier: str, types: Mapping[str, str], space: str, meet: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of OpenCL C by name.

    The first parameter is the local memory of the warp.

    They must be inlined: PoCL gives all work-groups the same local memory where a function is called with it.
    """
    for atom in _register_rows():
        d, a, b = _parameters(atom)
        kind = types[atom.accumulator.value]
        parameters = [f"{space}{kind}* m", "int tid", *(f"{kind}* {x}" for x in d), *(f"uint {x}" for x in (*a, *b))]
        lines = [f"const int t = tid % {LANES};"]
        places = ((atom.a, a, atom.k, 0), (atom.b, b, atom.n, atom.m * atom.k))
        for format_, (fragment, names, width, base) in zip(atom.formats, places, strict=True):
            lines += _laid_out(format_, fragment, names, width, base)
        lines.append(meet)
        for n, name in enumerate(d):
            row, column = _coordinates(atom.c, n)
            product = f"m[({row}) * {atom.k} + k] * m[{atom.m * atom.k} + k * {atom.n} + {column}]"
            lines.append(f"for (int k = 0; k < {atom.k}; ++k) *{name} += {product};")
        lines.append(meet)
        yield f"cuts_{atom.name}", f"{qualifier} void cuts_{atom.name}({', '.join(parameters)}) {{ {' '.join(lines)} }}"


def _laid_out(format_: str, fragment: MatrixFragment, names: list[str], width: int, base: int) -> Iterator[str]:
    """Yield the stores of a lane's elements, each to its position in the operand."""
    for n in range(fragment.size):
        row, column = _coordinates(fragment, n)
        place = n % fragment.packed
        value = _ELEMENT_TEXTS[format_].format(names[n // fragment.packed], place, ("low", "high")[place % 2])
        yield f"m[{base} + ({row}) * {width} + {column}] = {value};"


def _coordinates(fragment: MatrixFragment, element: int) -> tuple[str, str]:
    at = {LANE: as_index(LANE), ELEMENT: as_index(element)}
    return index_text(substitute(fragment.row, at), {}), index_text(substitute(fragment.column, at), {})


#: Element {1} of the register {0} as a number of a matrix instruction's format, in OpenCL C; halves are the low or the
#: high one.
_ELEMENT_TEXTS = {
    "tf32": "cuts_tf32_cut(as_float({0}))",
    "f16": "cuts_{2}_f16({0})",
    "bf16": "cuts_{2}_bf16({0})",
    **{name: f"cuts_from_{name}((uchar)({{0}} >> 8 * {{1}} & 255))" for name in FLOATS8},
    "i8": "(int)(char)({0} >> 8 * {1} & 255)",
    "u8": "(int)({0} >> 8 * {1} & 255)",
}
