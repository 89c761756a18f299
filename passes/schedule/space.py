"""Parameter space of a fusion group: schedule templates and their parameters.

They correspond to DeepCuts Tables 3 and 4, per axis. A *template* fixes which axes are flattened into which tile dim,
which reduced axes are flattened, which operands are staged in shared memory, and whether threads share a reduction.
Its *parameters* are lists of numbers; a candidate schedule takes one of each. Everything is derived from the accesses
of the group; operations are not distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from itertools import product as cartesian
from math import prod
from typing import cast

from attrs import evolve, field, frozen

from ...ir import (
    APPEND,
    FusedGroup,
    Segment,
    Target,
    Var,
    has_dependent_sizes,
    is_contraction,
    is_exchange,
    is_recurrence,
    longest_vector,
    owned_axes,
    required_streamed_axis,
    walked_row,
)
from ..geometry import (
    ScheduleParameter,
    ScheduleTemplate,
    SegmentTemplate,
    added_neighbours,
    axis_classes,
    cached_reads,
    can_stream_rows,
    class_runs,
    column_run,
    exchange_dims,
    index_axes,
    is_matrix_like,
    is_register_chain,
    is_scatter_only,
    kept_sum_runs,
    multiplies_one_row,
    part_rows,
    scatter_tile_dim,
    shareable_loops,
    summed_axes,
    summed_dims,
    sums_row,
    walked_loop,
    whole_dims,
    whole_loops,
    with_streamed_input,
)
from ..model import group_work
from .box_products import box_mma_templates, window_parameters
from .fixed_order import invariant_parameters, invariant_templates
from .mma_templates import mma_templates
from .register_chains import chain_parameters, chain_templates
from .row_parameters import SHUFFLED_BYTES
from .schedule_parameters import fit_parameters, launch_parameters, segment_parameters, thin_parameters
from .staging_parameters import stageable_operands

#: Most instances of walked rows along a dim that a block sums.
MAX_SUMMED_INSTANCES = 128
#: Elements of a row that a thread always has registers for.
HELD_IN_REGISTERS = 8


@frozen
class Space:
    """All templates of a group on a target.

    Points are numbered through them in order. `work` is the least work of any schedule.
    """

    group: FusedGroup
    target: Target
    templates: tuple[ScheduleTemplate, ...]
    work: tuple[float, float] = field(init=False)

    @work.default
    def _work(self) -> tuple[float, float]:
        memo = self.group.memo
        if "work" not in memo:
            memo["work"] = group_work(self.group)
        return cast("tuple[float, float]", memo["work"])

    @property
    def size(self) -> int:
        """Number of points, legal or not."""
        return sum(s.size for s in self.templates)


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
    """Return the sets of staged operands to consider: none, all, and each alone; the same for all reductions."""
    possible = [stageable_operands(segment, r, shared) for r in segment.reductions]
    own = [r.name for r in segment.reductions]
    heavy = [
        p if is_contraction(r, own) or not matrix else () for p, r in zip(possible, segment.reductions, strict=True)
    ]
    found: list[tuple[tuple[int, ...], ...]] = [tuple(() for _ in possible), tuple(heavy)]
    most = max((len(p) for p in heavy), default=0)
    if most == 2:
        found += [tuple(p[k : k + 1] for p in heavy) for k in range(2)]
    return list(dict.fromkeys(found))


def segment_templates(group: FusedGroup, position: int, target: Target) -> list[SegmentTemplate]:
    """Return the templates of one segment under a target's policy."""
    found = _possible_templates(group, position, target)
    return invariant_templates(group, group.segments[position], found, target) if target.invariant else found


