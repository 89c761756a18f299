"""The parameter space of a fused group: its discrete structures, and the numeric knobs of each (DeepCuts Tables 3 and 4 per axis).

A *structure* says which axes are flattened into which tile dim, which reduced axes are flattened, which operands are staged in
shared memory, whether lanes share a reduction, and which index function is used. Its *knobs* are lists of numbers; a point takes one
of each. Everything is read off the accesses of the group, nothing asks which operation it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product as cartesian
from math import prod

from attrs import frozen

from ..ir.expr import expr_variables, reads
from ..ir.index import Var, is_affine, variables
from ..ir.segment import FusedGroup, Reduction, Segment, is_contraction, operands
from ..ir.target import Target


@frozen(cache_hash=True)
class Knob:
    """A numeric parameter, or a few that are chosen together: their names within the structure, and the values they may take.

    Threads, thread tile and vector of a dim are one knob, so that combinations that are pointless for its extent are no points at all.
    """

    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


@frozen(cache_hash=True)
class SegmentStructure:
    """The discrete choices of one segment.

    `dims` are the axes of each tile dim; `loops` the distinct reduce dims of the segment; `reduces` gives for each reduction the
    positions of its dims in `loops`, `staged` the operands it stages. `shared` names the tensor the segment leaves in shared memory. `patch`
    holds two dims of different class that a warp may be laid over, the faster last.
    """

    dims: tuple[tuple[Var, ...], ...]
    loops: tuple[tuple[Var, ...], ...]
    reduces: tuple[tuple[int, ...], ...]
    staged: tuple[tuple[int, ...], ...]
    lanes: bool = False
    shared: str = ""
    patch: tuple[int, ...] = ()

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


@frozen
class Space:
    """All structures of a group on a target; points are numbered through them in order."""

    group: FusedGroup
    target: Target
    structures: tuple[Structure, ...]

    @property
    def size(self) -> int:
        """Number of points, legal or not."""
        return sum(s.size for s in self.structures)


def next_power(value: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()


def powers(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from `low` to `high`."""
    return tuple(1 << k for k in range(32) if low <= 1 << k <= high)


def axis_classes(segment: Segment) -> tuple[frozenset[int], ...]:
    """Return for each parallel axis the operands of the main reduction that it indexes.

    One operand: class M or N; all of them: *batch*; none: the axis only repeats. The main reduction is the first contraction, or the
    first reduction where there is none.
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


def stageable(segment: Segment, reduction: Reduction, shared: Iterable[str]) -> tuple[int, ...]:
    """Return the operands of a reduction that may be staged: those that are not in shared memory already, indexed directly."""
    held = set(shared)
    found = []
    for position, part in enumerate(operands(reduction, [r.name for r in segment.reductions])):
        inner = reads(part)
        direct = all(is_affine(i) or not variables(i) <= set(reduction.reduce) for r in inner for i in r.indices)
        if direct and not any(r.tensor in held for r in inner):
            found.append(position)
    return tuple(found)


def _loops(segment: Segment, flat: bool) -> tuple[tuple[tuple[Var, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return the distinct reduce dims and, for each reduction, their positions."""
    loops: list[tuple[Var, ...]] = []
    reduces = []
    for reduction in segment.reductions:
        dims = [reduction.reduce] if flat and reduction.reduce else [(r,) for r in reduction.reduce]
        loops += [d for d in dims if d not in loops]
        reduces.append(tuple(loops.index(d) for d in dims))
    return tuple(loops), tuple(reduces)


def _staging_choices(segment: Segment, shared: Sequence[str], matrix: bool) -> list[tuple[tuple[int, ...], ...]]:
    """Return the sets of staged operands to consider: none, all, and each alone; chosen alike for all reductions."""
    possible = [stageable(segment, r, shared) for r in segment.reductions]
    own = [r.name for r in segment.reductions]
    heavy = [p if is_contraction(r, own) or not matrix else () for p, r in zip(possible, segment.reductions, strict=True)]
    found: list[tuple[tuple[int, ...], ...]] = [tuple(() for _ in possible), tuple(heavy)]
    most = max((len(p) for p in heavy), default=0)
    if most == 2:
        found += [tuple(p[k : k + 1] for p in heavy) for k in range(2)]
    return list(dict.fromkeys(found))


