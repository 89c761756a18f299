"""Schedule templates and parameters of chains in registers.

Warps divide the rows; a warp computes whole parts of a row. So the sizes of all segments follow from the rows of a
block, the length of a part, and the stages of both contractions, which are one pipeline (`geometry.row_sharing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as cartesian
from math import prod

import numpy as np

from ...ir import (
    ACCUMULATOR_THREADS,
    HALF_BYTES,
    MMA_INSTRUCTIONS,
    PERSISTENT,
    WARPGROUP,
    WITH_PRODUCER,
    DType,
    FusedGroup,
    MmaInstruction,
    Reduction,
    Target,
    block_scales,
    expr_variables,
    operands,
    variables,
)
from ..geometry import (
    EXCHANGED_VECTOR,
    MIN_PRODUCT_STAGES,
    ROW_LANES,
    ROW_VECTOR,
    Count,
    RegisterChain,
    ScheduleParameter,
    SegmentTemplate,
    balanced_section,
    ceil_div,
    chained_vector,
    is_register_chain,
    main_read,
    mask_bounds,
    next_power,
    persistent_blocks,
    product,
    promotion_depth,
    register_chain,
    runs,
)
from .fixed_order import adds_like_warps
from .mma_templates import multiplies
from .rules import Finding, ScheduleSizes
from .tile_chains import tile_chain_parameters, tile_chain_templates

#: Warps along the rows, instructions of one along them, elements of a part, stages.
CHAIN_WARPS, CHAIN_ROWS, CHAIN_PARTS, CHAIN_STAGES = (1, 2, 3, 4, 6, 7, 8), (1, 2), (32, 64, 96, 128), (1, 2, 3, 4)
#: Least elements of a part that a producer brings: warpgroups wait for shorter ones longer than they multiply them.
MIN_PRODUCED_PART = 96
#: Elements of a part of products of warpgroups.
WARPGROUP_PARTS = (64, 96, 112, 128)
#: Warpgroups along the rows: more have too few registers for two parts.
CHAIN_WARPGROUPS = (1, 2, 3)
#: Longest row that is one part.
MAX_SINGLE_PART = 256


def chain_templates(group: FusedGroup, target: Target) -> Iterator[tuple[SegmentTemplate, ...]]:
    """Yield the templates of a group's segments as a chain in registers."""
    yield from tile_chain_templates(group, target)
    chain = register_chain(group)
    for name, _ in target.atoms if chain is not None else ():
        atom = MMA_INSTRUCTIONS[name]
        products = [group.segments[n].reductions[0] for n in (0, 2)]
        able = _chains(atom) and all(multiplies(atom, r, group) for r in products)
        able = able and (adds_like_warps(name) or not target.invariant)
        if chain is not None and able and _promotes_last_alone(products, name):
            if atom.reads_shared and group.segments[2].axes[chain.rows[2]].extent == 1:
                continue  # one row is no tile in shared memory
            # A warpgroup reads its first rows in shared memory, and takes those of the last product from registers.
            staged = (True,) if atom.reads_shared else (False, True)
            yield from (_templates(group, chain, name, both) for both in staged)


def _promotes_last_alone(products: Sequence[Reduction], name: str) -> bool:
    """Return whether no sums of a chain are promoted but those of the last product, part by part."""
    scaled = any(r.math or block_scales(r.body, r.reduce)[1] for r in products)
    first, last = (promotion_depth(r, name) for r in products)
    return not scaled and not first and (not last or MMA_INSTRUCTIONS[name].reads_shared)


def _chains(atom: MmaInstruction) -> bool:
    """Return whether lanes hold results as they hold the first operand: in two runs of columns."""
    several = atom.k == 2 * ROW_LANES * chained_vector(atom.name)
    return atom.held.size <= HALF_BYTES and atom.accumulator is DType.F32 and several