def _possible_templates(group: FusedGroup, position: int, target: Target) -> list[SegmentTemplate]:
    """Return the templates of one segment under any policy."""
    segment = group.segments[position]
    written = tuple(o.tensor for o in segment.outputs if o.tensor in group.shared)
    reads_shared = any(t in group.shared for t in segment.tensors_read)
    separate = tuple((a,) for a in segment.axes)
    if is_exchange(group):
        dims = exchange_dims(segment, owned_axes(group.segments, group.shared)[position])
        return [SegmentTemplate(dims, (), (), (), shared=written, exchanged=whole_dims(group, segment))]
    if not segment.reductions:
        shapes = [separate] if written or reads_shared else _pointwise_dims(segment)
        found = [SegmentTemplate(d, (), (), (), shared=written) for d in shapes]
        if not is_scatter_only(segment):
            return found
        additions = added_neighbours(segment, group) if target.vector_additions else 1
        return [*(evolve(t, additions=additions) for t in found), *_privatised_templates(group, segment, target)]
    if segment.holds_rows or any(o.extra for o in segment.outputs):
        loops, reduces = _loops(segment, flat=True)
        none = tuple(() for _ in reduces)
        dims = separate if reads_shared or written else _flat_dims(segment)
        whole = () if written else whole_loops(segment, reduces)
        streams = bool(written) and can_stream_rows(group)
        caches_rows = not whole and not written and _may_cache_rows(group, segment, loops, target)
        walks = walked_row(segment) is not None and not written and not reads_shared
        rows = 0 if walks else part_rows(segment, group)
        if segment.column_sums and not rows:
            return _walked_sums(segment, loops, reduces) if walks else []
        kept = kept_sum_runs(segment, group)
        if segment.kept_sums and (not kept[0] or written or reads_shared):
            return []
        over = column_run(segment, group.shared)
        template = SegmentTemplate(
            dims,
            loops,
            reduces,
            none,
            reduction_threads=True,
            shared=written,
            whole=whole,
            part_rows=rows,
            over_columns=over,
            kept=kept,
        )
        found = (
            []
            if any(map(is_recurrence, segment.reductions))
            else [evolve(template, caches_rows=caches_rows, streams=streams)]
        )
        if walks:
            walked = walked_loop(segment, loops)
            found += [SegmentTemplate(d, loops, reduces, none, walked=walked) for d in _pointwise_dims(segment)]
        if not (whole or written) and _may_share_rows(group, segment, loops, target):
            found.append(evolve(template, clusters=True, caches_rows=caches_rows))
        return found
    found = _reduction_templates(group, segment, written, reads_shared, separate, target)
    if position and (axis := required_streamed_axis(group)) is not None:
        found = [with_streamed_input(template, group, axis) for template in found]
    if written or reads_shared:  # no others are worth a comparison with matrix instructions
        return [*box_mma_templates(group, position, target)] or found
    return [*found, *mma_templates(group, segment, target)]


def _walked_sums(
    segment: Segment, loops: tuple[tuple[Var, ...], ...], reduces: tuple[tuple[int, ...], ...]
) -> list[SegmentTemplate]:
    """Return the template of sums over instances beside walked rows: a block has all terms of a sum."""
    own = [frozenset(summed_axes(segment, output)) for output in segment.column_sums]
    several = any(axes for axes, o in zip(own, segment.column_sums, strict=True) if sums_row(o))
    kinds = {axis: tuple(axis in axes for axes in own) for axis in segment.axes}
    dims = tuple(tuple(run) for _, run in groupby(segment.axes, key=lambda axis: kinds[axis]))
    longest = max((prod(a.extent for a in dims[d]) for d in summed_dims(segment, dims)), default=1)
    if several or longest > MAX_SUMMED_INSTANCES:
        return []
    last = dims[-1] if dims else ()
    shapes = [dims, *([(*dims[:-1], last[:-1], last[-1:])] if len(last) > 1 else [])]
    walked, none = walked_loop(segment, loops), tuple(() for _ in reduces)
    return [SegmentTemplate(d, loops, reduces, none, walked=walked, summed=summed_dims(segment, d)) for d in shapes]