def segment_structures(group: FusedGroup, position: int) -> list[SegmentStructure]:
    """Return the structures of one segment."""
    segment = group.segments[position]
    written = next((o.tensor for o in segment.outputs if o.tensor in group.shared), "")
    reads_shared = any(t in group.shared for t in segment.tensors_read)
    apart = tuple((a,) for a in segment.axes)
    if not segment.reductions:
        shapes = [apart] if written or reads_shared else _pointwise_dims(segment)
        return [SegmentStructure(d, (), (), (), shared=written) for d in shapes]
    if any(o.extra for o in segment.outputs):
        loops, reduces = _loops(segment, flat=True)
        none = tuple(() for _ in reduces)
        return [SegmentStructure((segment.axes,), loops, reduces, none, lanes=True)]
    return _reduction_structures(group, segment, written, reads_shared, apart)


def _reduction_structures(
    group: FusedGroup, segment: Segment, written: str, reads_shared: bool, apart: tuple[tuple[Var, ...], ...]
) -> list[SegmentStructure]:
    matrix = is_matrix_like(segment)
    runs = class_runs(segment)
    found: list[SegmentStructure] = []
    layouts = [(apart, False), (runs, True), (runs, False)]
    for (dims, flat), staged in cartesian(layouts, _staging_choices(segment, group.shared, matrix)):
        if (dims != apart and (written or reads_shared)) or (any(staged) and dims == runs != apart and not flat):
            continue
        if any(staged) and not matrix and flat:
            continue
        loops, reduces = _loops(segment, flat)
        patch = _patch(segment, dims) if any(staged) and matrix else ()
        found.append(SegmentStructure(dims, loops, reduces, staged, shared=written, patch=patch))
    if not written and not reads_shared:
        loops, reduces = _loops(segment, flat=True)
        found.append(SegmentStructure(runs if matrix else (segment.axes,), loops, reduces, tuple(() for _ in reduces), lanes=True))
    return list(dict.fromkeys(found))


def _patch(segment: Segment, dims: Sequence[tuple[Var, ...]]) -> tuple[int, ...]:
    """Return the last dim and the last one of another class: a warp over both reads few different elements of either operand."""
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    wide = [d for d, dim in enumerate(dims) if any(a.extent > 1 for a in dim)]
    others = [d for d in wide if kinds[dims[d][-1]] != kinds[dims[wide[-1]][-1]]]
    return (others[-1], wide[-1]) if others else ()


def _pointwise_dims(segment: Segment) -> list[tuple[tuple[Var, ...], ...]]:
    """Return one flat dim, and the last axis apart from the others (reads that are not linear in the flat index)."""
    if not segment.axes:
        return [()]
    wide = [a for a in segment.axes if a.extent > 1]
    found: list[tuple[tuple[Var, ...], ...]] = [(segment.axes,)]
    if len(wide) > 1:
        cut = segment.axes.index(wide[-1])
        found.append((segment.axes[:cut], segment.axes[cut:]))
    return found


def make_space(group: FusedGroup, target: Target, coarse: bool = False) -> Space:
    """Derive the space of a group: every combination of its segments' structures with their knobs.

    `coarse` thins the knobs so that the whole space can be scored in a fraction of a second; `choose` refines what it finds there.
    """
    found = []
    for combination in cartesian(*(segment_structures(group, k) for k in range(len(group.segments)))):
        tables = ["computed", "table"] if _may_use_table(combination) and not coarse else ["computed"]
        knobs = tuple(k for s, structure in enumerate(combination) for k in _knobs(group.segments[s], structure, f"s{s}.", target, coarse))
        found += [Structure(tuple(combination), index, knobs) for index in tables]
    return Space(group, target, tuple(found))


def _may_use_table(structures: Iterable[SegmentStructure]) -> bool:
    return any(len(loop) > 1 for s in structures for loop in s.loops if s.stages_any)


