"""The law of launches: in which order they may run, and which groups may share one.

What is launched together runs in any order, or at the same time; what is launched behind something sees all that it
wrote. So a launch may need nothing that a member of it makes, and everything that it needs must be launched before:
what it reads, and, where it adds to memory, what that is filled with and whoever reads it as it was.

The law is stated over units and tensors, not over how an order was found, so it holds launches of every kind of target,
those of a decision that was read from a file included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from attrs import evolve

from ..ir import VerifyError, quote
from .fusion import Group, Views


def launch_violations(
    launches: Sequence[Sequence[Group]], places: Sequence[Sequence[int]], views: Views
) -> Iterator[VerifyError]:
    """Yield what breaks the law; `places` says where the groups of each launch stood when they were formed."""
    broken = [*check_loops_whole(launches)]
    yield from broken or (*check_launches_in_order(launches, views), *check_turns_kept(launches, places))


def check_launches_in_order(launches: Sequence[Sequence[Group]], views: Views) -> Iterator[VerifyError]:
    """A launch reads what the graph is given, what launches before it wrote, and views of these; what it adds to is
    filled, and read by all that stand in front; every output is there in the end.
    """
    groups = Counter(unit for launch in launches for group in launch for unit in group.units)
    order = _Order(views, groups)
    units = {unit.name: unit for unit in views.programs.units}
    for repeat, run in groupby(launches, key=lambda launch: launch[0].repeat):
        if repeat is None:
            for launch in run:
                yield from _in_order(launch, order)
            continue
        loop = units[repeat]
        assert loop.repeat is not None, f"unit {repeat} is no loop"
        yield from (
            VerifyError(f"loop {quote(repeat)} reads {quote(t)} before it is computed")
            for t in loop.reads
            if not order.has(t, (repeat,))
        )
        turn = _Order(evolve(views, programs=views.programs.turn(loop.repeat)), groups)
        made = {t for unit in loop.repeat.units for t in unit.writes}
        turn.present.update(t for unit in loop.repeat.units for t in unit.reads if t not in made)
        for launch in run:
            yield from _in_order(launch, turn)
        yield from (
            VerifyError(f"loop {quote(repeat)} does not compute {quote(t)}")
            for t in loop.repeat.kept
            if not turn.has(t)
        )
        order.done.add(repeat)
    for tensor in views.programs.graph.outputs:
        if not order.has(tensor) and views.programs.graph.types[tensor].size:
            yield VerifyError(f"no group computes output {quote(tensor)}")


def _in_order(launch: Sequence[Group], order: _Order) -> Iterator[VerifyError]:
    """Yield what members of a launch need and what no launch before it has done, and then count it as done."""
    for group in launch:
        where = f"group {', '.join(map(quote, group.units))}"
        for tensor in group.inputs:
            if not order.has(tensor, group.units):
                yield VerifyError(f"{where} reads {quote(tensor)} before it is computed")
        for tensor in changed_in_place(group):
            if not order.has(tensor, group.units):
                yield VerifyError(f"{where} adds to {quote(tensor)} before it is filled")
            for reader in order.waiting_readers(tensor, group.units):
                yield VerifyError(f"{where} adds to {quote(tensor)} before {quote(reader)} has read it")
    for group in launch:
        order.ran(group)


def changed_in_place(group: Group) -> tuple[str, ...]:
    """Return the graph tensors whose elements a group combines with what lies there."""
    outputs = (output for segment in group.form.segments for output in segment.outputs)
    return tuple(dict.fromkeys(group.tensors[output.tensor] for output in outputs if output.into))


def check_loops_whole(launches: Sequence[Sequence[Group]]) -> Iterator[VerifyError]:
    """The groups of a loop are launched one by one, next to each other."""
    for launch in launches:
        loops = dict.fromkeys(group.repeat for group in launch if group.repeat is not None)
        if loops and len(launch) > 1:
            yield VerifyError(f"a group of loop {quote(next(iter(loops)))} shares a launch")
    runs = Counter(repeat for repeat, _ in groupby(launches, key=lambda launch: launch[0].repeat))
    for repeat, count in runs.items():
        if repeat is not None and count > 1:
            yield VerifyError(f"loop {quote(repeat)} is launched in {count} pieces")


def check_turns_kept(launches: Sequence[Sequence[Group]], places: Sequence[Sequence[int]]) -> Iterator[VerifyError]:
    """The groups of a loop run in the order in which they were formed: what a turn writes may lie where an earlier one
    did.
    """
    for (first, before), (second, behind) in pairwise(zip(launches, places, strict=True)):
        repeat = first[0].repeat
        if repeat is not None and repeat == second[0].repeat and before[-1] > behind[0]:
            yield VerifyError(f"groups of loop {quote(repeat)} have changed their order")


class _Order:
    """Which tensors are there, while launches run one after the other.

    A tensor is there when all units that write it have run. A unit has run when all its groups have (a split reduction
    is two); one that needs no kernel when what it reads is there. Of a tensor that is written in pieces, units need
    those that stand in front of them.
    """

    def __init__(self, views: Views, groups: Counter[str]) -> None:
        graph = views.programs.graph
        self.producers = views.programs.producers()
        self.consumers = views.programs.consumers()
        self.place = {unit.name: place for place, unit in enumerate(views.programs.units)}
        self.reads = {unit.name: unit.reads for unit in views.programs.units}
        self.present = {*graph.inputs, *graph.constants, *views.programs.tables}
        self.missing = groups.copy()
        self.done: set[str] = set()

    def ran(self, group: Group) -> None:
        """Count a group as run."""
        self.missing.subtract(group.units)
        self.done.update(unit for unit in group.units if not self.missing[unit])
        self.present.update(t for t in group.outputs if t not in self.producers)

    def has(self, tensor: str, readers: Sequence[str] = ()) -> bool:
        """Whether a tensor is there, or as much of it as some units need."""
        pending, later = [(tensor, self._first(tensor, readers))], False
        while pending:
            name, place = pending.pop()
            units = self.producers.get(name, [])
            if name in self.present:
                continue
            waiting = [u for u in units if u.name not in self.done and self.place[u.name] < place]
            later = later or any(u.name not in self.done for u in units)
            if not units or any(not u.free for u in waiting):
                return False
            pending.extend((t, self.place[u.name]) for u in waiting for t in u.reads)
        self.present |= set() if later else {tensor}
        return True

    def waiting_readers(self, tensor: str, changers: Sequence[str]) -> list[str]:
        """Return the units in front of those that change a tensor which are still to read it, or a view of it."""
        place, pending = self._first(tensor, changers), [tensor]
        found: list[str] = []
        while pending:
            for unit in self.consumers.get(pending.pop(), ()):
                if self.place[unit.name] < place and unit.name not in self.done:
                    pending.extend(unit.writes if unit.free else ())
                    found.extend(() if unit.free else (unit.name,))
        return found

    def _first(self, tensor: str, readers: Sequence[str]) -> int:
        """Return the place of the first among some units that reads a tensor, the end where none does."""
        places = [self.place[unit] for unit in readers if tensor in self.reads[unit]]
        return min(places, default=len(self.place))
