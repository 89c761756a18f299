"""How groups with few results and long reductions are divided: into parts, which two kernels compute, or into slices,
which threads of a block share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf, isnan

from attrs import evolve, field, frozen

from ...ir import FusedGroup, Target, TensorType
from ...ops.language import unused_name
from ..fusion import Group, GroupEvaluator, Views, canonical_names, form_key
from .slice_reduction import slice_reduction, slicings
from .split_reduction import candidates, split_reduction


@frozen
class Division:
    """Into how many parts a group's reduction is divided, or into how many slices; one of either where it is whole."""

    parts: int = 1
    slices: int = 1


WHOLE = Division()

#: How many times longer than the best by the model a group may take and still be worth a measurement: the model takes
#: the best of a few points, which may be so much slower than a search's.
CLOSE = 1.5


@frozen
class Splitting:
    """What groups cost where each may be divided: the model says in how many parts. Where both ways are `timed`,
    `evaluator` says whether that is faster; elsewhere the model must see the parts take less than the part `worth` of
    the whole. Slices take a group's place only where they were timed, and so was what they replace.
    """

    evaluator: GroupEvaluator
    modelled: GroupEvaluator
    target: Target
    worth: float = 1.0
    timed: Callable[[FusedGroup], bool] = lambda form: False
    known: dict[Hashable, int] = field(factory=dict)
    halved: dict[tuple[Hashable, int], tuple[FusedGroup, ...]] = field(factory=dict)
    sliced: dict[Hashable, dict[int, FusedGroup]] = field(factory=dict)

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group, or of its parts where these are faster."""
        return self.best(group)[0]

    def best(self, group: FusedGroup) -> tuple[float, Division]:
        """Return the least seconds and the division with which they are reached."""
        seconds, division, known = self._parted(group)
        if known:
            for number, form in self.slicings(group).items():
                if self.timed(form) and (found := self.evaluator.cost(form)) < seconds:
                    seconds, division = found, Division(slices=number)
        return seconds, division

    def _parted(self, group: FusedGroup) -> tuple[float, Division, bool]:
        """Return the least seconds without slices, the division, and whether it was timed."""
        halves, whole = self.halves(group), self.evaluator.cost(group)
        if not halves:
            return whole, WHOLE, self.timed(group)
        parts = _sum(halves, self.evaluator)
        if all(map(self.timed, (group, *halves))):
            split, known = parts < whole, True
        else:
            split = _sum(halves, self.modelled) < self.worth * self.modelled.cost(group)
            known = all(map(self.timed, halves if split else (group,)))
        return (parts, Division(parts=self.most_useful(group)), known) if split else (whole, WHOLE, known)

    def division(self, group: FusedGroup) -> Division:
        """Return how a group is divided where it is fastest, not at all where no kernel computes it."""
        seconds, division = self.best(group)
        return division if seconds < inf else WHOLE

    def kernels(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return what computes a group as it is fastest: the group, its halves, or the group in slices."""
        return _named(divided(group, self.division(group)))

    def contenders(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return the groups of which a clock has to say how a group is divided: the group and what would take its
        place, but for what takes much longer by the model.
        """
        halves, sliced = self.halves(group), tuple(self.slicings(group).values())
        whole, parts = self.modelled.cost(group), _sum(halves, self.modelled) if halves else inf
        close = CLOSE * min(whole, parts)
        return (*((group,) if whole <= close else ()), *(halves if parts <= close else ()), *sliced)

    def slicings(self, group: FusedGroup) -> dict[int, FusedGroup]:
        """Return the group in slices by how many there are, those numbers that are worth comparing."""
        key = form_key(group)
        if key not in self.sliced:
            sliced = slicings(group, self.target)
            self.sliced[key] = dict(zip(sliced, _named(sliced.values()), strict=True))
        return self.sliced[key]

    def halves(self, group: FusedGroup) -> tuple[FusedGroup, ...]:
        """Return the two groups that would take a group's place, none where it is not worth splitting."""
        parts = self.most_useful(group)
        return self._halves(group, parts) if parts > 1 else ()

    def _halves(self, group: FusedGroup, parts: int) -> tuple[FusedGroup, ...]:
        """Return the two groups that compute one with its reduction in parts, none where that cannot be; they are made
        once.
        """
        key = form_key(group), parts
        if key not in self.halved:
            self.halved[key] = _named(split_reduction(group, parts) or ())
        return self.halved[key]

    def most_useful(self, group: FusedGroup) -> int:
        """Return the number of parts that is best by the model; fewer parts are tried as long as they help."""
        key = form_key(group)
        if key not in self.known:
            found, slower = (inf, 1), False
            for parts in reversed(candidates(group, self.target)):
                seconds = _sum(self._halves(group, parts), self.modelled) or inf
                if isnan(seconds):  # nobody said in time
                    return 1
                slower = seconds >= found[0]
                found = min(found, (seconds, parts))
                if slower:
                    break
            self.known[key] = found[1]
        return self.known[key]


def _sum(groups: Iterable[FusedGroup], evaluator: GroupEvaluator) -> float:
    return sum(evaluator.cost(group) for group in groups)


def _named(groups: Iterable[FusedGroup]) -> tuple[FusedGroup, ...]:
    """Return groups over the names that they will have where they are launched, so that what is learned of them is
    found again.
    """
    return tuple(canonical_names(group)[0] for group in groups)


def divided(group: FusedGroup, division: Division) -> tuple[FusedGroup, ...]:
    """Return the kernels of a group with its reduction divided, the group where that is not possible."""
    if division.slices > 1:
        found = slice_reduction(group, division.slices)
        return (group,) if found is None else (found,)
    halves = split_reduction(group, division.parts) if division.parts > 1 else None
    return (group,) if halves is None else halves


def split_groups(
    groups: Sequence[Group], views: Views, division_of: Callable[[FusedGroup], Division]
) -> tuple[Sequence[Group], Views]:
    """Return the groups with those of several parts split in two and those of several slices in these, and views that
    know the workspaces.
    """
    types: dict[str, TensorType] = {}
    result: list[Group] = []
    for group in groups:
        forms = divided(group.form, division_of(group.form))
        if forms == (group.form,):
            result.append(group)
            continue
        tensors, kind = dict(group.tensors), "slices" if len(forms) == 1 else "parts"
        for number, workspace in enumerate(forms[0].shared if len(forms) == 1 else forms[0].outputs):
            name = f"{kind} of {group.outputs[0]}" + (f", {number}" if number else "")
            # Several groups may write pieces of one tensor: each has a workspace of its own, as they may run together.
            tensors[workspace] = unused_name(name, types)
            types[tensors[workspace]] = forms[0].tensors[workspace]
        for kernel in forms:
            form, canonical = canonical_names(kernel)
            named = {new: tensors[old] for old, new in canonical.items() if old in tensors}
            result.append(evolve(group, form=form, tensors=named))
    programs = evolve(views.programs, types={**views.programs.types, **types})
    return result, evolve(views, programs=programs)