def _templates(group: FusedGroup, chain: RegisterChain, name: str, both: bool) -> tuple[SegmentTemplate, ...]:
    """Return templates whose first factor stays in registers, or is staged once where `both` factors are."""
    found = []
    sides = ((chain.rows[0], chain.column), (0, 0), (chain.rows[2], chain.width))
    for position, (segment, (rows, columns)) in enumerate(zip(group.segments, sides, strict=True)):
        dims = tuple((axis,) for axis in segment.axes)
        written = tuple(o.tensor for o in segment.outputs if o.tensor in group.shared)
        if position == 1:
            loops, reduces = (segment.reductions[0].reduce,), tuple((0,) for _ in segment.reductions)
            none = tuple(() for _ in reduces)
            found.append(
                SegmentTemplate(dims, loops, reduces, none, reduction_threads=True, shared=written, streams=True)
            )
            continue
        (reduction,) = segment.reductions
        parts = operands(reduction, (reduction.name,))
        second = next(n for n, part in enumerate(parts) if segment.axes[columns] in expr_variables(part))
        staged = tuple(range(len(parts))) if both and position == 0 else (second,)
        found.append(
            SegmentTemplate(dims, (reduction.reduce,), ((0,),), (staged,), shared=written, mma=name, rows=rows,
                            columns=columns)
        )  # fmt: skip
    return tuple(found)


