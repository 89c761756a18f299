"""Rules about the sizes of candidate schedules.

One text serves arrays of candidates and a single schedule.

A rule yields findings: where it is broken, and a message with its values. Enumeration asks where any is broken; the
verifier formats the messages of one schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from ...ir import FusedGroup, Target, Var
from ..geometry import (
    REGISTER_STAGED_ORDER,
    Count,
    Geometry,
    can_stream_rows,
    has_alternating_sets,
    least_block,
    least_chunk,
    next_power,
)
from ..model import Features

#: Most operations of the unrolled body of a loop, per thread: compile time grows superlinearly past it.
MAX_BODY = 4096
#: Where a rule is broken, a message, and the values that its braces stand for.
Finding: TypeAlias = tuple[Any, ...]


@frozen(slots=False)
class ScheduleSizes:
    """Sizes of a template's candidates, or of one schedule, per segment."""

    group: FusedGroup
    target: Target
    parts: Sequence[Geometry]

    @cached_property
    def threads(self) -> Count:
        """Threads of a block."""
        found: Count = 0
        for part in self.parts:
            found = np.maximum(found, part.threads)
        return found


Rule: TypeAlias = Callable[[ScheduleSizes], Iterator[Finding]]


def is_broken(findings: Iterable[Finding]) -> Count:
    """Return where candidates break a rule with these findings."""
    found: Count = np.bool_(False)
    for where, *_ in findings:
        found = np.logical_or(found, where)
    return found


