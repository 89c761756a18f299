"""Schedule templates, and the axis classes that they are derived from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ...ir import FusedGroup, Segment, Var, expr_variables, is_contraction, operands, reads, streamed_variables
from .matrix_instructions import reads_shared_matrices


@frozen(cache_hash=True)
class ScheduleParameter:
    """A numeric schedule parameter, or a few chosen together.

    `names` are its names within the template, `values` its possible values. Threads, thread tile and vector of a dim
    are one parameter, so that combinations that are pointless for its extent are no candidates.
    """

    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]

    @cached_property
    def table(self) -> np.ndarray[Any, Any]:
        """The values as an array, a row for each name."""
        return np.asarray(self.values, dtype=np.int64).T.copy()

    @staticmethod
    def of(name: str, values: Iterable[int]) -> ScheduleParameter:
        """Return a parameter of one number."""
        return ScheduleParameter((name,), tuple((v,) for v in values))


@frozen(cache_hash=True)
class SegmentTemplate:
    """Template of one segment: its discrete choices.

    `dims` are the axes of each tile dim; `loops` the distinct reduce dims of the segment; `reduces` gives for each
    reduction the positions of its dims in `loops`, `staged` the operands it stages. `shared` names the tensors the
    segment leaves in shared memory. `patch` holds two dims of different class that a warp may be laid over, the faster
    last. A segment that `caches_rows` rows may cache part of them in shared memory between statements. With a matrix
    instruction `mma`, the rows of its C lie along the dim at position `rows`, the columns along that at `columns`; its
    operands may be staged by `bulk` copies.
    Reduction threads hold the rows of loops in `whole` in one trip. In a privatised scatter, blocks take several tiles
    along the dim at position `scatter_dim`, which is -1 elsewhere; a direct one adds up to `additions` neighbours of
    the last dim at once. A segment that `streams` may pass rows on in
    parts; it may
    also read the segment before in parts, along the axis of that at position `parts`, if there is one, which the loops
    at positions `streamed_loops` run along. In an exchange, a block takes the dims at positions `exchanged` whole.
    Blocks with column sums take `part_rows` instances, in several tiles. The blocks of a cluster share the rows of a
    segment that `clusters`.
    Matrix instructions of a `boxed` segment fill a box in shared memory. A thread takes the rows of the loop at
    position `walked` whole, element by element, if there is one. A block takes dims at positions `summed` whole, too.
    Reduction threads `over_columns` are numbered slowest; so many neighbours of a column lie together. Sums keep axes
    of rows: they add up runs of `kept` elements, with so many sums of each.
    """

    dims: tuple[tuple[Var, ...], ...]
    loops: tuple[tuple[Var, ...], ...]
    reduces: tuple[tuple[int, ...], ...]
    staged: tuple[tuple[int, ...], ...]
    reduction_threads: bool = False
    shared: tuple[str, ...] = ()
    patch: tuple[int, ...] = ()
    mma: str = ""
    rows: int = 0
    columns: int = 0
    caches_rows: bool = False
    whole: tuple[int, ...] = ()
    scatter_dim: int = -1
    additions: int = 1
    streams: bool = False
    parts: int = -1
    streamed_loops: tuple[int, ...] = ()
    bulk: bool = False
    exchanged: tuple[int, ...] = ()
    part_rows: int = 0
    clusters: bool = False
    boxed: bool = False
    walked: int = -1
    over_columns: int = 0
    summed: tuple[int, ...] = ()
    kept: tuple[int, int] = (0, 0)

    @property
    def tiled_dim(self) -> int:
        """Position of the dim with several tiles of a block, or -1."""
        return 0 if self.part_rows else self.scatter_dim

    @property
    def passes_rows(self) -> bool:
        """True where reduction threads hold rows that a later segment reads.

        That segment's block and threads determine the sizes.
        """
        return self.reduction_threads and bool(self.shared)

    @property
    def holds_results(self) -> bool:
        """True where results stay in registers for the next segment."""
        return bool(self.mma) and bool(self.shared) and not self.boxed

    @property
    def stages_any(self) -> bool:
        """True where any operand is staged."""
        return any(self.staged)


@frozen(cache_hash=True)
class ScheduleTemplate:
    """Schedule template of a group, and its schedule parameters.

    `size` is the number of candidate schedules.
    """

    segments: tuple[SegmentTemplate, ...]
    parameters: tuple[ScheduleParameter, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each knob."""
        return tuple(len(k.values) for k in self.parameters)

    @property
    def size(self) -> int:
        """Number of candidate schedules, legal or not."""
        return prod(self.shape)


