"""Layout of matrix instructions over lanes and tile dims."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from ...ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    LANES,
    MMA_INSTRUCTIONS,
    SWIZZLES,
    Expr,
    Index,
    MmaInstruction,
    Reduction,
    ReductionSchedule,
    TileDim,
    Var,
    block_scales,
    expr_variables,
    factors,
    promotion_interval,
    stored_factor,
)
from .footprint import Count

#: Register sets that the fragments of an operand alternate between, with fragments of the next step loaded ahead.
FRAGMENT_SETS = 2


def mma_operands(reduction: Reduction, rows: Sequence[Var], columns: Sequence[Var]) -> tuple[Expr, Expr] | None:
    """Return the factors A and B of a sum of products.

    A varies along the rows and not along the columns, B along the columns and not along the rows, where there are
    several; None where there are no two such factors. Scales of blocks of terms (`block_scales`) are none of them.
    """
    row, column = (bool(side) and all(axis.extent == 1 for axis in side) for side in (rows, columns))
    scales, _ = block_scales(reduction.body, reduction.reduce)
    parts = tuple(stored_factor(part, reduction.math) for part in factors(reduction.body) if part not in scales)
    if reduction.combine != "sum" or len(parts) != 2:
        return None
    for a, b in (parts, parts[::-1]):
        of_a, of_b = expr_variables(a), expr_variables(b)
        if (row or of_a.intersection(rows)) and ((column and not row) or of_b.intersection(columns)):
            return None if of_a.intersection(columns) or of_b.intersection(rows) else (a, b)
    return None


def promotion_depth(reduction: Reduction, instruction: str) -> int:
    """Return the most elements of k whose sum is promoted at once.

    It is a block of terms of one scale, or the interval of the math mode or the instruction; 0 where sums never are, as
    those of fewer terms.
    """
    _, block = block_scales(reduction.body, reduction.reduce)
    every = promotion_interval(reduction.math, instruction)
    if not block and prod(axis.extent for axis in reduction.reduce) <= every:
        return 0
    return min(every, block) if every and block else every or block


def lanes_along(rows: int, columns: int, dim: int) -> int:
    """Return the lanes of a warp along a tile dim.

    `rows` and `columns` are the tile dims of the instruction's C.
    """
    return ACCUMULATOR_THREADS[0] if dim == rows else ACCUMULATOR_THREADS[1] if dim == columns else 1


#: Neighbouring rows that a lane may load at once into registers, and bytes of a line of shared memory for each.
MAX_HELD_VECTOR, HELD_LINE_BYTES = 4, 32


def runs(atom: MmaInstruction) -> tuple[int, int]:
    """Return a lane's elements of C along rows and columns."""
    return atom.m // (ACCUMULATOR_THREADS[0] * atom.warps), atom.n // ACCUMULATOR_THREADS[1]


def chained_vector(instruction: str) -> int:
    """Return the neighbours of a row that a chain's lane holds.

    They fill a register of the next instruction's rows.
    """
    atom = MMA_INSTRUCTIONS[instruction]
    return (atom.held_a or atom.a).packed


