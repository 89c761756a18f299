"""Operands of matrix instructions that a warpgroup reads in shared memory.

Rows of a kernel of one segment lie in registers as the instruction holds them (`row_place`). Else a thread's results
lie over a tile dim as `TileDim` spreads them: lanes along it, then warps, then registers. The rows of an instruction
may be any of the block's, as long as the operands agree. So the tile of an operand lies in shared memory in the order
of the instruction:

    block row = register * (8 * warps) + warp * 8 + lane
        ->  place = instruction * 64 + warp % 4 * 16 + register % 2 * 8 + lane
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from attrs import frozen

from ...ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    ALTERNATING,
    HALF_BYTES,
    LANES,
    MATH_MODES,
    MMA_INSTRUCTIONS,
    TEAMS,
    WARPGROUP,
    Expr,
    Index,
    IndexLike,
    Reduction,
    ReductionSchedule,
    SharedMatrixLayout,
    Staging,
    TileDim,
    as_index,
    operands,
)
from .footprint import Count, ceil_div
from .matrix_instructions import MAX_HELD_VECTOR, held_swizzle, mma_operands, reads_shared_matrices, runs

#: Least stages of a pipeline that products read in place: two K blocks are multiplied while another one arrives. A loop
#: of fewer K blocks has a stage for each.
MIN_PRODUCT_STAGES = 3


#: Neighbours of a lane along columns after an exchange among the lanes of a row: each lane holds pairs before.
EXCHANGED_VECTOR = ACCUMULATOR_THREADS[1] * ACCUMULATOR_VECTOR[1]

#: Rows of a lane in an instruction.
ROW_PAIR = 2

#: Registers that a producer's threads keep, and sums of a thread from which on the others take over the rest.
PRODUCER_REGISTERS, MIN_TAKING_SUMS = 24, 128


def teams_of(tma: Count) -> Count:
    """Return the teams of a block that take tiles in turn."""
    return np.where(np.equal(tma, ALTERNATING), TEAMS, 1)


def fills_ring(stages: Count, trips: Count) -> Count:
    """Return whether the K blocks of a tile fill so many stages."""
    return np.less_equal(stages, trips) | np.less(stages, 2 * trips - 2)


def producer_share(threads: Count, sums: Count, registers: int) -> tuple[Count, Count]:
    """Return a producer's threads, and the registers of each other thread.

    The `threads` beside it have `sums` sums each, an SM has `registers` registers. The second result is 0 where all
    threads have equally many.
    """
    own, group = WARPGROUP * LANES, 8
    taking = np.greater_equal(sums, MIN_TAKING_SUMS) & np.greater(threads, own)
    whole = registers // (threads + own) // group * group * (threads + own)
    others = (whole - PRODUCER_REGISTERS * own) // threads // group * group
    return np.where(taking, own, LANES), np.where(taking, others, 0)


def persistent_blocks(blocks: Count, processors: int) -> Count:
    """Return the fewest blocks that take no more turns."""
    return ceil_div(blocks, ceil_div(blocks, processors))


def balanced_section(rows: Count, launched: Count) -> Count:
    """Return the fewest runs of `rows` tiles that fill two turns evenly.

    Two turns in opposite orders then have the same work for all blocks, if long tiles come first in a section.
    """
    return 2 * launched // np.gcd(2 * launched, rows)


def chained_numbers(scores: Count, sums: Count) -> Count:
    """Return the numbers that a thread of a chain in registers holds."""
    return scores + scores // 2 + sums


@frozen
class MatrixTile:
    """Tile of the rows (`axis` 0) or columns (1).

    Registers hold rows that are `held` on their way to products. Rows that are `natural` keep their order.
    """

    layout: SharedMatrixLayout
    dim: TileDim
    axis: int
    held: bool = False
    natural: bool = False

    def address(self, along: IndexLike, deep: IndexLike) -> Index:
        """Return the offset of a row or column and place of k."""
        return self.layout.address(self._instruction_place(as_index(along)), deep)

    @property
    def exchanged(self) -> bool:
        """True where lanes exchange results, as the tile lies along its side."""
        return not self.layout.deep and self.dim.vector != ACCUMULATOR_VECTOR[self.axis]

    @property
    def in_order(self) -> bool:
        """True where rows, or columns in pairs, keep their order."""
        return (self.exchanged or self.dim.vector == ACCUMULATOR_VECTOR[1]) if self.axis else self.natural

    def _instruction_place(self, element: Index) -> Index:
        """Return the place of a block's row or column in the order of the instructions."""
        vector, lanes, neighbours = self.dim.vector, ACCUMULATOR_THREADS[self.axis], ACCUMULATOR_VECTOR[self.axis]
        if self.held or self.in_order:
            return element
        register = element // (self.dim.threads * vector) * vector + element % vector
        thread = element // vector % self.dim.threads
        if self.axis:
            return register // neighbours * (lanes * neighbours) + thread * neighbours + register % neighbours
        warp, groups = thread // lanes, self.dim.threads // (WARPGROUP * lanes)
        instruction = register // 2 * groups + warp // WARPGROUP
        inside = warp % WARPGROUP * 2 + register % 2
        return (instruction * (2 * WARPGROUP) + inside) * lanes + thread % lanes


def is_deep(choice: Staging) -> bool:
    """Return whether the tile of an operand runs along k."""
    return bool(choice.order) and choice.order[0] > choice.order[-1]


