"""Legality of launch orders and of launches that several groups share.

Groups of one launch run in any order, or at the same time; a launch sees all writes of earlier launches. So a launch
may not read results of its own members, and everything that it needs is launched earlier: the tensors that it reads
and, where it adds to memory, the kernel that fills this memory and the readers of its earlier contents.

The rules are stated over units and tensors, independent of the way in which an order was found, so they hold for every
kind of target and for replayed decisions.
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
    """Yield violations of the rules.

    `places` has the positions of each launch's groups when they were formed.
    """
    broken = [*check_loops_whole(launches)]
    yield from broken or (*check_launches_in_order(launches, views), *check_iteration_order(launches, places))


def check_launches_in_order(launches: Sequence[Sequence[Group]], views: Views) -> Iterator[VerifyError]:
    """Yield launches that run before their operands are ready.

    A launch reads inputs of the graph, results of earlier launches, and views of these. Memory that it adds to is
    filled, and read by all earlier units that read it. Every output is computed in the end.
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
        turn = _Order(evolve(views, programs=views.programs.iteration(loop.repeat)), groups)
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
    """Yield the missing operands of a launch's members, then count the launch as done."""
    for group in launch:
        where = f"group {', '.join(map(quote, group.units))}"
        for tensor in group.inputs:
            if not order.has(tensor, group.units):
                yield VerifyError(f"{where} reads {quote(tensor)} before it is computed")
        for tensor in updated_tensors(group):
            if not order.has(tensor, group.units):
                yield VerifyError(f"{where} adds to {quote(tensor)} before it is filled")
            for reader in order.waiting_readers(tensor, group.units):
                yield VerifyError(f"{where} adds to {quote(tensor)} before {quote(reader)} has read it")
    for group in launch:
        order.ran(group)


def updated_tensors(group: Group) -> tuple[str, ...]:
    """Return the graph tensors whose elements a group updates in memory."""
    outputs = (output for segment in group.form.segments for output in segment.outputs)
    return tuple(dict.fromkeys(group.tensors[output.tensor] for output in outputs if output.into))


def check_loops_whole(launches: Sequence[Sequence[Group]]) -> Iterator[VerifyError]:
    """Yield loops whose groups are not launched one by one, adjacent."""
    for launch in launches:
        loops = dict.fromkeys(group.repeat for group in launch if group.repeat is not None)
        if loops and len(launch) > 1:
            yield VerifyError(f"a group of loop {quote(next(iter(loops)))} shares a launch")
    runs = Counter(repeat for repeat, _ in groupby(launches, key=lambda launch: launch[0].repeat))
    for repeat, count in runs.items():
        if repeat is not None and count > 1:
            yield VerifyError(f"loop {quote(repeat)} is launched in {count} pieces")


def check_iteration_order(
    launches: Sequence[Sequence[Group]], places: Sequence[Sequence[int]]
) -> Iterator[VerifyError]:
    """Yield loops whose groups have left the order of their formation.

    An iteration may write where an earlier one did, so the order matters.
    """
    for (first, before), (second, after) in pairwise(zip(launches, places, strict=True)):
        repeat = first[0].repeat
        if repeat is not None and repeat == second[0].repeat and before[-1] > after[0]:
            yield VerifyError(f"groups of loop {quote(repeat)} have changed their order")


class _Order:
    """Set of the ready tensors while launches run one after the other.

    A tensor is ready when all units that write it have run. A unit has run when all its groups have (a split reduction
    has two); a unit without a kernel when its operands are ready. Of a piecewise tensor, units need the pieces of
    earlier units.
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
        """Return whether a tensor is ready, or the part that `uses` need."""
        pending, later = [(tensor, self._first_reader(tensor, readers))], False
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
        """Return earlier units that have yet to read a tensor.

        They read it, or a view of it, before `changers` change it.
        """
        place, pending = self._first_reader(tensor, changers), [tensor]
        found: list[str] = []
        while pending:
            for unit in self.consumers.get(pending.pop(), ()):
                if self.place[unit.name] < place and unit.name not in self.done:
                    pending.extend(unit.writes if unit.free else ())
                    found.extend(() if unit.free else (unit.name,))
        return found

    def _first_reader(self, tensor: str, readers: Sequence[str]) -> int:
        """Return the position of the first reader among some units, the end where none reads it."""
        places = [self.place[unit] for unit in readers if tensor in self.reads[unit]]
        return min(places, default=len(self.place))