def _privatised_templates(group: FusedGroup, segment: Segment, target: Target) -> list[SegmentTemplate]:
    """Return the template of a privatised scatter, where shared memory has room for all bins."""
    own = index_axes(segment, group)
    dims = tuple(tuple(run) for _, run in groupby(segment.axes, key=lambda axis: axis in own))
    scatter_dim, type_ = scatter_tile_dim(segment, group, dims), group.tensors[segment.outputs[0].tensor]
    least = type_.nbytes // prod(a.extent for a in own)
    fits = scatter_dim >= 0 and segment.outputs[0].into != APPEND and least <= target.MAX_shared
    return [SegmentTemplate(dims, (), (), (), scatter_dim=scatter_dim)] if fits else []


def _reduction_templates(
    group: FusedGroup,
    segment: Segment,
    written: tuple[str, ...],
    reads_shared: bool,
    separate: tuple[tuple[Var, ...], ...],
    target: Target,
) -> list[SegmentTemplate]:
    matrix = is_matrix_like(segment)
    runs = class_runs(segment)
    found: list[SegmentTemplate] = []
    layouts = [(separate, False), (runs, True), (runs, False)]
    for (dims, flat), staged in cartesian(layouts, _staging_choices(segment, group.shared, matrix)):
        if (dims != separate and (written or reads_shared)) or (any(staged) and dims == runs != separate and not flat):
            continue
        if any(staged) and not matrix and flat:
            continue
        loops, reduces = _loops(segment, flat)
        patch = _patch(segment, dims) if any(staged) and matrix else ()
        found.append(SegmentTemplate(dims, loops, reduces, staged, shared=written, patch=patch))
    if not (written or reads_shared) or passes_row(group):
        loops, reduces = _loops(segment, flat=True)
        dims, none = runs if matrix else _flat_dims(segment), tuple(() for _ in reduces)
        dims = separate if written or reads_shared else dims
        caches_rows = len(group.segments) == 1 and _may_cache_rows(group, segment, loops, target)
        over = column_run(segment, group.shared)
        template = SegmentTemplate(
            dims, loops, reduces, none, reduction_threads=True, shared=written, over_columns=over
        )
        found.append(evolve(template, caches_rows=caches_rows))
        if len(group.segments) == 1 and not matrix and _may_share_rows(group, segment, loops, target):
            found.append(evolve(template, clusters=True, caches_rows=caches_rows))
    return list(dict.fromkeys(found))


def passes_row(group: FusedGroup) -> bool:
    """Return whether a segment passes a row, or sums, to a product."""
    first, *rest = group.segments
    own = tuple(r.name for r in first.reductions)
    sums = bool(own) and not any(is_contraction(r, own) for r in first.reductions)
    sums = sums and prod(axis.extent for axis in first.axes) == 1
    return sums and len(rest) == 1 and multiplies_one_row(rest[0])


def _may_cache_rows(group: FusedGroup, segment: Segment, loops: Sequence[tuple[Var, ...]], target: Target) -> bool:
    """Return whether shared memory may cache shared rows: where a block's threads would hold too much."""
    long = len(loops) == 1 and prod(a.extent for a in loops[0]) > HELD_IN_REGISTERS * target.MAX_thread
    return target.lockstep and long and bool(cached_reads(segment, (*group.shared, *group.constants)))


def _may_share_rows(group: FusedGroup, segment: Segment, loops: Sequence[tuple[Var, ...]], target: Target) -> bool:
    """Return whether blocks of a cluster may share rows: long ones, which later loops or outputs read again."""
    long = len(loops) == 1 and prod(a.extent for a in loops[0]) > HELD_IN_REGISTERS * target.MAX_thread
    words = all(group.tensors[r.name].dtype.size in SHUFFLED_BYTES for r in segment.reductions)
    again = any(o.extra for o in segment.outputs) or shareable_loops(segment).count(False) > 1
    return target.cluster_blocks > 1 and long and words and again