def interleaved_instructions(vector: int, run: int) -> int:
    """Return how many instructions share a lane's `vector` neighbours.

    A lane holds `run` elements of each.
    """
    return max(1, vector // run)


def mma_faults(loop: ReductionSchedule, dims: Sequence[TileDim], lanes: int) -> list[str]:
    """Return why threads cannot hold the fragments; empty if they can.

    `lanes` warps divide the depth.
    """
    atom, found = MMA_INSTRUCTIONS[loop.mma], []
    if loop.rows == loop.columns or not {loop.rows, loop.columns} <= set(range(len(dims))):
        return [f"atom {atom.name}: rows and columns must lie along two of the {len(dims)} tile dims"]
    for d, dim in enumerate(dims):
        axis = {loop.rows: 0, loop.columns: 1}.get(d)
        if axis is None:
            if dim.block != 1 and (atom.reads_shared or loop.prefetch or lanes > 1):
                found.append(f"atom {atom.name}: a tile dim without rows or columns has blocks of 1, not {dim.block}")
            continue
        run = runs(atom)[axis]
        whole = dim.vector < run or dim.vector % run == 0
        if (
            dim.threads % ACCUMULATOR_THREADS[axis]
            or dim.vector % ACCUMULATOR_VECTOR[axis]
            or not whole
            or dim.thread % (run * interleaved_instructions(dim.vector, run))
        ):
            side = ("rows", "columns")[axis]
            found.append(
                f"atom {atom.name}: its {side} need a multiple of {ACCUMULATOR_THREADS[axis]} threads that hold a "
                f"multiple of {run} elements each, in vectors of a multiple of {ACCUMULATOR_VECTOR[axis]} that take "
                "whole atoms"
            )
    if prod(d.threads for d in dims) % LANES:
        found.append(f"atom {atom.name}: all threads of the block take part, in whole warps")
    if len(loop.dims) != 1 or loop.dims[0].block_k % (atom.k * lanes):
        found.append(f"atom {atom.name}: one reduced dim, in chunks of a multiple of {atom.k * lanes}")
    elif loop.prefetch and (
        loop.prefetch > 1
        or loop.stages < 2
        or len(loop.staging) < 2
        or not has_alternating_sets(atom.name, loop.dims[0].block_k, lanes)
    ):
        found.append(
            f"atom {atom.name}: fragments are loaded one step ahead, from a ring of at least 2 buffers of each "
            "operand, where a chunk has an even number of steps"
        )
    return found


def has_alternating_sets(atom: str, chunk: Count, lanes: Count) -> Count:
    """Return whether steps use all fragment register sets equally often.

    `lanes` warps divide the depth of a K block.
    """
    return np.equal(chunk // (least_chunk(atom) * lanes) % FRAGMENT_SETS, 0)


def least_block(atom: str, rows: int, columns: int, dim: int) -> int:
    """Return the least block of a tile dim with matrix instructions.

    It is the instruction's rows or its columns; 0 of other dims.
    """
    if not atom:
        return 0
    return MMA_INSTRUCTIONS[atom].m if dim == rows else MMA_INSTRUCTIONS[atom].n if dim == columns else 0


def least_chunk(atom: str) -> int:
    """Return the least K block of a matrix instruction, else 0."""
    return MMA_INSTRUCTIONS[atom].k if atom else 0


def reads_shared_matrices(atom: str) -> bool:
    """Return whether a matrix instruction reads its operands in shared memory."""
    return bool(atom) and MMA_INSTRUCTIONS[atom].reads_shared


def held_lane(lane: Index, vector: int) -> Index:
    """Return the place of one of eight lanes along rows in registers.

    The lanes that load together then meet no bank twice: with the swizzle of `held_swizzle`, a line has two halves, and
    neighbours in groups of 16 bytes alternate between these.
    """
    group = MAX_HELD_VECTOR // vector
    number = lane // group
    return lane % group + (number // 2 + number % 2 * (ACCUMULATOR_THREADS[0] // group // 2)) * group


def held_swizzle(vector: int) -> int:
    """Return the swizzle in bytes of rows that lanes load in vectors."""
    return HELD_LINE_BYTES * vector


def side_swizzle(axes: Sequence[Var], block: int, size: int) -> int:
    """Return the swizzle of a tile along its side.

    Of several axes the innermost one fills whole lines, where it can.
    """
    inner = axes[-1].extent if sum(a.extent > 1 for a in axes) > 1 else block
    return widest_swizzle(gcd(block, inner) * size) or widest_swizzle(block * size)


def widest_swizzle(line_bytes: int) -> int:
    """Return the widest swizzle whose lines divide a tile's rows."""
    return max(s for s in SWIZZLES if s == 0 or line_bytes % s == 0)
