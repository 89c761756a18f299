"""Partition of a graph around operations that cannot be compiled.

A stage is a part that is compiled, followed by foreign operations. The number of an operation's stage is the number of
parts before the longest chain that it ends, so that stages are few, large and convex:

    a -> F -> b -> c -> d          stage 0: part a, e; foreign F
    a -> e                         stage 1: part b, c, d

A part that does little work before foreign operations joins them (`MIN_WORK`), and an operation is computed in the
stage of its readers where less memory crosses then.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

#: Work of the smallest part: an operation over elements counts 1, a reduction or contraction 2, a view 0.
MIN_WORK = 2


@frozen
class PartitionedOperation:
    """Node of a graph: numbers of the operations whose results it reads.

    It runs after the foreign operations `after` too (random numbers keep their order). `nbytes` is the size of its
    results; a `returned` one is a result of the graph.
    """

    reads: tuple[int, ...]
    foreign: bool = False
    work: int = 0
    nbytes: int = 0
    returned: bool = False
    after: tuple[int, ...] = ()


@frozen
class PartitionStage:
    """Operations to compile together, and the foreign ones after them."""

    part: tuple[int, ...]
    foreign: tuple[int, ...]


def partition(operations: Sequence[PartitionedOperation], early: bool = False) -> tuple[PartitionStage, ...]:
    """Return the stages of operations, which are in an order of execution.

    With `early`, each is in the first stage that it can be in.
    """
    readers: list[list[int]] = [[] for _ in operations]
    for number, operation in enumerate(operations):
        for read in dict.fromkeys(operation.reads):
            readers[read].append(number)
    plan = _Partition.of(operations, readers, frozenset(n for n, each in enumerate(operations) if each.foreign), early)
    tried: set[tuple[int, ...]] = set()
    while (better := plan.improve(tried)) is not None:
        plan = better
    found: dict[int, tuple[list[int], list[int]]] = {}
    for number, level in enumerate(plan.levels):
        found.setdefault(level, ([], []))[number in plan.foreign].append(number)
    return tuple(PartitionStage(tuple(part), tuple(foreign)) for _, (part, foreign) in sorted(found.items()))


@frozen(eq=False)
class _Partition:
    """Operations with the number of each one's stage, and the foreign ones."""

    operations: Sequence[PartitionedOperation]
    readers: Sequence[Sequence[int]]
    foreign: frozenset[int]
    levels: list[int]
    early: bool

    @classmethod
    def of(
        cls, operations: Sequence[PartitionedOperation], readers: Sequence[Sequence[int]], foreign: frozenset[int],
        early: bool,
    ) -> _Partition:  # fmt: skip
        """Return the partition for some foreign operations."""
        levels: list[int] = []
        for number, operation in enumerate(operations):
            before = (
                levels[read] + (read in foreign and number not in foreign)
                for read in (*operation.reads, *operation.after)
            )
            levels.append(max(before, default=0))
        made = cls(operations, readers, foreign, levels, early)
        for number in () if early else reversed(range(len(operations))):
            made.delay(number)
        return made

    def delay(self, number: int) -> None:
        """Move an operation to its first reader's stage where less memory crosses."""
        operation, level = self.operations[number], self.levels[number]
        last = min((self.levels[reader] for reader in self.readers[number]), default=level)
        if number in self.foreign or operation.returned or last == level:
            return
        saved = 0 if self._crosses(number, last) else operation.nbytes
        reads = (read for read in dict.fromkeys(operation.reads) if not self._crosses(read, self.levels[read]))
        if sum(self.operations[read].nbytes for read in reads) <= saved:
            self.levels[number] = last

    def parts(self) -> list[list[int]]:
        """Return the operations of each part, in order."""
        found: dict[int, list[int]] = {}
        for number, level in enumerate(self.levels):
            if number not in self.foreign:
                found.setdefault(level, []).append(number)
        return [part for _, part in sorted(found.items())]

    def improve(self, tried: set[tuple[int, ...]]) -> _Partition | None:
        """Return a partition with less light work in parts, else None.

        Light parts become foreign, and so do light beginnings of parts where there are fewer parts then. `tried` has
        the beginnings that brought nothing.
        """
        parts = self.parts()
        light = [number for part in parts if self._work(part) < MIN_WORK for number in part]
        if light:
            return self._add_foreign(light)
        for part in parts:
            before = tuple(self._before_foreign(part))
            if before and before not in tried and self._work(before) < MIN_WORK:
                found = self._add_foreign(before)
                if len(found.parts()) < len(parts):
                    return found
                tried.add(before)
        return None

    def _add_foreign(self, more: Sequence[int]) -> _Partition:
        return _Partition.of(self.operations, self.readers, self.foreign | set(more), self.early)

    def _work(self, numbers: Sequence[int]) -> int:
        return sum(self.operations[number].work for number in numbers)

    def _crosses(self, number: int, level: int) -> bool:
        """Return whether a result is read outside of the part of a stage."""
        if number in self.foreign or self.operations[number].returned:
            return True
        return any(reader in self.foreign or self.levels[reader] != level for reader in self.readers[number])

    def _before_foreign(self, part: Sequence[int]) -> list[int]:
        """Return the operations of a part that foreign ones of its stage wait for."""
        found: set[int] = set()
        for number in reversed(part):
            level = self.levels[number]
            if any(
                reader in found or (reader in self.foreign and self.levels[reader] == level)
                for reader in self.readers[number]
            ):
                found.add(number)
        return sorted(found)