def _flat_dims(segment: Segment) -> tuple[tuple[Var, ...], ...]:
    """Return all parallel axes as one dim, no dim where there are none."""
    return (segment.axes,) if segment.axes else ()


def _patch(segment: Segment, dims: Sequence[tuple[Var, ...]]) -> tuple[int, ...]:
    """Return the last dim and the last one of another class: a warp over both reads few different elements of either
    operand.
    """
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    wide = [d for d, dim in enumerate(dims) if any(a.extent > 1 for a in dim)]
    others = [d for d in wide if kinds[dims[d][-1]] != kinds[dims[wide[-1]][-1]]]
    return (others[-1], wide[-1]) if others else ()


def _pointwise_dims(segment: Segment) -> list[tuple[tuple[Var, ...], ...]]:
    """Return one flat dim, and a split before the last axis (for reads that are not linear in the flat index)."""
    if not segment.axes:
        return [()]
    wide = [a for a in segment.axes if a.extent > 1]
    found: list[tuple[tuple[Var, ...], ...]] = [(segment.axes,)]
    if len(wide) > 1:
        cut = segment.axes.index(wide[-1])
        found.append((segment.axes[:cut], segment.axes[cut:]))
    return found


def only_chains(group: FusedGroup, target: Target) -> tuple[tuple[SegmentTemplate, ...], ...]:
    """Return the templates of a chain of two segments in registers.

    No others are worth a comparison.
    """
    return tuple(chain_templates(group, target)) if len(group.segments) == 2 else ()


def make_space(
    group: FusedGroup,
    target: Target,
    coarse: bool = False,
    combinations: Iterable[tuple[SegmentTemplate, ...]] | None = None,
) -> Space:
    """Derive the space of a group.

    It has every combination of its segments' templates with their parameters. `coarse` thins the parameters so that the
    whole space can be scored in a fraction of a second; `choose` refines the results. `combinations` are the templates
    of segments to combine, all by default.
    """
    found = []
    widest = longest_vector((type_.dtype for type_ in group.tensors.values()), target.vector_bytes)
    if combinations is None:
        combinations = only_chains(group, target)
        if not combinations:
            segments = [segment_templates(group, k, target) for k in range(len(group.segments))]
            combinations = (*combine_templates(segments), *chain_templates(group, target))
    for combination in combinations:
        parameters = (
            *(
                chain_parameters(combination, target, coarse)
                if is_register_chain(combination)
                else (
                    p
                    for s, each in enumerate(combination)
                    for p in _parameters_of(group, s, each, target, coarse, widest, any(t.boxed for t in combination))
                )
            ),
            *launch_parameters(combination, target, coarse),
        )
        if target.invariant:
            parameters = (*invariant_parameters(group, combination, parameters, target),)
        found.append(ScheduleTemplate(tuple(combination), parameters))
    return Space(group, target, tuple(found))


def combine_templates(segments: Sequence[Sequence[SegmentTemplate]]) -> Iterator[tuple[SegmentTemplate, ...]]:
    """Yield the combinations of segments' templates.

    Beside a product with a box, another segment stages nothing: it takes shared memory and another barrier.
    """
    for combination in cartesian(*segments):
        boxed = any(template.boxed for template in combination)
        if not boxed or not any(t.stages_any for t in combination if not t.boxed):
            yield combination


def _parameters_of(
    group: FusedGroup,
    position: int,
    template: SegmentTemplate,
    target: Target,
    coarse: bool,
    widest: int,
    boxed: bool,
) -> Iterable[ScheduleParameter]:
    """Return the parameters of a segment, fewer for one of many in a thinned space, and beside a `boxed` product."""
    windows = boxed and not template.boxed
    found = segment_parameters(
        group.segments[position], template, f"s{position}.", target, coarse and not windows, widest
    )
    if windows:
        return window_parameters(group, group.segments[position], template, found)
    if not has_dependent_sizes(group):
        return found
    found = fit_parameters(group.segments[position], template, found)
    return thin_parameters(group.segments[position], template, found) if coarse else found