def chain_parameters(
    structures: Sequence[SegmentTemplate], target: Target, coarse: bool
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of a chain in registers."""
    if len(structures) == 2:
        yield from tile_chain_parameters(structures, target, coarse)
        return
    last, atom = structures[2], MMA_INSTRUCTIONS[structures[2].mma]
    for d, axes in enumerate(last.dims):
        names, extent = tuple(f"s2.{kind}{d}" for kind in "tev"), prod(a.extent for a in axes)
        values: tuple[tuple[int, ...], ...] = ((1, 1, 1),)
        if d == last.rows and atom.reads_shared:
            groups = (w for w in CHAIN_WARPGROUPS if w * atom.m <= max(next_power(extent), atom.m))
            values = tuple((w * WARPGROUP * ACCUMULATOR_THREADS[0], runs(atom)[0], 1) for w in groups)
        elif d == last.rows:
            limit, rows = max(next_power(extent), atom.m), ACCUMULATOR_THREADS[0]
            values = tuple(
                (w * rows, n * (atom.m // rows), 1)
                for w, n in cartesian(CHAIN_WARPS, CHAIN_ROWS)
                if w * n * atom.m <= limit
            )
        elif d == last.columns:
            columns = ceil_div(extent, atom.n) * atom.n
            if atom.reads_shared:
                columns = next((n for n in atom.columns if n >= columns), columns)
            # Lanes exchange pairs of results, and then store longer vectors.
            several = atom.reads_shared and columns % (ROW_LANES * EXCHANGED_VECTOR) == 0
            vectors = (ROW_VECTOR, EXCHANGED_VECTOR) if several else (ROW_VECTOR,)
            values = tuple((ROW_LANES, columns // ROW_LANES, vector) for vector in vectors)
        yield ScheduleParameter(names, values)
    row = prod(a.extent for a in structures[1].loops[0])
    whole = ceil_div(row, atom.k) * atom.k
    every = WARPGROUP_PARTS if atom.reads_shared else CHAIN_PARTS
    parts = tuple(n for n in every if n < whole and n % atom.k == 0)
    single = next((n for n in atom.columns if n >= whole), whole) if atom.reads_shared else whole
    yield ScheduleParameter.of("s1.part", (*parts, *((single,) if single <= MAX_SINGLE_PART else ())))
    stages = CHAIN_STAGES[:2] if coarse or not target.async_copy else CHAIN_STAGES
    yield ScheduleParameter.of("s2.stages", stages)
    if atom.reads_shared:
        yield ScheduleParameter.of("s2.tma", (0, WITH_PRODUCER, PERSISTENT))


def _results_vector(group: FusedGroup, columns: Count) -> Count:
    """Return the neighbours of a lane's results.

    Lanes of warpgroups exchange pairs of results where the other factor lies along them: pairs of halves are stored as
    half a sector of memory, eight neighbours as whole sectors.
    """
    chain, (reduction,) = register_chain(group), group.segments[2].reductions
    found = [main_read(o) for o in operands(reduction, (reduction.name,))]
    deep = chain is None or any(
        r.tensor != chain.weights and not variables(r.indices[-1]).isdisjoint(reduction.reduce) for r in found
    )
    halves = all(group.tensors[o.tensor].dtype.size == HALF_BYTES for o in group.segments[2].outputs)
    whole = np.equal(columns % (ROW_LANES * EXCHANGED_VECTOR), 0) & (halves and not deep)
    return np.where(whole, EXCHANGED_VECTOR, ROW_VECTOR)


def check_chain_held(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Lanes of a chain in registers hold values as its segments agree.

    A part is a K block of the last segment, and all of the row's lanes are in one warp.
    """
    if len(sizes.parts) < 3 or not is_register_chain([part.structure for part in sizes.parts]):
        return
    first, rows, last = sizes.parts
    column, width = first.structure.columns, last.structure.columns
    vector = chained_vector(last.structure.mma)
    lanes = np.not_equal(rows.reduction_threads, ROW_LANES) | np.not_equal(rows.row_vector, vector)
    uneven = np.not_equal(first.block[column], rows.block_k[0]) | np.not_equal(last.block_k[0], rows.block_k[0])
    spread = np.not_equal(first.counts[column], ROW_LANES) | np.not_equal(last.counts[width], ROW_LANES)
    unequal = np.not_equal(first.threads, last.threads) | np.not_equal(rows.threads, last.threads)
    many = np.greater(first.trips[0], 1) | np.not_equal(first.loop.stages, last.loop.stages)
    yield (
        lanes | spread | unequal,
        "a row of a chain in registers lies in {} lanes, expected {}",
        first.counts[column],
        4,
    )
    single = np.not_equal(np.equal(rows.trips[0], 1), np.equal(last.loop.stages, 1))
    yield single, "parts of a chain in registers lie in a ring of {} stages, 1 for one part", last.loop.stages
    produced = np.greater(last.loop.tma, 0) & np.greater(rows.trips[0], 1)
    idle = produced & np.less(last.loop.stages, MIN_PRODUCT_STAGES)
    yield idle, "a producer has no free stage of {}: products read two", last.loop.stages
    in_place = MMA_INSTRUCTIONS[last.structure.mma].reads_shared
    expected = _results_vector(sizes.group, last.block[width]) if in_place else ROW_VECTOR
    yield (
        np.not_equal(last.vector[width], expected),
        "lanes store {} neighbours, expected more or fewer",
        last.vector[width],
    )
    every = promotion_depth(sizes.group.segments[2].reductions[0], last.structure.mma) or rows.block_k[0]
    yield np.greater(rows.block_k[0], every), "sums of a chain are promoted after {} elements at most", every
    again = np.equal(last.loop.tma, PERSISTENT)
    if mask_bounds(sizes.group):
        turns, place = [ceil_div(prod(a.extent for a in d), b) for d, b in zip(
            last.structure.dims, last.block, strict=True)], last.structure.rows  # fmt: skip
        blocks = product(turns)
        section = balanced_section(turns[place], persistent_blocks(blocks, sizes.target.NUM_SM))
        yield again & np.not_equal(blocks // turns[place] % section, 0), "turns of {} tiles differ in work", blocks
    alone = again & np.equal(rows.trips[0], 1)
    yield alone, "a producer brings nothing of the next tile to {} stage", last.loop.stages
    yield produced & np.less(rows.block_k[0], MIN_PRODUCED_PART), "a producer's part has {} elements", rows.block_k[0]
    yield uneven | many, "a chain in registers has parts of {} elements, one K block each", rows.block_k[0]
