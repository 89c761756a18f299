"""Launches of groups, and their order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from ...ir import FusedGroup, member_name
from ..fusion import Group, rename_group
from ..schedule import Candidate


@frozen(eq=False)
class Launch:
    """Groups of one launch, with their candidates and original positions.

    Equal kernels are adjacent.
    """

    groups: tuple[Group, ...]
    candidates: tuple[Candidate, ...]
    places: tuple[int, ...]

    def merge(self, other: Launch, key: Mapping[int, Hashable]) -> Launch:
        """Return two launches as one; `key` identifies kernels by a group's position."""
        first: dict[Hashable, int] = {}
        for place in (*self.places, *other.places):
            first.setdefault(key[place], place)
        members = zip(
            (*self.groups, *other.groups), (*self.candidates, *other.candidates), (*self.places, *other.places),
            strict=True,
        )  # fmt: skip
        ordered = sorted(members, key=lambda m: (first[key[m[2]]], m[2]))
        return Launch(tuple(m[0] for m in ordered), tuple(m[1] for m in ordered), tuple(m[2] for m in ordered))

    def halves(self) -> tuple[Launch, Launch]:
        """Return a launch of the earlier half of the groups, and another."""
        middle = sorted(self.places)[len(self.places) // 2]
        members = list(zip(self.groups, self.candidates, self.places, strict=True))
        parts = [m for m in members if m[2] < middle], [m for m in members if m[2] >= middle]
        first, second = (Launch(*map(tuple, zip(*part, strict=True))) for part in parts)
        return first, second

    @property
    def arguments(self) -> int:
        """Number of its pointers, without tables."""
        return sum(len(g.form.inputs) + len(g.form.outputs) for g in self.groups)


def with_one_schedule(
    launches: Sequence[Launch], keys: Mapping[int, Hashable], is_legal: Callable[[Launch], bool]
) -> list[Launch]:
    """Return launches in which equal kernels have one candidate.

    Equal kernels are lowered once, with the candidate of the last launch. The groups of a launch that is illegal with
    these candidates are launched each.
    """
    chosen, found = dict[Hashable, Candidate](), list[Launch]()
    for launch in reversed(launches):
        own = [keys[place] for place in launch.places]
        agreed = evolve(launch, candidates=tuple(map(chosen.get, own, launch.candidates)))
        if len(own) == 1 or agreed.candidates == launch.candidates:
            found.append(launch)
        elif is_legal(agreed):
            found.append(agreed)
        else:
            members = zip(launch.groups, launch.candidates, launch.places, strict=True)
            found += [Launch((group,), (candidate,), (place,)) for group, candidate, place in members]
            continue
        if len(own) > 1:
            chosen.update(zip(own, agreed.candidates, strict=True))
    return found[::-1]


def in_order(launches: Sequence[Launch], needs: Sequence[frozenset[int]]) -> Iterator[Launch]:
    """Yield launches after their dependencies.

    Otherwise each is at the position of the last of its groups, or before its first reader: other launches do not run
    ahead of those that wait for it. Groups of a loop stay together, in their order.
    """
    runs = sorted(_runs(launches), key=_last_place)
    owner = {place: n for n, run in enumerate(runs) for launch in run for place in launch.places}
    waits = [{owner[p] for launch in run for place in launch.places for p in needs[place]} for run in runs]
    opened, done = set[int](), set[int]()
    for last in range(len(runs)):
        pending = [last]
        while pending:
            n = pending.pop()
            missing = set() if n in opened else waits[n] - done - {n}  # the groups of a loop wait for each other
            opened.add(n)
            if missing:
                pending += [n, *sorted(missing, reverse=True)]
            elif n not in done:
                done.add(n)
                yield from runs[n]


def _runs(launches: Sequence[Launch]) -> list[list[Launch]]:
    """Return each launch as a run, those of a loop as one run."""
    runs: list[list[Launch]] = []
    loops: dict[str, list[Launch]] = {}
    for launch in sorted(launches, key=lambda each: each.places):
        loop = launch.groups[0].repeat
        run = [] if loop is None else loops.setdefault(loop, [])
        if not run:
            runs.append(run)
        run.append(launch)
    return runs


def _last_place(run: Sequence[Launch]) -> int:
    return max(place for launch in run for place in launch.places)


def join_forms(forms: Sequence[FusedGroup]) -> FusedGroup:
    """Return several groups as one, with the tensor names of their bundle."""
    renamed = [_member(form, number) for number, form in enumerate(forms)]
    return FusedGroup(
        tuple(segment for form in renamed for segment in form.segments),
        {tensor: type_ for form in renamed for tensor, type_ in form.tensors.items()},
        tuple(tensor for form in renamed for tensor in form.inputs),
        tuple(tensor for form in renamed for tensor in form.outputs),
        tuple(tensor for form in renamed for tensor in form.shared),
        {tensor: table for form in renamed for tensor, table in form.constants.items()},
        tuple(tensor for form in renamed for tensor in form.fixed),
        tuple(dict.fromkeys(name for form in forms for name in form.operations)),
    )


def _member(form: FusedGroup, number: int) -> FusedGroup:
    """Return a member's form with the names of its bundle, those of its reductions included."""
    held = {r.name for segment in form.segments for r in segment.reductions}
    names = {t: member_name(number, t) for t in {*form.tensors, *form.constants, *held}}
    return rename_group(form, names)