def next_power(value: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()


def outermost_dim(dims: Iterable[Sequence[Var]]) -> int:
    """Return the position of the first dim of several elements, or 0."""
    return next((n for n, axes in enumerate(dims) if any(a.extent > 1 for a in axes)), 0)


def traffic_dim(segment: Segment, structure: SegmentTemplate) -> int:
    """Return the first dim of several elements along which blocks share reads.

    Dims before it number independent products of warpgroups: all factors of the contraction depend on them. The
    calibration of other kernels takes the outermost dim.
    """
    dims = structure.dims
    if not reads_shared_matrices(structure.mma):
        return outermost_dim(dims)
    own = [r.name for r in segment.reductions]
    main = next((r for r in segment.reductions if is_contraction(r, own)), None)
    factors = (
        [{p for r in reads(part) for i in r.indices for p, _ in i.terms} for part in operands(main, own)]
        if main
        else []
    )
    every = set.intersection(*factors) if factors else set()
    sides = (n for n, axes in enumerate(dims) if any(a.extent > 1 and a not in every for a in axes))
    return next(sides, outermost_dim(dims))


def powers(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from `low` to `high`."""
    return tuple(1 << k for k in range(32) if low <= 1 << k <= high)


@lru_cache(maxsize=4096)
def axis_classes(segment: Segment) -> tuple[frozenset[int], ...]:
    """Return the main reduction's operands that each parallel axis indexes.

    One operand: class M or N; all of them: *batch*; none: the axis only repeats. The main reduction is the first
    contraction, or the first reduction where there is none.
    """
    if not segment.reductions:
        return tuple(frozenset[int]() for _ in segment.axes)
    own = [r.name for r in segment.reductions]
    main = next((r for r in segment.reductions if is_contraction(r, own)), segment.reductions[0])
    parts = [expr_variables(p) for p in operands(main, own)]
    return tuple(frozenset(k for k, used in enumerate(parts) if axis in used) for axis in segment.axes)


def class_runs(segment: Segment) -> tuple[tuple[Var, ...], ...]:
    """Return the maximal runs of neighbouring axes of one class.

    Axes of extent 1 join no run.
    """
    runs: list[tuple[Var, ...]] = []
    last: frozenset[int] | None = None
    for axis, kind in zip(segment.axes, axis_classes(segment), strict=True):
        if axis.extent == 1:
            runs.append((axis,))
            last = None
        elif last == kind:
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
            last = kind
    return tuple(runs)


def is_matrix_like(segment: Segment) -> bool:
    """Return whether a contraction has axes of both classes, M and N.

    Data is then reused in both directions.
    """
    return len(_product_classes(segment)) >= 2


def multiplies_one_row(segment: Segment) -> bool:
    """Return whether contractions have axes of one class beside batches.

    They multiply single rows and a matrix. A sum of elementwise products has none. Rows that other sums or outputs
    read, too, stay in registers, as in the gradient of a layer norm.
    """
    own = [r.name for r in segment.reductions]
    alone = all(is_contraction(r, own) for r in segment.reductions) and not any(o.extra for o in segment.outputs)
    return alone and len(_product_classes(segment)) == 1


def _product_classes(segment: Segment) -> frozenset[frozenset[int]]:
    """Return the classes M and N of a segment's axes, none without a contraction."""
    own = [r.name for r in segment.reductions]
    kinds = zip(axis_classes(segment), segment.axes, strict=True)
    found = frozenset(k for k, a in kinds if a.extent > 1 and len(k) == 1)
    return found if any(is_contraction(r, own) for r in segment.reductions) else frozenset()


def with_streamed_input(structure: SegmentTemplate, group: FusedGroup, axis: int) -> SegmentTemplate:
    """Return the last segment's template with streamed input.

    Parts divide the given axis, where that is a loop of its own.
    """
    rows = streamed_variables(group)
    along = tuple(k for k, loop in enumerate(structure.loops) if rows & {*loop})
    alone = all(len(structure.loops[k]) == 1 for k in along)
    return evolve(structure, parts=axis, streamed_loops=along) if alone else structure