def matrix_tile(
    reduction: Reduction,
    loop: ReductionSchedule,
    dims: Sequence[TileDim],
    choice: Staging,
    own: Sequence[str],
    alone: bool = True,
) -> MatrixTile | None:
    """Return the tile of a staged operand that instructions read in place.

    `own` are the segment's reductions, which is `alone` in its group or has others beside it.
    """
    found = mma_operands(reduction, dims[loop.rows].axes, dims[loop.columns].axes)
    if not reads_shared_matrices(loop.mma) or found is None:
        return None
    operand: Expr = operands(reduction, own)[choice.operand]
    axis = found.index(operand)
    dim, size = dims[(loop.rows, loop.columns)[axis]], MMA_INSTRUCTIONS[loop.mma].held.size
    layout = SharedMatrixLayout(dim.block, loop.dims[0].block_k, size, choice.swizzle, is_deep(choice))
    parts = len(MATH_MODES[reduction.math].parts) if reduction.math else 1
    held = axis == 0 and size > HALF_BYTES and (parts > 1 or not layout.deep)
    return MatrixTile(layout, dim, axis, held, axis == 0 and keeps_row_order(loop, dims, alone))


def row_place(thread: IndexLike, register: Index, threads: int) -> Index:
    """Return the row of a thread's register in the order of instructions."""
    warp, lane = as_index(thread) // ACCUMULATOR_THREADS[0], as_index(thread) % ACCUMULATOR_THREADS[0]
    place = warp * ROW_PAIR + register % ROW_PAIR
    return register // ROW_PAIR * (threads * ROW_PAIR) + place * ACCUMULATOR_THREADS[0] + lane


def keeps_row_order(loop: ReductionSchedule, dims: Sequence[TileDim], alone: bool) -> bool:
    """Return whether threads hold rows in the order of instructions (`row_place`).

    Rows of several segments lie as `TileDim` spreads them, as do those that registers hold, and pairs of a lane.
    """
    whole = reads_shared_matrices(loop.mma) and MMA_INSTRUCTIONS[loop.mma].held.size <= HALF_BYTES
    return alone and whole and dims[loop.rows].vector == ACCUMULATOR_VECTOR[0]


def row_vector(extent: int, deep: bool, along: bool) -> int:
    """Return the neighbours of a lane along rows.

    Results `along` the rows leave in pairs, if A lies along the depth and a warp has 16 neighbouring rows.
    """
    whole = ACCUMULATOR_THREADS[0] * ROW_PAIR
    return ROW_PAIR if deep and along and extent % whole == 0 else 1


def exchanges_lanes(reduction: Reduction, loop: ReductionSchedule, dims: Sequence[TileDim], own: Sequence[str]) -> bool:
    """Return whether lanes exchange the results of a product.

    `own` are the segment's reductions.
    """
    tiles = (matrix_tile(reduction, loop, dims, choice, own) for choice in loop.staging)
    return any(tile is not None and tile.axis and tile.exchanged for tile in tiles)


def shared_matrix_faults(
    reduction: Reduction, loop: ReductionSchedule, dims: Sequence[TileDim], own: Sequence[str], chained: bool = False
) -> Iterator[str]:
    """Yield why a warpgroup cannot multiply a reduction's operands in shared memory.

    Where products are `chained` in registers, parts are multiplied one by one, and rows may lie in registers.
    """
    atom, rows, columns = MMA_INSTRUCTIONS[loop.mma], dims[loop.rows], dims[loop.columns]
    if rows.threads * LANES // ACCUMULATOR_THREADS[0] % (WARPGROUP * LANES):
        yield f"atom {atom.name}: its rows lie along whole warpgroups"
    if columns.threads != ACCUMULATOR_THREADS[1] or columns.block not in atom.columns:
        yield f"atom {atom.name}: its columns are one of {', '.join(map(str, atom.columns))} of one warp"
    if rows.thread % runs(atom)[0]:
        yield f"atom {atom.name}: a thread holds {rows.thread} rows, not pairs"
    least = min(MIN_PRODUCT_STAGES, prod(dim.trips for dim in loop.dims))
    tiles = [matrix_tile(reduction, loop, dims, choice, own, not chained) for choice in loop.staging]
    held = any(tile is not None and tile.held and not tile.layout.deep for tile in tiles)
    pair = 1 if chained or atom.held.size > HALF_BYTES else ROW_PAIR
    if rows.vector not in (1, pair) and not held:
        yield f"atom {atom.name}: rows have vectors of 1 or 2 in shared memory"
    if not chained and (loop.stages < least or loop.prefetch or len(loop.staging) != 2):
        yield f"atom {atom.name}: both operands lie in rings of at least {least} stages"
        return
    for tile in tiles:
        assert tile is not None, "mma_operands is checked before"
        if tile.held and not tile.layout.deep:
            if tile.layout.swizzle != held_swizzle(rows.vector) or rows.vector > MAX_HELD_VECTOR:
                yield f"atom {atom.name}: rows that registers hold have a swizzle for their vectors"
            continue
        yield from (f"atom {atom.name}: {fault}" for fault in tile.layout.faults(atom.k))
        if not tile.layout.deep and tile.exchanged and tile.dim.vector != EXCHANGED_VECTOR:
            yield f"atom {atom.name}: lanes exchange pairs for {EXCHANGED_VECTOR} neighbours"
