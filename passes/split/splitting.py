"""Chooses split-K or aligned copies of factors for groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from math import inf, isnan

from attrs import evolve, field, frozen

from ...ir import FusedGroup, Target, TensorType
from ...ops.language import unused_name
from ..fusion import Group, GroupEvaluator, Views, canonical_names, form_key
from .align_operands import align_operands, may_be_aligned, multiplies_by_lanes
from .part_counts import filling_parts, part_counts
from .split_chain import split_chain
from .split_columns import split_columns
from .split_reduction import split_reduction


@frozen
class Division:
    """Number of parts of a group's reduction, 1 where it is whole.

    Factors that are not `aligned` are copied first.
    """

    parts: int = 1
    aligned: bool = False


WHOLE = Division()

#: Largest ratio of a group's modelled seconds, the best of a few points, to those of a search.
MAX_SAMPLE_RATIO = 2.0
#: Largest share of a group's searched seconds that its divisions may take by the cost model alone; that of parts which
#: fill the last round, and of copies for lanes. 6304x768x3072 of f32 along both sums took 957 us whole, 720 us with a
#: transposed factor, 0.98 by the model; 3072x768x6304 along both sides 747 us, 666 us in eight parts, 0.93.
MAX_SEARCHED_SHARE, MAX_FILLING_SHARE, MAX_LANES_SHARE = 0.9, 0.95, 1.0
#: How many times longer than the best by the model a group may take and still be worth a measurement: the model takes
#: the best of a few points, which may be so much slower than a search's.
MAX_CONTENDER_RATIO = 1.5


@frozen
class Splitting:
    """Cost of groups with their best division.

    The model proposes the number of parts. Where both ways are `timed`, `evaluator` decides whether that is faster;
    else the parts have to take less than the part `worth` of the whole by the model. `searched` are the seconds of
    kernels in sequence by a search of the model, for divisions among which a few points do not decide. No division of
    a group undercuts its `least` seconds.
    """

    evaluator: GroupEvaluator
    modelled: GroupEvaluator
    target: Target
    worth: float = 1.0
    timed: Callable[[FusedGroup], bool] = lambda form: False
    searched: Callable[[Sequence[FusedGroup]], float] | None = None
    least: Callable[[FusedGroup], float] | None = None
    known: dict[Hashable, int] = field(factory=dict)
    halved: dict[tuple[Hashable, int], tuple[FusedGroup, ...]] = field(factory=dict)
    copied: dict[Hashable, tuple[FusedGroup, ...]] = field(factory=dict)
    divisions: dict[Hashable, Division] = field(factory=dict)

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group, or of its faster parts."""
        return self.best(group)[0]

    def best(self, group: FusedGroup) -> tuple[float, Division]:
        """Return the least seconds and the division with which they are reached."""
        if self.least and not (self.timed(group) or self.may_pay(group, self.modelled.cost(group))):
            return self.evaluator.cost(group), WHOLE
        seconds, division = self._best_parts(group)
        aligned = self.aligned_kernels(group)
        if aligned and (found := self._aligned_seconds(group, aligned)) < seconds:
            seconds, division = found, Division(aligned=True)
        return seconds, division

    def may_pay(self, group: FusedGroup, seconds: float) -> bool:
        """Return whether a division may replace a group of some modelled seconds."""
        return self.least is None or self.target.invariant or self.least(group) < self.worth * seconds

    def _aligned_seconds(self, group: FusedGroup, aligned: tuple[FusedGroup, ...]) -> float:
        """Return the seconds of a group with aligned copies; infinite where these do not clearly pay."""
        known = all(map(self.timed, (group, *aligned)))
        pays = known or _sum(aligned, self.modelled) < self.worth * self.modelled.cost(group)
        return _sum(aligned, self.evaluator) if pays else inf

    def aligned_kernels(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return aligned copies of factors and their contraction, or nothing."""
        if not may_be_aligned(group, self.target) or (self.target.invariant and self.halves(group)):
            return ()
        key = form_key(group)
        if key not in self.copied:
            self.copied[key] = _canonical_groups(align_operands(group))
        return self.copied[key]

    def _best_parts(self, group: FusedGroup) -> tuple[float, Division]:
        """Return the least seconds without copies, and the division."""
        halves, whole = self.halves(group), self.evaluator.cost(group)
        if not halves:
            return whole, WHOLE
        parts = _sum(halves, self.evaluator)
        if self.target.invariant or all(map(self.timed, (group, *halves))):
            split = self.target.invariant or parts < whole
        else:
            split = _sum(halves, self.modelled) < self.worth * self.modelled.cost(group)
        return (parts, Division(self.best_part_count(group))) if split else (whole, WHOLE)

    def division(self, group: FusedGroup) -> Division:
        """Return the fastest division, none where no kernel computes the group."""
        seconds, division = self.best(group)
        if seconds == inf:
            return WHOLE
        aligned, parts = self.aligned_kernels(group), self.halves(group) if filling_parts(group, self.target) else ()
        if self.searched is None or not (aligned or parts) or all(map(self.timed, (group, *aligned, *parts))):
            return division
        if (key := form_key(group)) not in self.divisions:
            self.divisions[key] = self._searched_division(group, aligned, self.searched)
        return self.divisions[key]

    def _searched_division(
        self, group: FusedGroup, aligned: tuple[FusedGroup, ...], searched: Callable[[Sequence[FusedGroup]], float]
    ) -> Division:
        """Return the division whose kernels take the least time by a search of the model."""
        ways = {WHOLE: (group,), **({Division(aligned=True): aligned} if aligned else {})}
        if halves := self.halves(group):
            ways[Division(self.best_part_count(group))] = halves
        seconds = {division: _sum(forms, self.modelled) for division, forms in ways.items()}
        near = MAX_SAMPLE_RATIO * min(seconds.values())
        found = {division: searched(divide(group, division)) for division, each in seconds.items() if each <= near}
        best = min(found, key=lambda division: found[division], default=WHOLE)
        filling = best.parts > 1 and filling_parts(group, self.target)
        lanes = best.aligned and multiplies_by_lanes(group)
        share = MAX_LANES_SHARE if lanes else MAX_FILLING_SHARE if filling else MAX_SEARCHED_SHARE
        return best if found.get(best, inf) < share * found.get(WHOLE, inf) else WHOLE

    def kernels(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return the fastest kernels of a group: whole or divided."""
        return _canonical_groups(divide(group, self.division(group)))

    def contenders(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return the groups to time before a group's division is chosen.

        These are the group and its replacements, without those that take much longer by the model.
        """
        whole = self.modelled.cost(group)
        several = [
            (forms, _sum(forms, self.modelled)) for forms in (self.halves(group), self.aligned_kernels(group)) if forms
        ]
        close = MAX_CONTENDER_RATIO * min(whole, *(seconds for _, seconds in several), inf)
        chosen = [form for forms, seconds in several if seconds <= close for form in forms]
        return (*((group,) if whole <= close else ()), *chosen)

    def halves(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return the two groups that replace a group, none without gain."""
        parts = self.best_part_count(group)
        return self._halves(group, parts) if parts > 1 else ()

    def _halves(self, group: FusedGroup, parts: int) -> tuple[FusedGroup, ...]:
        """Return the two groups of a reduction in parts, none where that is impossible; cached."""
        key = form_key(group), parts
        if key not in self.halved:
            self.halved[key] = _canonical_groups(_in_parts(group, parts) or ())
        return self.halved[key]

    def possible_parts(self, group: FusedGroup) -> Iterator[FusedGroup]:
        """Yield the groups that `best_part_count` compares."""
        if form_key(group) not in self.known:
            for parts in part_counts(group, self.target):
                yield from self._halves(group, parts)

    def best_part_count(self, group: FusedGroup) -> int:
        """Return the number of parts that is best by the model.

        Fewer parts are tried as long as they help, whole elements of the outermost axis (images) in any case.
        """
        key = form_key(group)
        if key not in self.known:
            found, slower = (inf, 1), False
            whole = [r.reduce[0].extent for s in group.segments for r in s.reductions[:1]]
            for parts in reversed(part_counts(group, self.target)):
                seconds = _sum(self._halves(group, parts), self.modelled) or inf
                if isnan(seconds):  # no answer in time
                    return 1
                slower = seconds >= found[0]
                found = min(found, (seconds, parts))
                if slower and parts <= max(whole):
                    break
            self.known[key] = found[1]
        return self.known[key]


def _in_parts(group: FusedGroup, parts: int) -> tuple[FusedGroup, ...] | None:
    """Return the groups of a reduction, or a chain's columns, in parts; None where that is impossible."""
    return split_reduction(group, parts) or split_chain(group, parts) or split_columns(group, parts)


def _sum(groups: Iterable[FusedGroup], evaluator: GroupEvaluator) -> float:
    return sum(evaluator.cost(group) for group in groups)


def _canonical_groups(groups: Iterable[FusedGroup]) -> tuple[FusedGroup, ...]:
    """Return groups with the canonical names of their launches, so that measurements of them are found."""
    return tuple(canonical_names(group)[0] for group in groups)


def divide(group: FusedGroup, division: Division) -> tuple[FusedGroup, ...]:
    """Return the kernels of a group with its reduction divided.

    The group itself is returned where that is impossible.
    """
    kernels: tuple[FusedGroup, ...] | None = None
    if division.aligned:
        kernels = align_operands(group)
    elif division.parts > 1:
        kernels = _in_parts(group, division.parts)
    return tuple(evolve(kernel, operations=group.operations) for kernel in kernels) if kernels else (group,)


def split_groups(
    groups: Sequence[Group], views: Views, division_of: Callable[[FusedGroup], Division]
) -> tuple[Sequence[Group], Views]:
    """Return the groups with their reductions divided, and views with the workspaces.

    Groups of several parts become two; aligned copies of factors are groups before that of the contraction.
    """
    types: dict[str, TensorType] = {}
    result: list[Group] = []
    for group in groups:
        forms = divide(group.form, division_of(group.form))
        if forms == (group.form,):
            result.append(group)
            continue
        tensors = dict(group.tensors)
        kind = "parts" if forms[0].segments[-1].reductions else "copies"
        own = group.form.outputs
        workspaces = {t: form.tensors[t] for form in forms for t in form.outputs if t not in own}
        for number, (workspace, type_) in enumerate(workspaces.items()):
            name = f"{kind} of {group.outputs[0]}" + (f", {number}" if number else "")
            # Several groups may write pieces of one tensor: each has a workspace of its own, as they may run together.
            tensors[workspace] = unused_name(name, types)
            types[tensors[workspace]] = type_
        for kernel in forms:
            form, canonical = canonical_names(kernel)
            named = {new: tensors[old] for old, new in canonical.items() if old in tensors}
            result.append(evolve(group, form=form, tensors=named))
    programs = evolve(views.programs, types={**views.programs.types, **types})
    return result, evolve(views, programs=programs)
