"""Split-K: a reduction with few results becomes two kernels, so that it fills the machine.

The first sums parts of the reduced axis, a part being one more parallel axis, into a workspace; the second adds the
parts up in a fixed order and applies the epilogue. Results are the same from run to run, unlike with atomic additions.
Both are ordinary groups, so nothing behind this pass knows about it.

    acc[m, n] = sum_k a[m, k] * b[k, n];  y = relu(acc)
      ->   w[p, m, n] = sum_j a[m, J*p + j] * b[J*p + j, n];     acc[m, n] = sum_p w[p, m, n];  y = relu(acc)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import inf, prod

from attrs import evolve, field, frozen

from ...ir import (
    COMBINERS,
    Expr,
    FusedGroup,
    Guard,
    Index,
    Output,
    Read,
    Reduction,
    Segment,
    Target,
    TensorType,
    Var,
    as_index,
    expr_variables,
    is_contraction,
    reads,
    substitute_expr,
    variables,
)
from .groups import Group, canonical_names, form_key
from .inline import FusionError, apply_guards
from .partition import GroupEvaluator
from .views import Views

#: Results of a block tile, about, of a contraction and where neighbouring results read neighbouring elements (other
#: reductions have a block for each result): with fewer tiles per SM, splitting may pay. Tiles of a contraction that
#: reads each element least often are larger by `LARGER`.
TILE, COLUMNS, TILES_PER_SM, LARGER = 2048, 128, 2, 4
#: Fewest terms that a part keeps, and most parts: of a contraction, whose parts are tiles (most for each element of its
#: outermost axis: `MAX_EACH`), and of another reduction, where 64 blocks are half of a large machine.
MIN_TERMS, MAX_PARTS, MAX_EACH, MAX_ROWS = 16, 64, 4, 512


def split_reduction(group: FusedGroup, parts: int) -> tuple[FusedGroup, FusedGroup, TensorType] | None:
    """Return two groups that together compute a group, and the type of the workspace between them.

    The workspace is the only output of the first and the first input of the second. None where the group is not one
    reduction, none of its reduced axes has that many elements, or no guard keeps it from what lies behind the last.
    Nor where lanes that share the reduction write a row: as many as there are parts would write all of it.
    """
    if not _is_one_reduction(group):
        return None
    (segment,) = group.segments
    (reduction,) = segment.reductions
    cuts = _cuts(reduction, parts)
    if not cuts:
        return None
    inside: dict[Var, Var] = {}
    made: list[Var] = []
    body = reduction.body
    for axis, count in cuts:
        part = Var(_free("part", segment, made), count)
        inside[axis] = Var(axis.name, -(-axis.extent // count))
        try:
            body = _part_of(
                evolve(reduction, body=body), axis, as_index(part) * inside[axis].extent + inside[axis], group
            )
        except FusionError:
            return None
        made.append(part)
    rest = tuple(inside.get(v, v) for v in reduction.reduce)
    reduce = tuple(v for v in rest if v.extent > 1) or rest[:1]
    kind = group.tensors[reduction.name]
    workspace = TensorType(kind.dtype, (*(part.extent for part in made), *kind.shape))
    name = next(n for n in (f"parts{k}" for k in range(len(group.tensors) + 1)) if n not in group.tensors)
    axes = (*made, *segment.axes)
    inner = tuple(as_index(a) for a in axes)
    first = Segment(
        axes,
        (Reduction(reduction.name, reduce, reduction.combine, body, reduction.math),),
        (Output(name, inner, Read(reduction.name, inner)),),
    )
    total = Reduction(reduction.name, tuple(made), reduction.combine, Read(name, inner))
    before = _group(group, first, {name: workspace, reduction.name: workspace}, (name,))
    after = _group(group, evolve(segment, reductions=(total,)), {name: workspace}, group.outputs)
    return before, evolve(after, inputs=(name, *(t for t in after.inputs if t != name))), workspace


def _is_one_reduction(group: FusedGroup) -> bool:
    """Whether a group is one reduction, and neither it nor what is written needs whole rows."""
    if len(group.segments) != 1 or len(group.segments[0].reductions) != 1:
        return False
    (segment,) = group.segments
    return not segment.holds_rows and not any(output.extra for output in segment.outputs)


def _cuts(reduction: Reduction, parts: int) -> tuple[tuple[Var, int], ...]:
    """Return the reduced axes to split and into how many parts: one that divides evenly if there is any, the outermost
    of them; where none has that many elements, the outermost one into its elements and the next one besides.
    """
    possible = [v for v in reduction.reduce if v.extent >= parts]
    even = [v for v in possible if v.extent % parts == 0]
    if possible:
        return (((*even, *possible)[0], parts),)
    first, *others = reduction.reduce
    each = parts // first.extent
    second = next((v for v in others[:1] if parts % first.extent == 0 and v.extent % each == 0), None)
    return ((first, first.extent), (second, each)) if second is not None else ()


def _part_of(reduction: Reduction, axis: Var, index: Index, group: FusedGroup) -> Expr:
    """Return the body at an element of a part; elements past the end of the axis contribute nothing."""
    body = substitute_expr(reduction.body, {axis: index})
    guard = Guard(index, 0, axis.extent)
    identity = COMBINERS[reduction.combine].identity(group.tensors[reduction.name].dtype)
    return body if guard.always else apply_guards(body, (guard,), identity, group.tensors, frozenset())


def _free(name: str, segment: Segment, made: Sequence[Var]) -> str:
    taken = {v.name for body in segment.expressions for v in expr_variables(body)}
    taken |= {v.name for v in (*segment.axes, *made)}
    return next(n for n in (name, *(f"{name}{k}" for k in range(len(taken)))) if n not in taken)


def _group(
    group: FusedGroup, segment: Segment, types: Mapping[str, TensorType], outputs: tuple[str, ...]
) -> FusedGroup:
    read = segment.tensors_read
    tables = {t: v for t, v in group.constants.items() if t in read}
    inputs = tuple(t for t in (*group.inputs, *types) if t in read and t not in tables)
    names = dict.fromkeys((*inputs, *tables, *outputs, *(r.name for r in segment.reductions)))
    return FusedGroup((segment,), {n: types.get(n) or group.tensors[n] for n in names}, inputs, outputs, (), tables)


# ---- which groups to split


def candidates(group: FusedGroup, target: Target) -> tuple[int, ...]:
    """Return the numbers of parts worth comparing, least first: those that give every other SM a tile, up to several
    for each.

    There are none where the group has tiles enough by itself, large ones if it is a contraction.
    """
    if not _is_one_reduction(group):
        return ()
    (segment,) = group.segments
    (reduction,) = segment.reductions
    tiles = -(-prod(a.extent for a in segment.axes) // _results_per_tile(reduction))
    large = -(-tiles // LARGER) if is_contraction(reduction) else tiles
    terms = prod(v.extent for v in reduction.reduce)
    if not target.lockstep or large > TILES_PER_SM * target.NUM_SM:
        return ()
    longest = max(v.extent for v in reduction.reduce)
    most = min(terms // MIN_TERMS, 4 * TILES_PER_SM * target.NUM_SM // large)
    limit = min(MAX_PARTS if is_contraction(reduction) else MAX_ROWS, most, longest)
    found = [1 << k for k in range(1, 16) if 1 << k <= limit]
    if is_contraction(reduction) and found and found[-1] == reduction.reduce[0].extent:
        more = (each * found[-1] for each in (2, MAX_EACH))
        found += [p for p in more if p <= most and len(_cuts(reduction, p)) > 1]
    return tuple(p for p in found if p == found[-1] or 2 * tiles * p >= target.NUM_SM)


def _results_per_tile(reduction: Reduction) -> int:
    """Return about how many results a block computes: those that share loads,
    or whose loads are neighbours in memory.
    """
    if is_contraction(reduction):
        return TILE
    innermost = {v for r in reads(reduction.body) if r.indices for v in variables(r.indices[-1])}
    return COLUMNS if innermost and not innermost & set(reduction.reduce) else 1


@frozen
class Splitting:
    """What groups cost where each may be split: the model says in how many parts. Where both ways are `timed`,
    `evaluator` says whether that is faster; elsewhere the model must see the parts take less than the part `worth` of
    the whole.
    """

    evaluator: GroupEvaluator
    modelled: GroupEvaluator
    target: Target
    worth: float = 1.0
    timed: Callable[[FusedGroup], bool] = lambda form: False
    known: dict[Hashable, int] = field(factory=dict)

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group, or of its parts where these are faster."""
        return self.best(group)[0]

    def best(self, group: FusedGroup) -> tuple[float, int]:
        """Return the least seconds and in how many parts they are reached."""
        halves, whole = self.halves(group), self.evaluator.cost(group)
        if not halves:
            return whole, 1
        parts = _sum(halves, self.evaluator)
        if all(map(self.timed, (group, *halves))):
            split = parts < whole
        else:
            split = _sum(halves, self.modelled) < self.worth * self.modelled.cost(group)
        return (parts, self.most_useful(group)) if split else (whole, 1)

    def parts(self, group: FusedGroup) -> int:
        """Return in how many parts a group is fastest, one where no kernel computes it."""
        seconds, parts = self.best(group)
        return parts if seconds < inf else 1

    def kernels(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return what computes a group as it is fastest: the group, or its halves."""
        return self.halves(group) if self.parts(group) > 1 else (group,)

    def halves(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return the two groups that would take a group's place, none where it is not worth splitting."""
        parts = self.most_useful(group)
        found = split_reduction(group, parts) if parts > 1 else None
        return () if found is None else found[:2]

    def possible(self, group: FusedGroup) -> Iterator[FusedGroup]:
        """Yield all groups that may take a group's place, whatever they cost."""
        for parts in candidates(group, self.target):
            if (found := split_reduction(group, parts)) is not None:
                yield from found[:2]

    def most_useful(self, group: FusedGroup) -> int:
        """Return the number of parts that is best by the model; fewer parts are tried as long as they help."""
        key = form_key(group)
        if key not in self.known:
            found, slower = (inf, 1), False
            for parts in reversed(candidates(group, self.target)):
                seconds = _seconds(group, parts, self.modelled)
                slower = seconds >= found[0]
                found = min(found, (seconds, parts))
                if slower:
                    break
            self.known[key] = found[1]
        return self.known[key]


def _seconds(group: FusedGroup, parts: int, evaluator: GroupEvaluator) -> float:
    halves = split_reduction(group, parts)
    return inf if halves is None else _sum(halves[:2], evaluator)


def _sum(groups: Iterable[FusedGroup], evaluator: GroupEvaluator) -> float:
    return sum(evaluator.cost(group) for group in groups)


def split_groups(
    groups: Sequence[Group], views: Views, parts_of: Callable[[FusedGroup], int]
) -> tuple[Sequence[Group], Views]:
    """Return the groups with those of several parts split in two, and views that know the workspaces."""
    types: dict[str, TensorType] = {}
    result: list[Group] = []
    for group in groups:
        parts = parts_of(group.form)
        halves = split_reduction(group.form, parts) if parts > 1 else None
        if halves is None:
            result.append(group)
            continue
        before, after, workspace = halves
        name = f"parts of {group.outputs[0]}"
        types[name] = workspace
        tensors = {**group.tensors, before.outputs[0]: name}
        for half in (before, after):
            form, canonical = canonical_names(half)
            result.append(
                evolve(
                    group, form=form, tensors={new: tensors[old] for old, new in canonical.items() if old in tensors}
                )
            )
    programs = evolve(views.programs, types={**views.programs.types, **types})
    return result, evolve(views, programs=programs)
