"""Radix selection of elements from a row that a block holds.

The first elements of an order are selected, or one:

    low = 0;  for each bit, from the highest:  fewer keys below low + bit than wanted?  low += bit

All keys are compared with a bound, and the block adds up the number below it. So the interval around the last wanted
key is halved until few keys lie in it; equal keys differ in their places, which are halved in the same way. Elements up
to the end of the interval are collected in shared memory, and only these are sorted: by counting, or by a network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import prod

from attrs import evolve, field, frozen

from ....ir import MAX_COUNTED_WORDS, DType, LaneReduce, Var, selection_room
from ..scope import KernelNames, Writer
from .bitonic_network import ABSENT_KEY, LaneSort
from .combination import LaneCombination
from .prefix_scan import LaneScan


@frozen
class LaneSelect:
    """Printer of one selection: `sort` prints keys and the network."""

    sort: LaneSort
    names: KernelNames
    out: Writer
    room: int = field(init=False)

    @room.default
    def _room(self) -> int:
        low, high = self.sort.node.ranks
        return selection_room((low, high), self.sort.node.extent)

    @property
    def _node(self) -> LaneReduce:
        return self.sort.node

    @property
    def _single(self) -> bool:
        """Return whether one element is selected, so that those before it are left out."""
        return self._node.ranks[0] > 0

    @property
    def _first_rank(self) -> str:
        """Return the rank of the first collected element."""
        return "below" if self._single else "0"

    @property
    def _row(self) -> int:
        return self.sort.count * self._node.threads

    @property
    def _words(self) -> str:
        """Return the collected elements."""
        return self.names.lane_scratch(DType.U64)

    @property
    def _places(self) -> str:
        """Return the resulting places in shared memory, after the collected elements."""
        return f"({self.names.lane_scratch(DType.I32)} + {2 * self.room})"

    def print(self) -> None:
        """Print the bounds, the collected elements, and the resulting places."""
        with self.out.loop(Var("e", prod(self._node.shape[:-1])), meets=True):
            keys, count = self.names.fresh(), self.names.fresh()
            place_bits = (self._row - 1).bit_length()
            self.out.line(f"unsigned {keys}[{self.sort.count}];")
            self.out.line(f"int {count}[1];")
            with self._loop():
                self.out.line(f"{keys}[k] = {self.sort.key};")
            self.out.line(f"unsigned low = 0u, rest = {ABSENT_KEY}, edge = 0u, width = {(1 << place_bits) - 1}u;")
            self.out.line(f"int below = 0, upto = {self._row};")
            with self._halving("low", "rest", 32):
                self._count(count, f"{keys}[k] < middle")
                self._close(count, "low")
            self.out.line("const int before = below;")
            with self._halving("edge", "width", place_bits):
                self._count(count, f"{keys}[k] == low && {self.sort.place} < middle")
                self.out.line(f"{count}[0] += before;")
                self._close(count, "edge")
            self._collect(keys, count)
            if self.room <= MAX_COUNTED_WORDS:
                self._order_by_counts()
            else:
                self._order_by_network()
            low, high = self._node.ranks
            inside = f"{self.sort.place} >= {low} && {self.sort.place} < {high}"
            with self._loop():
                place = f"{inside} ? {self._places}[{self.sort.place} - {low}] : 0"
                self.out.line(f"{self.names.registers[self._node.name]}[e * {self.sort.count} + k] = {place};")
            self.out.line(self.names.dialect.barrier)

    def _loop(self) -> AbstractContextManager[None]:
        return self.out.loop(Var("k", self.sort.count))

    @contextmanager
    def _halving(self, start: str, width: str, bits: int) -> Iterator[None]:
        """Open the loop that halves an interval until few elements lie in it; `middle` is where."""
        over = f"upto - {self._first_rank} > {self.room}"
        counter = self.names.dialect.meeting_counter
        with self.out.block(f"for ({counter} bit = {bits}; bit > 0 && {over}; --bit)"):
            self.out.line(f"{width} >>= 1;")
            self.out.line(f"const unsigned middle = {start} + {width} + 1u;")
            yield

    def _count(self, count: str, condition: str) -> None:
        """Print the number of a row's elements under a condition."""
        self.out.line(f"{count}[0] = 0;")
        with self._loop():
            self.out.line(f"{count}[0] += {condition};")
        LaneCombination(self.names, self.out).print((self._sum_node(count),))

    def _sum_node(self, count: str, along: str = "") -> LaneReduce:
        self.names.registers[count] = count
        return LaneReduce(count, (1,), "sum", DType.I32, self._node.threads, along)

    def _close(self, count: str, start: str) -> None:
        """Print the choice of the half that the last wanted element lies in."""
        self.out.line(f"const int closes = {count}[0] >= {self._node.ranks[1]};")
        self.out.line(f"upto = closes ? {count}[0] : upto;")
        self.out.line(f"below = closes ? below : {count}[0];")
        self.out.line(f"{start} = closes ? {start} : middle;")

    def _collect(self, keys: str, count: str) -> None:
        """Print the elements' way into shared memory, each lane's after those of the lanes before."""
        word = self.names.dialect.type(DType.U64)
        self.out.line(f"const {word} begin = ({word})low << 32 | edge;")
        self.out.line(f"const {word} last = ({word})(low | rest) << 32 | (edge + width);")
        own = f"(({word}){keys}[k] << 32 | ({word}){self.sort.place})"
        inside = f"{own} >= begin && {own} <= last" if self._single else f"{own} <= last"
        self.out.line(f"{count}[0] = 0;")
        with self._loop():
            self.out.line(f"{count}[0] += {inside};")
        LaneScan(self._sum_node(count, "before"), self.names, self.out).print()
        with self._loop():
            self.out.line(f"if ({inside}) {self._words}[{count}[0]++] = {own};")
        self.out.line(self.names.dialect.barrier)

    def _order_by_counts(self) -> None:
        """Print for each collected element the number of those before it."""
        word, threads = self.names.dialect.type(DType.U64), self._node.threads
        with self.out.block(f"for (int i = tid % {threads}; i < upto - {self._first_rank}; i += {threads})"):
            self.out.line(f"const {word} own = {self._words}[i];")
            self.out.line(f"int rank = {self._first_rank};")
            with self.out.block(f"for (int j = 0; j < upto - {self._first_rank}; ++j)"):
                self.out.line(f"rank += {self._words}[j] < own;")
            self._store_place("rank", "own")
        self.out.line(self.names.dialect.barrier)

    def _order_by_network(self) -> None:
        """Print the network over the collected elements: many lanes, few each."""
        word, threads = self.names.dialect.type(DType.U64), self._node.threads
        count = max(1, (1 << (self.room - 1).bit_length()) // threads)
        sort = evolve(self.sort, node=evolve(self._node, shape=(count,), vector=1))
        words, each = self.names.fresh(), Var("k", count)
        self.out.line(f"{word} {words}[{count}];")
        with self.out.loop(each):
            self.out.line(f"{words}[k] = {sort.place} < upto ? {self._words}[{sort.place}] : ~({word})0;")
        self.out.line(self.names.dialect.barrier)
        sort.network(words, word)
        with self.out.loop(each):
            self._store_place(sort.place, f"{words}[k]")
        self.out.line(self.names.dialect.barrier)

    def _store_place(self, rank: str, word: str) -> None:
        """Print the place of an element of this rank into shared memory."""
        low, high = self._node.ranks
        inside = f"{rank} >= {low} && {rank} < {high}"
        self.out.line(f"if ({inside}) {self._places}[{rank} - {low}] = (int)({word} & {ABSENT_KEY});")
