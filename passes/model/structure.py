"""What describes a structure of the parameter space, and the classes of axes that structures are derived from."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from attrs import frozen

from ...ir import Segment, Var, expr_variables, is_contraction, operands


@frozen(cache_hash=True)
class Knob:
    """A numeric parameter, or a few that are chosen together: their names within the structure, and the values they may
    take.

    Threads, thread tile and vector of a dim are one knob, so that combinations that are pointless for its extent are no
    points at all.
    """

    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


@frozen(cache_hash=True)
class SegmentStructure:
    """The discrete choices of one segment.

    `dims` are the axes of each tile dim; `loops` the distinct reduce dims of the segment; `reduces` gives for each
    reduction the positions of its dims in `loops`, `staged` the operands it stages. `shared` names the tensors the
    segment leaves in shared memory. `patch` holds two dims of different class that a warp may be laid over, the faster
    last. Where it `keeps` rows, part of them may lie in shared memory between statements. Where an `atom` multiplies,
    the rows of its C lie along the dim at position `rows`, the columns along that at `columns`. The rows of loops in
    `whole` are held by lanes in one trip. Where values that are combined in memory meet in shared memory first, blocks
    take tiles in turns along the dim at position `meets`, -1 where none do. Where it `streams`, rows that it passes on
    may come in parts; so may what it reads of the segment before, along the axis of that at position `parts`, if there
    is one, which the loops at positions `parted` run along.
    """

    dims: tuple[tuple[Var, ...], ...]
    loops: tuple[tuple[Var, ...], ...]
    reduces: tuple[tuple[int, ...], ...]
    staged: tuple[tuple[int, ...], ...]
    lanes: bool = False
    shared: tuple[str, ...] = ()
    patch: tuple[int, ...] = ()
    atom: str = ""
    rows: int = 0
    columns: int = 0
    keeps: bool = False
    whole: tuple[int, ...] = ()
    meets: int = -1
    streams: bool = False
    parts: int = -1
    parted: tuple[int, ...] = ()

    @property
    def passes_rows(self) -> bool:
        """Whether lanes hold rows that a later segment of the kernel reads: its block and its threads say the sizes."""
        return self.lanes and bool(self.shared)

    @property
    def stages_any(self) -> bool:
        """Whether any operand is staged."""
        return any(self.staged)


@frozen(cache_hash=True)
class Structure:
    """The discrete choices of a group and the knobs that remain; `size` is the number of points."""

    segments: tuple[SegmentStructure, ...]
    index: str
    knobs: tuple[Knob, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each knob."""
        return tuple(len(k.values) for k in self.knobs)

    @property
    def size(self) -> int:
        """Number of points, legal or not."""
        return prod(self.shape)


def next_power(value: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()


def powers(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from `low` to `high`."""
    return tuple(1 << k for k in range(32) if low <= 1 << k <= high)


@lru_cache(maxsize=4096)
def axis_classes(segment: Segment) -> tuple[frozenset[int], ...]:
    """Return for each parallel axis the operands of the main reduction that it indexes.

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
    """Return the maximal runs of neighbouring axes of one class; axes of extent 1 join no run."""
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
    """Whether a contraction has axes of two classes, M and N: data is then reused in both directions."""
    kinds = {k for k, a in zip(axis_classes(segment), segment.axes, strict=True) if a.extent > 1 and len(k) == 1}
    own = [r.name for r in segment.reductions]
    return len(kinds) >= 2 and any(is_contraction(r, own) for r in segment.reductions)
