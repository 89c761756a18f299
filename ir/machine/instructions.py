"""Instructions that move data, as rows of tables.

`matrix_instructions` has those that multiply. Instruction selection (`passes.instructions`) names rows in nodes of
kernel IR. A dialect of `backends.source` has the text of its rows; where it has none of a table, values move by plain
loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from ..affine import WIDEST_BYTES
from ..types import DType
from .matrix_instructions import MMA_INSTRUCTIONS

#: Rows of a matrix of `ldmatrix`, registers of 32 bits in a row, and bytes of a row.
MATRIX_ROWS, MATRIX_WORDS, ROW_BYTES = 8, 4, 16
#: Smallest asynchronous copy in bytes.
MIN_COPY_BYTES = 4


@frozen(cache_hash=True)
class MatrixLoadInstruction:
    """Load of `count` matrices by a warp.

    A lane gets a register of each, of type `dtype`. A matrix has eight rows of 16 bytes. Lane `l` names row `l % 8` of
    matrix `l // 8`. Lane `t` receives the 32 bits at place `t % 4` of row `t // 4`, or, transposed, halves `t // 4` of
    rows `2 * (t % 4)` and `2 * (t % 4) + 1` (PTX ISA, "Warp-level matrix load instruction: ldmatrix").
    """

    name: str
    count: int
    transposed: bool
    dtype: DType


@frozen(cache_hash=True)
class CopyInstruction:
    """Copy of `nbytes` from global to shared memory.

    `l1` copies leave their data in the L1 cache too (.ca). Copies of fewer than `MIN_COPY_BYTES` bytes are
    synchronous.
    """

    name: str
    nbytes: int
    l1: bool = False


def _by_name(rows: Iterable[MatrixLoadInstruction]) -> Mapping[str, MatrixLoadInstruction]:
    return {row.name: row for row in rows}


MATRIX_LOADS: Mapping[str, MatrixLoadInstruction] = _by_name(
    MatrixLoadInstruction(f"ldmatrix_x{count}{suffix}", count, transposed, dtype)
    for count in (1, 2, 4)
    for suffix, transposed, dtype in (("", False, DType.U32), ("_trans", True, DType.U32), ("_f32", False, DType.F32))
)
COPIES: Mapping[str, CopyInstruction] = {
    copy.name: copy
    for copy in (
        *(CopyInstruction(f"copy_{nbytes}", nbytes) for nbytes in (1, 2)),
        *(CopyInstruction(f"cp_async_{nbytes}", nbytes) for nbytes in (MIN_COPY_BYTES, 8, WIDEST_BYTES)),
        CopyInstruction(f"cp_async_{WIDEST_BYTES}_cached", WIDEST_BYTES, l1=True),
    )
}

#: Additions of neighbours to global memory at once: a reduction, an element type and a number of elements.
VECTOR_ADDITIONS: Mapping[str, int] = {f"sum_{DType.F32}x{width}": width for width in (2, 4)}

#: Conversions of neighbours that are packed into a word: the type of the numbers, and that of the values. Numbers of
#: floats are those of single conversions; values that become unsigned are whole. Negative ones become halves of 0.
PACKED_CONVERSIONS: Mapping[str, tuple[DType, DType]] = {
    **{f"{dtype}_of_{DType.F32}x4": (dtype, DType.F32) for dtype in (DType.I8, DType.U8)},
    **{f"{kind}_from_zero_x2": (kind, kind) for kind in (DType.F16, DType.BF16)},
}
#: Conversions of the bytes of a loaded word: their type, and that of the values, which has all of them.
UNPACKED_CONVERSIONS: Mapping[str, tuple[DType, DType]] = {
    f"{kind}_of_{dtype}x4": (dtype, kind)
    for dtype in (DType.I8, DType.U8)
    for kind in (DType.F32, DType.F16, DType.BF16)
}

#: Conversions of the numbers of so many bits of a loaded word to floats, less an integer.
UNPACKED_BITS: Mapping[str, int] = {f"{DType.F32}_of_u{bits}": bits for bits in (1, 2, 4)}

#: Conversions of the numbers of so many bits of a loaded word to words of two, half a word from one another, less an
#: integer.
UNPACKED_PAIRS: Mapping[str, int] = {f"{DType.BF16}x2_of_u{bits}": bits for bits in (1, 2, 4)}
#: Products of the numbers of each lane, and their type.
LANE_PRODUCTS: Mapping[str, DType] = {f"lane_products_{DType.BF16}": DType.BF16}

#: Extremes of the bytes of two words: a reduction, and an element type.
WORD_EXTREMES: Mapping[str, tuple[str, DType]] = {
    f"{combine}_{dtype}x4": (combine, dtype) for combine in ("max", "min") for dtype in (DType.I8, DType.U8)
}

#: Instructions of each dialect. OpenCL C has none; matrix instructions are emulated there.
INSTRUCTIONS: Mapping[str, frozenset[str]] = {
    "cuda": frozenset(
        {
            *MATRIX_LOADS,
            *COPIES,
            *MMA_INSTRUCTIONS,
            *VECTOR_ADDITIONS,
            *PACKED_CONVERSIONS,
            *UNPACKED_CONVERSIONS,
            *UNPACKED_BITS,
            *UNPACKED_PAIRS,
            *LANE_PRODUCTS,
            *WORD_EXTREMES,
        }
    ),
    "opencl": frozenset({*MMA_INSTRUCTIONS, *LANE_PRODUCTS}),
}


def matrix_load_row(count: int, transposed: bool, dtype: DType) -> MatrixLoadInstruction:
    """Return the row that loads `count` matrices into registers of a type."""
    return next(
        row for row in MATRIX_LOADS.values() if (row.count, row.transposed, row.dtype) == (count, transposed, dtype)
    )


def copy_row(nbytes: int, cached: bool) -> CopyInstruction:
    """Return the row that copies `nbytes`.

    Only the widest copies may bypass the L1 cache.
    """
    return next(
        row for row in COPIES.values() if row.nbytes == nbytes and row.l1 == (cached and nbytes == WIDEST_BYTES)
    )