def _knobs(segment: Segment, structure: SegmentStructure, prefix: str, target: Target, coarse: bool) -> Iterator[Knob]:
    matrix = bool(segment.reductions) and is_matrix_like(segment)
    for d, axes in enumerate(structure.dims):
        extent = prod(a.extent for a in axes)
        counts = (1,) if structure.shared else _thread_counts(extent, len(structure.dims), structure, target, coarse)
        tiles = _thread_tiles(extent, structure, matrix, target, coarse)
        vectors = _vectors(d, structure, segment, target, coarse) if extent > 1 else (1,)
        triples = [(t, e, v) for t in counts for e in tiles for v in vectors if v <= e and t * e <= next_power(extent)]
        yield Knob((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), tuple(triples))
    for k, loop in enumerate(structure.loops):
        extent = prod(a.extent for a in loop)
        yield _single(f"{prefix}c{k}", _multiples(extent) if structure.lanes else _chunks(extent, len(loop) > 1, structure, coarse))
    if structure.lanes:
        longest = max((prod(a.extent for a in loop) for loop in structure.loops), default=1)
        lanes, vectors = powers(1, min(next_power(longest), target.MAX_thread)), powers(1, target.vector_bytes // 4)
        pairs = tuple((n, v) for n in lanes for v in vectors if n * v <= next_power(longest))
        yield Knob((f"{prefix}lanes", f"{prefix}rv"), pairs)
    if structure.patch and not target.is_cpu and not structure.shared:
        yield _single(f"{prefix}warp", (0, 8) if coarse else (0, 4, 8, 16))
    if structure.stages_any:
        yield _single(f"{prefix}stages", (1, 2) if coarse or not target.async_copy else (1, 2, 3, 4))
        yield _single(f"{prefix}pad", (0,) if coarse or target.is_cpu else (0, 1, 4))


def _single(name: str, values: Iterable[int]) -> Knob:
    return Knob((name,), tuple((v,) for v in values))


def _thread_counts(extent: int, rank: int, structure: SegmentStructure, target: Target, coarse: bool) -> tuple[int, ...]:
    """Powers of two, and counts that cover a small extent exactly (7 threads for 7 pixels)."""
    top = min(next_power(extent), target.MAX_thread)
    found = set(powers(1, top))
    if rank >= 3 and not structure.lanes:
        found = set(powers(1, min(top, 64)))
    if not coarse and rank > 1:
        found |= {-(-extent // e) for e in (1, 2, 4) if 1 < -(-extent // e) <= 32}
    if coarse and len(found) > 4 and rank >= 3:
        found &= {1, 4, 8, 16, 32}
    return tuple(sorted(found))


def _thread_tiles(extent: int, structure: SegmentStructure, matrix: bool, target: Target, coarse: bool) -> tuple[int, ...]:
    top = 8 if matrix or not structure.loops else 4
    if matrix and (target.is_cpu or (not coarse and len(structure.dims) <= 3)):
        top = 16
    return powers(1, min(next_power(extent), top))


def _vectors(d: int, structure: SegmentStructure, segment: Segment, target: Target, coarse: bool) -> tuple[int, ...]:
    """Neighbouring elements only help along a dim that is innermost in some tensor."""
    last = structure.dims[d][-1]
    bodies = segment.expressions
    inner = any(r.indices and last in variables(r.indices[-1]) for b in bodies for r in reads(b))
    inner = inner or any(o.write and last in variables(o.write[-1]) for o in segment.outputs) or structure.stages_any
    if not inner:
        return (1,)
    widest = target.vector_bytes // 4
    return (1, widest) if coarse else powers(1, widest)


def _chunks(extent: int, flat: bool, structure: SegmentStructure, coarse: bool) -> tuple[int, ...]:
    if extent <= 7 and not flat:
        return tuple(sorted({1, extent}))
    found = set(powers(4 if flat else 1, min(next_power(extent), 64)))
    if extent <= 64:
        found.add(extent)
    if coarse and len(found) > 4:
        found &= {1, 8, 16, 32, extent}
    return tuple(sorted(found))


def _multiples(extent: int) -> tuple[int, ...]:
    """How many strides of `lanes * row_vector` elements one trip over a row takes."""
    return powers(1, min(next_power(extent), 64))