def messages(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a message for each finding of a rule in one schedule."""
    for where, text, *values in findings:
        if np.any(where):
            yield text.format(*([int(v) for v in value] if isinstance(value, tuple) else value for value in values))


def check_threads_fit(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A block has no more threads than the machine allows."""
    most = sizes.target.MAX_thread
    yield sizes.threads > most, "{} threads in a block, at most {}", sizes.threads, most


def check_tiles_divide(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Block, thread tile and vector are nested multiples."""
    for part in sizes.parts:
        for dim, block, thread, vector in zip(part.structure.dims, part.block, part.thread, part.vector, strict=True):
            text = "dim {}: block {} must be a multiple of thread {}, and that of vector {}"
            yield (
                np.not_equal(block % thread, 0) | np.not_equal(thread % vector, 0),
                text,
                _name(dim),
                block,
                thread,
                vector,
            )


def check_tiles_fit(sizes: ScheduleSizes) -> Iterator[Finding]:
    """No block is larger than its dim takes.

    Readers determine those of tensors in shared memory."""
    for part in sizes.parts:
        parts = part.structure
        for d, dim in enumerate(parts.dims if not parts.shared else ()):
            extent = prod(a.extent for a in dim)
            limit = max(next_power(extent), least_block(parts.atom, parts.rows, parts.columns, d))
            taken = part.block[d] * part.turns if d == parts.scatter_dim else part.block[d]
            yield taken > limit, "dim {}: block {} exceeds its extent {} needlessly", _name(dim), part.block[d], extent


def check_warps_divide(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A warp layout divides the threads of each dim."""
    for part in sizes.parts:
        for count, along in zip(part.counts, part.warp, strict=False):
            uneven = np.not_equal(count % np.maximum(along, 1), 0)
            yield uneven, "the warp map {} does not divide the threads of each dim", part.warp


def check_chunks_fit(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A trip of a loop takes at most all elements."""
    for part in sizes.parts:
        for loop, chunk in zip(part.structure.loops, part.chunk, strict=True):
            extent = prod(a.extent for a in loop)
            limit = max(next_power(extent), least_chunk(part.structure.atom))
            yield chunk > limit, "loop {}: chunk {} exceeds its extent {} needlessly", _name(loop), chunk, extent


def check_fragment_sets(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A K block with prefetched fragments takes an even number of steps.

    Fragments loaded ahead alternate between registers."""
    for part in (p for p in sizes.parts if p.structure.atom):
        even = has_alternating_sets(part.structure.atom, part.chunk[0], part.lanes)
        yield np.logical_and(part.loop.ahead, np.logical_not(even)), "fragments are loaded ahead of an odd step"


def check_cached_copies(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Only pipelined copies have a cache policy: loads always cache."""
    for part in (p for p in sizes.parts if p.structure.stages_any):
        alone = np.logical_and(part.staging.cached, np.less_equal(part.loop.stages, 1))
        yield alone, "operands that are cached need a ring of at least 2 buffers"


def check_carried_tiles(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Register staging stores vectors, and excludes matrix instructions."""
    for part in (p for p in sizes.parts if p.structure.stages_any):
        odd = np.not_equal(part.staging.pad % 2, 0) | bool(part.structure.atom)
        carried = np.equal(part.order, REGISTER_STAGED_ORDER)
        yield carried & odd, "operands that are carried need an even padding, and no atom"


def check_rows_kept(sizes: ScheduleSizes) -> Iterator[Finding]:
    """The row cache holds whole trips over a longer row."""
    for part in (p for p in sizes.parts if p.structure.caches_rows):
        kept, chunk, trips = part.spread.kept, part.chunk[0], part.trips[0]
        whole = np.greater(trips, 1) & np.equal(kept % chunk, 0) & np.less_equal(kept, trips * chunk)
        text = "{} elements of rows are kept, not whole ones of {} trips of {}"
        yield np.less(kept, 0) | np.greater(kept, 0) & np.logical_not(whole), text, kept, trips, chunk


def check_rows_whole(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Reduction threads hold a row of values in one trip."""
    for part in sizes.parts:
        for k in part.structure.whole:
            held = np.equal(part.trips[k], 1) & np.greater(part.lanes, 1) & (not part.structure.stages_any)
            yield np.logical_not(held), "loop {}: lanes do not hold its whole row", _name(part.structure.loops[k])


def check_rows_passed_on(sizes: ScheduleSizes) -> Iterator[Finding]:
    """All threads of the block hold rows that a later segment reads.

    The reader of an element may then write it. Rows are streamed only where sums can be rescaled, in parts of whole
    chunks of the later loops.
    """
    later = sizes.parts[-1].chunk
    for segment, part in zip(sizes.group.segments, sizes.parts, strict=True):
        if not part.structure.passes_rows and not any(
            o.extra and o.tensor in part.structure.shared for o in segment.outputs
        ):
            continue
        alone = np.less_equal(part.lanes, 1) | np.not_equal(part.threads, sizes.threads)
        yield alone, "rows are passed on by {} of {} threads", part.threads, sizes.threads
        for chunk, trips in zip(part.chunk, part.trips, strict=True):
            parted = np.greater(trips, 1)
            if not can_stream_rows(sizes.group):
                yield parted, "rows come in parts whose sums cannot be scaled again"
            uneven = np.not_equal(chunk % (part.lanes * part.row_vector), 0)
            yield uneven, "rows come in parts of {} elements, which lanes do not divide", chunk
            for other in later:
                broken_up = parted & np.not_equal(chunk % other, 0)
                yield broken_up, "rows come in parts that are no whole chunks of {}", later


def check_parts_whole(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Streamed parts are tiles of the first segment.

    They are whole numbers of the later loops' chunks."""
    first, last = sizes.parts[0], sizes.parts[-1]
    if last.structure.parts < 0:
        return
    chunks = tuple(last.chunk[k] for k in last.structure.streamed_loops)
    uneven: Count = np.not_equal(first.block[last.structure.parts], last.part) | np.greater(last.lanes, 1)
    for chunk in chunks:
        uneven = uneven | np.not_equal(last.part % chunk, 0)
    yield uneven & np.greater(last.part, 0), "parts of {} elements are no whole chunks of {}", last.part, chunks


def _name(axes: Sequence[Var]) -> str:
    return "*".join(a.name for a in axes)


def check_tiles_several(features: Features, _target: Target) -> Iterator[Finding]:
    """Every staged operand has a tile of several elements."""
    yield np.less_equal(features.tile, 1), "a staged tile has one element only"


def check_shared_memory_fits(features: Features, target: Target) -> Iterator[Finding]:
    """A block takes no more shared memory than there is."""
    most = target.MAX_shared
    yield features.shared > most, "{:.0f} bytes of shared memory, at most {}", features.shared, most


def check_registers_suffice(features: Features, _target: Target) -> Iterator[Finding]:
    """A thread needs no more registers than it gets without spills."""
    needed, limit = features.needed, features.limit
    yield needed > limit, "about {:.0f} registers per thread, at most {:.0f}", needed, limit


def check_bodies_compile(features: Features, _target: Target) -> Iterator[Finding]:
    """No unrolled body is so long that compiling it takes minutes."""
    body = features.body
    yield body > MAX_BODY, "an unrolled body of {:.0f} operations per thread, at most {}", body, MAX_BODY


#: Rules about sizes alone, and about the counts that follow from them.
SIZE_RULES: tuple[Rule, ...] = (
    check_tiles_divide,
    check_tiles_fit,
    check_warps_divide,
    check_chunks_fit,
    check_fragment_sets,
    check_cached_copies,
    check_carried_tiles,
    check_rows_kept,
    check_rows_whole,
    check_rows_passed_on,
    check_parts_whole,
    check_threads_fit,
)
FEATURE_RULES: tuple[Callable[[Features, Target], Iterator[Finding]], ...] = (
    check_tiles_several,
    check_shared_memory_fits,
    check_registers_suffice,
    check_bodies_compile,
)
