"""Phases of mbarriers, for the checker of races.

Phase n of an mbarrier ends with its arrival and all its bytes. A thread waits for it by parity n % 2: it must wait for
each phase before the next one begins, or it cannot tell one from another. A wait without a fetch never ends; so does a
fetch that expects more bytes than its copies bring, and one that expects fewer ends before these.

A producer runs as far ahead as its own waits allow: for the release of a stage, at which each warp arrives once its
products no longer read the stage. The first such wait of a stage is for a phase before the first one, which has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from attrs import define, field

from ...ir import BulkFetch, Index, MbarrierArrive, MbarrierInit, MbarrierWait, Var, substitute

#: Elements of a buffer that a copy writes.
Span = TypeVar("Span")
#: An mbarrier: its buffer and its number.
_Slot = tuple[str, int]


@define
class Mbarriers(Generic[Span]):
    """State of a kernel's mbarriers between two items.

    `fetched` and `waited` count the phases that began and those that threads waited for; `recent` are waits since the
    last barrier, `pending` the copies of unfinished phases, `ready` the arrivals that initialised buffers expect.
    `stages` has the last copies of each number of an mbarrier, `released` counts the releases of a stage, `reused` the
    waits of a producer for them.
    """

    fetched: dict[_Slot, int] = field(factory=dict)
    waited: dict[_Slot, int] = field(factory=dict)
    recent: set[_Slot] = field(factory=set)
    pending: dict[_Slot, list[Span]] = field(factory=dict)
    begun: dict[str, int] = field(factory=dict)
    ready: dict[str, int] = field(factory=dict)
    stages: dict[int, Sequence[Span]] = field(factory=dict)
    released: dict[_Slot, int] = field(factory=dict)
    reused: dict[_Slot, int] = field(factory=dict)

    @property
    def copying(self) -> Iterator[Span]:
        """Elements that bulk copies may still write."""
        return (span for spans in self.pending.values() for span in spans)

    def initialise(self, item: MbarrierInit) -> None:
        """Initialise the mbarriers of a buffer.

        Other threads see it after a barrier.
        """
        self.begun[item.barriers] = item.arrivals

    def synchronise(self) -> None:
        """Make initialisations visible; all threads have done their waits."""
        self.ready |= self.begun
        self.recent.clear()

    def fetch(self, item: BulkFetch, steps: Mapping[Var, int], spans: Sequence[Span], brought: int) -> Iterator[str]:
        """Begin a phase with copies that bring `brought` bytes; yield its faults."""
        slot = item.barriers, _constant(item.slot, steps)
        name = f"mbarrier {slot[0]}[{slot[1]}]"
        if slot[0] not in self.ready:
            yield f"a bulk fetch arrives at {name} before it is initialised"
        elif self.ready[slot[0]] != 1:
            yield f"a bulk fetch arrives once at {name}, which expects {self.ready[slot[0]]} arrivals"
        if self.fetched.get(slot, 0) != self.waited.get(slot, 0):
            yield f"a bulk fetch arrives at {name} before its last phase was waited for"
        elif slot in self.recent:
            yield f"a bulk fetch arrives at {name} while other threads may wait for its last phase"
        if brought != item.nbytes:
            yield f"a bulk fetch expects {item.nbytes} bytes at {name}, its copies bring {brought}"
        self.fetched[slot] = self.fetched.get(slot, 0) + 1
        self.pending[slot] = [*self.pending.get(slot, ()), *spans]
        self.stages[slot[1]] = spans

    def wait(self, item: MbarrierWait, steps: Mapping[Var, int]) -> tuple[Sequence[Span], Sequence[str]]:
        """Wait for the next phase; return its copies and the faults."""
        slot, parity = (item.barriers, _constant(item.slot, steps)), _constant(item.parity, steps)
        name, turn = f"mbarrier {slot[0]}[{slot[1]}]", self.waited.get(slot, 0)
        faults = []
        if turn >= self.fetched.get(slot, 0):
            faults.append(f"a wait at {name} is for a phase that nothing begins")
        if parity != turn % 2:
            faults.append(f"a wait at {name} has parity {parity}, its phase {turn} has {turn % 2}")
            return (), faults  # it waits for the phase before, or for none
        self.waited[slot] = turn + 1
        self.recent.add(slot)
        return self.pending.pop(slot, ()), faults

    def arrive(
        self, item: MbarrierArrive, steps: Mapping[Var, int], warps: int
    ) -> tuple[Sequence[Span], Sequence[str]]:
        """Release a stage by all warps; return the stage and the faults."""
        slot = item.barriers, _constant(item.slot, steps)
        self.released[slot] = self.released.get(slot, 0) + 1
        self.recent = {other for other in self.recent if other[1] != slot[1]}
        expected = self.ready.get(slot[0], 0)
        faults = [f"{warps} warps arrive at {slot[0]}, which expects {expected}"] if warps != expected else []
        return self.stages.get(slot[1], ()), faults

    def may_reuse(self, item: MbarrierWait, steps: Mapping[Var, int]) -> bool:
        """Return whether a producer's wait for the release of a stage ends."""
        slot = item.barriers, _constant(item.slot, steps)
        return self.released.get(slot, 0) % 2 != _constant(item.parity, steps)

    def reuse(self, item: MbarrierWait, steps: Mapping[Var, int]) -> Iterator[str]:
        """End a producer's wait for a released stage; yield its faults."""
        slot = item.barriers, _constant(item.slot, steps)
        turn = self.reused.get(slot, 0)
        if self.released.get(slot, 0) < turn:
            yield f"a producer's wait at {slot[0]}[{slot[1]}] ends before release {turn} of the stage"
        self.reused[slot] = turn + 1


def _constant(index: Index, steps: Mapping[Var, int]) -> int:
    found = substitute(index, steps)
    assert found.is_const, f"{index.text} is no number at each step"
    return found.const
