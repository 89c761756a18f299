"""Schedule parameters of K loops, and their rules.

K blocks, stages, tile layouts and cache policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from ...ir import Reduction, Segment, Target, expr_variables, is_affine, operands, reads, variables
from ..geometry import (
    REGISTER_STAGED_ORDER,
    ScheduleParameter,
    SegmentTemplate,
    has_alternating_sets,
    least_chunk,
    main_read,
    multiplies_one_row,
    next_power,
    powers,
)
from .rules import Finding, ScheduleSizes, axes_text

#: Stages of a K loop; matrix instructions need their K blocks early.
STAGES, MMA_STAGES = (1, 2, 3, 4), (1, 2, 3, 4, 6, 8)
#: Loops of a multiple of so many elements end even with chunks that are powers of two; of the others, one of up to
#: `WHOLE` elements may be a single chunk.
CHUNK_UNIT, MAX_SINGLE_CHUNK = 8, 128
#: Most strides of reduction threads in one trip over a row.
MAX_STRIDES = 64
#: Most of them with an odd factor: with 49 a sum of channels took 1.9 times as long as with guards.
MAX_ODD_STRIDES = 32


def stageable_operands(segment: Segment, reduction: Reduction, shared: Iterable[str]) -> tuple[int, ...]:
    """Return the operands of a reduction that may be staged.

    They are indexed directly, and not in shared memory already.
    """
    held = set(shared)
    found = []
    for position, part in enumerate(operands(reduction, [r.name for r in segment.reductions])):
        inner = reads(part)
        direct = all(is_affine(i) or not variables(i) <= set(reduction.reduce) for r in inner for i in r.indices)
        if direct and not any(r.tensor in held for r in inner):
            found.append(position)
    return tuple(found)


#: Elements of a walked row whose terms are loaded together.
WALKED_BLOCKS = (32, 16, 8, 4, 2, 1)


def chunk_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, coarse: bool
) -> Iterator[ScheduleParameter]:
    """Yield the K block of each reduce dim.

    Threads hold an odd number of a row's elements only where they neither sort nor scan them.
    """
    most_odd = 0 if any(r.along for r in segment.reductions) else MAX_ODD_STRIDES
    for k, loop in enumerate(structure.loops):
        extent = prod(a.extent for a in loop)
        if k == structure.walked:
            yield ScheduleParameter.of(f"{prefix}c{k}", [n for n in WALKED_BLOCKS if n < 2 * extent][:4])
            continue
        values = (
            _multiples(extent, MAX_STRIDES if multiplies_one_row(segment) else most_odd)
            if structure.reduction_threads
            else _chunks(extent, len(loop) > 1, structure, coarse)
        )
        yield ScheduleParameter.of(f"{prefix}c{k}", values)


def staging_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool, widest: int
) -> Iterator[ScheduleParameter]:
    """Yield stages, padding and layout of staged tiles."""
    finer = widest // (target.vector_bytes // 4)
    yield ScheduleParameter.of(f"{prefix}stages", (1, 2) if coarse or not target.async_copy else STAGES)
    pads = (0, finer, 4 * finer)  # a word, and as many as keep vectors aligned
    deep = target.banked and _stages_deep(segment, structure)
    yield ScheduleParameter.of(f"{prefix}pad", (pads[-1 if deep else 0],) if coarse or not target.banked else pads)
    yield ScheduleParameter.of(f"{prefix}order", layouts(deep, coarse, target))


def cache_parameter(prefix: str, target: Target, coarse: bool) -> ScheduleParameter:
    """Return the cache policy of copies: 1 leaves their data in L1."""
    return ScheduleParameter.of(f"{prefix}l1", (0, 1) if target.async_copy and not coarse else (0,))


def ring_parameter(prefix: str, rings: Sequence[tuple[int, int, int, int]]) -> ScheduleParameter:
    """Return stages, prefetch distance, cache policy and layout as one parameter."""
    return ScheduleParameter(tuple(f"{prefix}{name}" for name in ("stages", "prefetch", "l1", "order")), tuple(rings))


def layouts(deep: bool, coarse: bool, target: Target) -> tuple[int, ...]:
    """Return the candidate layouts of staged tiles.

    `deep` tells whether any operand's memory runs along the depth.
    """
    if coarse or not target.banked:
        return (0, 2, REGISTER_STAGED_ORDER) if deep else (0,)
    return (0, 1, 2, REGISTER_STAGED_ORDER) if deep else (0, 1, 2)


def _stages_deep(segment: Segment, structure: SegmentTemplate) -> bool:
    """Return whether the memory of a staged operand runs along a reduced axis and no other."""
    own = [r.name for r in segment.reductions]
    for reduction, staged in zip(segment.reductions, structure.staged, strict=True):
        parts = operands(reduction, own)
        for main in (main_read(parts[k], frozenset(segment.axes + reduction.reduce)) for k in staged):
            last = variables(main.indices[-1]) if main.indices else frozenset()
            if last and last <= frozenset(reduction.reduce) and not last >= expr_variables(main):
                return True
    return False


def _chunks(extent: int, flat: bool, structure: SegmentTemplate, coarse: bool) -> tuple[int, ...]:
    if extent <= 7 and not flat:
        return tuple(sorted({1, extent}))
    found = set(powers(4 if flat else 1, min(next_power(extent), 64)))
    if extent <= 64:
        found.add(extent)
    elif extent % CHUNK_UNIT and not flat:
        # No power of two divides such a loop: its last trip would do the work of a whole one for little.
        found |= {max(n for n in range(1, 65) if extent % n == 0), *((extent,) if extent <= MAX_SINGLE_CHUNK else ())}
    if coarse and len(found) > 4:
        found &= {1, 8, 16, 32, *((extent,) if extent <= MAX_SINGLE_CHUNK else ())}
    return tuple(sorted(found))


def _multiples(extent: int, most_odd: int) -> tuple[int, ...]:
    """Return the candidate strides of `lanes * row_vector` elements in one trip over a row.

    Those of the row's odd factors, up to `most_odd`, are among them: trips then end with the row, and no element has a
    guard.
    """
    most = min(next_power(extent), MAX_STRIDES)
    odd = (n for n in range(3, most_odd + 1, 2) if extent % n == 0)
    more = (n * power for n in odd for power in powers(1, min(most, most_odd) // n))
    return tuple(sorted({*powers(1, most), *more}))


def check_chunks_fit(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A trip of a loop takes at most all elements."""
    for part in sizes.parts:
        for loop, chunk in zip(part.structure.loops, part.block_k, strict=True):
            extent = prod(a.extent for a in loop)
            limit = max(next_power(extent), least_chunk(part.structure.mma))
            yield chunk > limit, "loop {}: chunk {} exceeds its extent {} needlessly", axes_text(loop), chunk, extent


def check_fragment_sets(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A K block with prefetched fragments takes an even number of steps.

    Fragments loaded ahead alternate between registers."""
    for part in (p for p in sizes.parts if p.structure.mma):
        even = has_alternating_sets(part.structure.mma, part.block_k[0], part.reduction_threads)
        yield np.logical_and(part.loop.prefetch, np.logical_not(even)), "fragments are loaded ahead of an odd step"


def check_cached_copies(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Only pipelined copies of threads have a cache policy: others always cache."""
    for part in (p for p in sizes.parts if p.structure.stages_any):
        alone = np.logical_and(part.staging.l1, np.less_equal(part.loop.stages, 1))
        yield alone, "operands that are cached need a ring of at least 2 buffers"
        if np.any(part.loop.tma):
            yield np.logical_and(part.staging.l1, part.loop.tma), "bulk copies have no cache policy"


def check_carried_tiles(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Register staging stores vectors, and excludes matrix instructions."""
    for part in (p for p in sizes.parts if p.structure.stages_any):
        odd = np.not_equal(part.staging.pad % 2, 0) | bool(part.structure.mma)
        carried = np.equal(part.order, REGISTER_STAGED_ORDER)
        yield carried & odd, "operands that are carried need an even padding, and no atom"
