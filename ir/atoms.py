"""Atoms: multiply-adds of small matrices that the lanes of a warp do together, one row of a table each.

An atom computes `C[m, n] += sum over k of A[m, k] * B[k, n]`. Its operands lie in registers of the lanes: lane `t`
(`LANE`) holds elements `i` (`ELEMENT`) of a *fragment* of each, and a row says with expressions over the two which
elements these are. Nothing here knows how an atom is written in a language (`backends.source` does), or which machines
have it (a target lists the names, and what each takes).

The maps are those of the fragments of `mma.sync` in the PTX ISA, "Matrix Fragments for mma".

A *math mode* says how a sum of products of f32 may be computed by atoms (`MATH_MODES`). What has none is computed in
the types that stand there.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from .index import Index, Var, as_index
from .types import DType

LANES = 32
LANE = Var("t", LANES)
#: Elements of a fragment; no fragment has more.
ELEMENT = Var("i", 16)


@frozen(cache_hash=True)
class MatrixFragment:
    """What a lane holds of one operand: `size` elements, element `i` of lane `t` at (`row`, `column`).

    Rows and columns are those of the operand as the product names it: (m, k) of A, (k, n) of B, (m, n) of C. `packed`
    neighbours share a register of 32 bits, the first one in its low bits.
    """

    row: Index
    column: Index
    size: int
    packed: int = 1

    @property
    def registers(self) -> int:
        """Registers of 32 bits."""
        return self.size // self.packed


@frozen(cache_hash=True)
class MatrixAtom:
    """One row: the extents, the format of A's and B's elements, the type of C's, and the three fragments.

    `format` names an element type, or is "tf32": f32 with a significand of 11 bits. `held` is the type of the values
    that operands are made of.
    """

    name: str
    m: int
    n: int
    k: int
    format: str
    held: DType
    accumulator: DType
    a: MatrixFragment
    b: MatrixFragment
    c: MatrixFragment


#: How the lanes lie over C, rows and columns: lanes along it, and neighbours that one lane holds. This is the
#: distribution that a tile dim of as many threads and such a vector has.
THREADS, NEIGHBOURS = (8, 4), (1, 2)

_ROWS, _COLUMNS = 16, 8
_T, _I = as_index(LANE), as_index(ELEMENT)
_C = MatrixFragment(_T // 4 + _I // 2 * 8, _T % 4 * 2 + _I % 2, 4)


def _atom(k: int, kind: str, held: DType, accumulator: DType) -> MatrixAtom:
    """Return the atom of 16 rows and 8 columns of a depth and a format.

    A register holds neighbours along k. The lanes of a row hold one register each; what of k is left comes with further
    registers. Those of A alternate between the upper and the lower eight rows.
    """
    packed = 4 // _BYTES[kind]
    register, place = _I // packed, _I % packed + _T % 4 * packed
    depth = 4 * packed
    a = MatrixFragment(_T // 4 + register % 2 * 8, place + register // 2 * depth, _ROWS * k // LANES, packed)
    b = MatrixFragment(place + register * depth, _T // 4, _COLUMNS * k // LANES, packed)
    return MatrixAtom(f"m16n8k{k}_{kind}", _ROWS, _COLUMNS, k, kind, held, accumulator, a, b, _C)


_BYTES = {"tf32": 4, "f16": 2, "bf16": 2, "i8": 1, "u8": 1}

MATRIX_ATOMS: Mapping[str, MatrixAtom] = {
    atom.name: atom
    for atom in (
        _atom(4, "tf32", DType.F32, DType.F32),
        _atom(8, "tf32", DType.F32, DType.F32),
        _atom(8, "f16", DType.F16, DType.F32),
        _atom(16, "f16", DType.F16, DType.F32),
        _atom(8, "bf16", DType.BF16, DType.F32),
        _atom(16, "bf16", DType.BF16, DType.F32),
        _atom(16, "i8", DType.I8, DType.I32),
        _atom(32, "i8", DType.I8, DType.I32),
        _atom(16, "u8", DType.U8, DType.I32),
        _atom(32, "u8", DType.U8, DType.I32),
    )
}


@frozen(cache_hash=True)
class MathMode:
    """How a sum of products is computed from operands of another format.

    Each operand is a sum of numbers of the `format`, which the functions `parts` make of it, the first of them nearest
    to it; what they leave of further digits, atoms `cut` off, by the function of that name. `products` are the pairs of
    parts that are multiplied, (part of A, part of B), in order: what is small comes first. Atoms round each addition
    towards zero, so that their error grows with the number of additions; after at most `every` elements of k (0: never)
    what they added up is therefore added to another accumulator, which rounds to nearest. `epsilon` is the distance
    from 1 to the next number that a product tells apart from it.
    """

    format: str
    parts: tuple[str, ...]
    products: tuple[tuple[int, int], ...]
    epsilon: float
    every: int = 0
    cut: str = "tf32_cut"


#: How sums of products of f32 may be computed, by name.
MATH_MODES: Mapping[str, MathMode] = {
    "tf32": MathMode("tf32", ("tf32_near",), ((0, 0),), 2.0**-10),
    "fp32x3": MathMode("tf32", ("tf32", "tf32_rest"), ((1, 0), (0, 1), (0, 0)), 2.0**-21, every=32),
}
