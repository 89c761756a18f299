"""Donated buffers: outputs that become inputs of the next run.

They are moved within the arena. An input's place is free for others after its last read, so that outputs may lie where
inputs begin. Moves are therefore ordered so that nothing is overwritten before it is moved; in a cycle, one source is
set aside first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ..backends import Array, Pointer
from ..ir import UsageError, quote
from .plan import Plan
from .session import Session


@frozen
class BufferMove:
    """Move of `nbytes` bytes within the arena.

    With `aside`, the source is in the memory set aside.
    """

    source: int
    target: int
    nbytes: int
    aside: bool = False

    def overwrites(self, other: BufferMove) -> bool:
        """Return whether the move overwrites the source of another."""
        return (
            not other.aside and self.target < other.source + other.nbytes and other.source < self.target + self.nbytes
        )


@frozen
class Moves:
    """Moves in order, those that set a source aside first.

    `room` is the memory set aside, in bytes.
    """

    first: tuple[BufferMove, ...]
    then: tuple[BufferMove, ...]
    room: int


def order_moves(moves: Sequence[BufferMove]) -> Moves:
    """Order moves so that none overwrites the source of a later one."""
    pending = [move for move in moves if move.nbytes and move.source != move.target]
    first: list[BufferMove] = []
    then: list[BufferMove] = []
    room = 0
    while pending:
        free = next((m for m in pending if not any(m.overwrites(other) for other in pending if other is not m)), None)
        if free is not None and (free.aside or not free.overwrites(free)):
            then.append(free)
            pending.remove(free)
            continue
        stuck = free or pending[0]
        spoilt = next(other for other in pending if stuck.overwrites(other))
        first.append(BufferMove(spoilt.source, room, spoilt.nbytes))
        pending[pending.index(spoilt)] = evolve(spoilt, source=room, aside=True)
        room += spoilt.nbytes
    return Moves(tuple(first), tuple(then), room)


class DonatedSession:
    """Session whose outputs are inputs of the next run.

    `carried` maps an input to the output that replaces it. Carried tensors stay on the device; those that do
    not lie dense in memory go by way of the host.

    Raises `UsageError` where the plan lacks an input or an output that is to be carried.
    """

    def __init__(self, session: Session, carried: Mapping[str, str]) -> None:
        plan = session.plan
        _check(plan, carried)
        self.session = session
        self.carried = carried
        dense = {name for name, source in carried.items() if session.is_dense(name) and session.is_dense(source)}
        self._by_host = {name: source for name, source in carried.items() if name not in dense}
        moves = order_moves([_move(plan, name, carried[name]) for name in carried if name in dense])
        with session.device.current():
            aside = session.device.allocate(moves.room) if moves.room else session.arena
        self._copies = tuple(
            (Pointer(to, move.target), Pointer(aside if move.aside else session.arena, move.source), move.nbytes)
            for part, to in ((moves.first, aside), (moves.then, session.arena))
            for move in part
        )

    def begin(self, inputs: Mapping[str, object], wanted: Sequence[str]) -> dict[str, Array]:
        """Run for the first time, on all inputs; return `wanted` outputs."""
        return self.session.run_on(inputs, (), wanted)

    def run_next(self, inputs: Mapping[str, object], wanted: Sequence[str]) -> dict[str, Array]:
        """Run on the carried state and the other inputs; return `wanted` outputs."""
        from_host = {name: self.session.read(source) for name, source in self._by_host.items()}
        return self.session.run_on(
            {**inputs, **from_host}, self._copies, wanted, self.carried.keys() - from_host.keys()
        )

    def state(self) -> dict[str, Array]:
        """Return the carried state that the next run begins with."""
        return {name: self.session.read(source) for name, source in self.carried.items()}


def _check(plan: Plan, carried: Mapping[str, str]) -> None:
    for pair in carried.items():
        for what, name, names in zip(("input", "output"), pair, (plan.inputs, plan.outputs), strict=True):
            if name not in names:
                raise UsageError(f"plan {quote(plan.name)} has no {what} {quote(name)} to carry")


def _move(plan: Plan, name: str, source: str) -> BufferMove:
    def place(tensor: str) -> int:
        storage = plan.storages[tensor]
        return plan.buffers[storage.buffer].offset + storage.offset * plan.types[tensor].dtype.size

    return BufferMove(place(source), place(name), plan.types[name].nbytes)
