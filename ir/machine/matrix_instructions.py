"""Matrix instructions: multiply-adds of small matrices by warps.

A matrix instruction computes `C[m, n] += sum over k of A[m, k] * B[k, n]`. The operands of an instruction of one warp
lie in registers of its lanes: lane `t` (`LANE`) holds elements `i` (`ELEMENT`) of a *fragment* of each, and a row of
the table gives the coordinates of these elements as expressions over the two. Spelling in a language belongs to
`backends.source`; a target lists the instructions that it has, and the time of each.

The maps are those of the fragments of `mma.sync` in the PTX ISA, "Matrix Fragments for mma". Instructions of a
*warpgroup*, four warps (`wgmma`), read A and B in shared memory (`shared_matrices`), and multiply several times `n`
columns at once: element `i` of the columns from `8 * j` on is element `4 * j + i` of a thread.

A *math mode* describes the computation of a sum of products of f32 by matrix instructions (`MATH_MODES`). Without one,
the sum is computed in the types of its operands.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from ..affine import Index, Var, as_index
from ..types import DType

LANES = 32
LANE = Var("t", LANES)
#: Warps of a warpgroup, and the variable that numbers its threads.
WARPGROUP = 4
WARPGROUP_THREAD = Var("t", WARPGROUP * LANES)
#: Elements of a fragment; no fragment has more.
ELEMENT = Var("i", 16)


@frozen(cache_hash=True)
class MatrixFragment:
    """Elements of one operand that a lane holds.

    Element `i` of lane `t`, of `size` elements, is at (`row`, `column`). Rows and columns are those of
    the operand in the product: (m, k) of A, (k, n) of B, (m, n) of C. `packed` neighbours share a register of 32 bits,
    the first one in its low bits.
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
class MmaInstruction:
    """Matrix instruction: extents, operand format, accumulator type and fragments.

    `format` names an element type, or is "tf32": f32 with a significand of 11 bits. `operand_dtype` is the type of the
    values that operands are made of. `warps` multiply together. An instruction whose operands lie in shared memory has
    no fragments of A and B, and multiplies one of several numbers of `columns` at once. One whose accumulator keeps few
    digits is promoted (see `MathMode`) after at most `every` elements of k. B has the type `other` where that differs.
    `held_a` is the fragment of the 16 rows of a warp where an instruction of a warpgroup takes A from registers.
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
    warps: int = 1
    columns: tuple[int, ...] = ()
    every: int = 0
    other: DType | None = None
    held_a: MatrixFragment | None = None

    @property
    def operand_dtypes(self) -> tuple[DType, DType]:
        """Element types of A and of B."""
        return self.held, self.other or self.held

    @property
    def formats(self) -> tuple[str, str]:
        """Formats of A and of B."""
        return self.format, self.other.value if self.other is not None else self.format

    @property
    def reads_shared(self) -> bool:
        """True where A and B lie in shared memory."""
        return bool(self.columns)


#: Layout of the lanes over the rows and the columns of C: lanes along each, and neighbours that one lane holds. It is
#: the distribution that a tile dim of as many threads and such a vector has.
ACCUMULATOR_THREADS, ACCUMULATOR_VECTOR = (8, 4), (1, 2)

_TILE_ROWS, _TILE_COLUMNS = 16, 8
_T, _I = as_index(LANE), as_index(ELEMENT)
_C = MatrixFragment(_T // 4 + _I // 2 * 8, _T % 4 * 2 + _I % 2, 4)


def _instruction(k: int, kind: str, held: DType, accumulator: DType, other: DType | None = None) -> MmaInstruction:
    """Return the instruction of 16 rows and 8 columns with `k` reduced elements.

    A register holds neighbours along k. The lanes of a row hold one register each; the rest of k comes in further
    registers. Those of A alternate between the upper and the lower eight rows.
    """
    packed = 4 // _BYTES[kind]
    register, place = _I // packed, _I % packed + _T % 4 * packed
    depth = 4 * packed
    a = _rows_fragment(k, packed)
    b = MatrixFragment(place + register * depth, _T // 4, _TILE_COLUMNS * k // LANES, packed)
    name = f"m16n8k{k}_{_kinds(kind, other)}"
    return MmaInstruction(name, _TILE_ROWS, _TILE_COLUMNS, k, kind, held, accumulator, a, b, _C, other=other)


def _kinds(kind: str, other: DType | None) -> str:
    """Return the part of a name that says the formats of A and of B."""
    return kind if other is None else f"{kind}_{other}"


def _rows_fragment(k: int, packed: int) -> MatrixFragment:
    """Return the fragment of 16 rows of A with `k` reduced elements."""
    register, place = _I // packed, _I % packed + _T % 4 * packed
    row = _T // 4 + register % 2 * 8
    return MatrixFragment(row, place + register // 2 * (4 * packed), _TILE_ROWS * k // LANES, packed)


#: Columns that an instruction of a warpgroup may multiply at once, in all formats.
WARPGROUP_COLUMNS = (8, *range(16, 257, 16))
#: Bytes of a row of A that it multiplies.
_WARPGROUP_DEPTH_BYTES = 32


def _warpgroup_instruction(
    kind: str, held: DType, accumulator: DType = DType.F32, every: int = 0, other: DType | None = None
) -> MmaInstruction:
    """Return the instruction of 64 rows, 16 of each warp, which reduces 32 bytes of k."""
    k, none = _WARPGROUP_DEPTH_BYTES // _BYTES[kind], MatrixFragment(Index(), Index(), 0, 4 // _BYTES[kind])
    thread = as_index(WARPGROUP_THREAD)
    row = thread // LANES * _TILE_ROWS + thread % LANES // 4 + _I // 2 * 8
    c = MatrixFragment(row, thread % 4 * 2 + _I % 2, 4)
    rows, name = WARPGROUP * _TILE_ROWS, f"m64n8k{k}_{_kinds(kind, other)}"
    fragments, of_rows = (none, none, c), _rows_fragment(k, none.packed)
    return MmaInstruction(
        name, rows, _TILE_COLUMNS, k, kind, held, accumulator, *fragments, WARPGROUP, WARPGROUP_COLUMNS, every, other,
        of_rows,
    )  # fmt: skip


_BYTES = {"tf32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1}
#: Elements of k after which sums of 8-bit floats, whose fractions have 13 bits, are promoted.
_FLOAT8_EVERY = 128
#: Types of A and of B where one side alone has signs.
_SIGNS = ((DType.U8, DType.I8), (DType.I8, DType.U8))

MMA_INSTRUCTIONS: Mapping[str, MmaInstruction] = {
    atom.name: atom
    for atom in (
        _instruction(4, "tf32", DType.F32, DType.F32),
        _instruction(8, "tf32", DType.F32, DType.F32),
        _instruction(8, "f16", DType.F16, DType.F32),
        _instruction(16, "f16", DType.F16, DType.F32),
        _instruction(8, "bf16", DType.BF16, DType.F32),
        _instruction(16, "bf16", DType.BF16, DType.F32),
        _instruction(32, "f8e4m3", DType.F8E4M3, DType.F32),
        _instruction(32, "f8e5m2", DType.F8E5M2, DType.F32),
        _instruction(16, "i8", DType.I8, DType.I32),
        _instruction(32, "i8", DType.I8, DType.I32),
        _instruction(16, "u8", DType.U8, DType.I32),
        _instruction(32, "u8", DType.U8, DType.I32),
        *(_instruction(k, a.value, a, DType.I32, b) for k in (16, 32) for a, b in _SIGNS),
        _warpgroup_instruction("f16", DType.F16),
        _warpgroup_instruction("bf16", DType.BF16),
        _warpgroup_instruction("tf32", DType.F32),
        _warpgroup_instruction("f8e4m3", DType.F8E4M3, every=_FLOAT8_EVERY),
        _warpgroup_instruction("f8e5m2", DType.F8E5M2, every=_FLOAT8_EVERY),
        _warpgroup_instruction("f8e4m3", DType.F8E4M3, every=_FLOAT8_EVERY, other=DType.F8E5M2),
        _warpgroup_instruction("f8e5m2", DType.F8E5M2, every=_FLOAT8_EVERY, other=DType.F8E4M3),
        _warpgroup_instruction("i8", DType.I8, DType.I32),
        _warpgroup_instruction("u8", DType.U8, DType.I32),
        *(_warpgroup_instruction(a.value, a, DType.I32, other=b) for a, b in _SIGNS),
    )
}


@frozen(cache_hash=True)
class MathMode:
    """Computation of a sum of products from operands of another format.

    Each operand is a sum of numbers of the `format`, produced by the functions `parts`, the first of them nearest to
    it; the instructions cut further digits off, by the function `cut`. `products` are the pairs of parts that are
    multiplied, (part of A, part of B), the smallest products first. Matrix instructions round each addition towards
    zero, so that their error grows with the number of additions; after at most `every` elements of k (0: never) the
    partial sum is therefore added to another accumulator, which rounds to nearest. `epsilon` is the distance from 1 to
    the next number that a product distinguishes from it.
    """

    format: str
    parts: tuple[str, ...]
    products: tuple[tuple[int, int], ...]
    epsilon: float
    every: int = 0
    cut: str = "tf32_cut"


#: Math modes of sums of products of f32, by name.
MATH_MODES: Mapping[str, MathMode] = {
    "tf32": MathMode("tf32", ("tf32_near",), ((0, 0),), 2.0**-10),
    "fp32x3": MathMode("tf32", ("tf32", "tf32_rest"), ((1, 0), (0, 1), (0, 0)), 2.0**-21, every=32),
}


def promotion_interval(math: str, instruction: str) -> int:
    """Return the elements of k after which partial sums are promoted.

    It is that of the math mode, or of the instruction; 0 where they never are.
    """
    mode = MATH_MODES.get(math)
    return (mode.every if mode is not None else 0) or MMA_INSTRUCTIONS[instruction].every
