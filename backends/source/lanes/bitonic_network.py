"""Sort of rows that lanes hold: a bitonic network.

It compares words with an element and its place, so that no two are equal and the order is stable (Batcher, Sorting
networks and their applications, 1968).

Element c of a row of 2^s places lies at bits [stretch | lane | neighbour] of c. A step compares those whose places
differ in one bit: in a lane's own registers, by a shuffle, or, between warps and where there are none, through shared
memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod

from attrs import frozen

from ....ir import SORT_ORDERS, DType, LaneReduce, Var
from ..scope import KernelNames, Writer

#: Key of a place after the end of a row: it is the largest.
ABSENT_KEY = "0xffffffffu"


@frozen
class LaneSort:
    """Printer of one row's sort; `kind` is the register type of elements."""

    node: LaneReduce
    kind: DType
    names: KernelNames
    out: Writer

    @property
    def count(self) -> int:
        """Places of a row in each lane."""
        return self.node.shape[-1]

    @property
    def _shuffles(self) -> bool:
        dialect = self.names.dialect
        return bool(dialect.shuffle) and self.names.kernel.threads % dialect.warp == 0

    def print(self) -> None:
        """Print the words, the network, and the resulting places."""
        word = self.names.dialect.type(DType.U64)
        words = self.names.fresh()
        with self.out.loop(Var("e", prod(self.node.shape[:-1])), unroll=0 if self._shuffles else 1):
            self.out.line(f"{word} {words}[{self.count}];")
            with self._loop("k", self.count):
                self.out.line(f"{words}[k] = {self.word};")
            self.network(words, word)
            register = f"{self.names.registers[self.node.name]}[e * {self.count} + k]"
            kind = self.names.dialect.type(self.node.dtype)
            with self._loop("k", self.count):
                self.out.line(f"{register} = ({kind})({words}[k] & {ABSENT_KEY});")

    def _loop(self, name: str, count: int) -> AbstractContextManager[None]:
        return self.out.loop(Var(name, count), unroll=0 if self._shuffles else 1)

    @property
    def word(self) -> str:
        """Return element `k` and its place as one number."""
        word = self.names.dialect.type(DType.U64)
        return f"({word}){self.key} << 32 | ({word}){self.place}"

    @property
    def key(self) -> str:
        """Return element `k` as an integer in the sort order."""
        value = f"{self.names.registers[self.node.keys]}[e * {self.count} + k]"
        bits = f"cuts_ordered_{self.kind.value}({value})"
        bits = bits if SORT_ORDERS[self.node.along] else f"~{bits}"
        return f"({self.place} < {self.node.extent} ? {bits} : {ABSENT_KEY})"

    @property
    def place(self) -> str:
        """Return the place in the row of a lane's word `k`."""
        return self._place("k")

    def _place(self, number: str) -> str:
        """Return the place in the row of one of a lane's words."""
        vector, lanes = self.node.vector, self.node.threads
        return f"({number} / {vector} * {lanes * vector} + tid % {lanes} * {vector} + {number} % {vector})"

    @property
    def _bits(self) -> tuple[int, int, int]:
        """Return bits of a place: the ends of those of neighbours, lanes, and the row."""
        near = self.node.vector.bit_length() - 1
        lanes = near + self.node.threads.bit_length() - 1
        return near, lanes, lanes + (self.count // self.node.vector).bit_length() - 1

    def _own_bit(self, bit: int) -> int:
        """Return the bit of a lane's own numbers for a bit of a place, for neighbours and stretches."""
        near, lanes, _ = self._bits
        return bit if bit < near else bit - lanes + near

    def network(self, words: str, word: str) -> None:
        """Print the steps that sort the words of a row."""
        if self._shuffles:
            self._network(words, word)
        else:
            self._network_loops(words, word)

    def _network(self, words: str, word: str) -> None:
        """Print all steps, one after another."""
        near, lanes, every = self._bits
        for stage in range(1, every + 1):
            for bit in reversed(range(stage)):
                if near <= bit < lanes:
                    self._exchange_between_lanes(words, word, str(stage), str(bit), 1 << bit - near)
                else:
                    self._exchange_in_lane(words, word, str(stage), str(1 << self._own_bit(bit)))

    def _network_loops(self, words: str, word: str) -> None:
        """Print loops over the steps: those between stretches, between lanes, between neighbours."""
        near, lanes, every = self._bits
        counter = self.names.dialect.meeting_counter
        with self.out.block(f"for ({counter} stage = 1; stage <= {every}; ++stage)"):
            with self.out.block(f"for ({counter} bit = stage - 1; bit >= {lanes}; --bit)"):
                self._exchange_in_lane(words, word, "stage", f"(1 << (bit - {lanes - near}))")
            with self.out.block(f"for ({counter} bit = min((int)stage, {lanes}) - 1; bit >= {near}; --bit)"):
                self._exchange_between_lanes(words, word, "stage", "bit", 0)
            with self.out.block(f"for ({counter} bit = min((int)stage, {near}) - 1; bit >= 0; --bit)"):
                self._exchange_in_lane(words, word, "stage", "(1 << bit)")

    def _rises(self, number: str, stage: str) -> str:
        return f"({self._place(number)} >> {stage} & 1) == 0"

    def _exchange_in_lane(self, words: str, word: str, stage: str, distance: str) -> None:
        """Print a step between a lane's own words at a distance."""
        with self._loop("k", self.count // 2):
            self.out.line(f"const int low = k / {distance} * 2 * {distance} + k % {distance}, high = low + {distance};")
            self.out.line(f"const {word} left = {words}[low], right = {words}[high];")
            self.out.line(f"const int swaps = (left > right) == ({self._rises('low', stage)});")
            self.out.line(f"{words}[low] = swaps ? right : left;")
            self.out.line(f"{words}[high] = swaps ? left : right;")

    def _exchange_between_lanes(self, words: str, word: str, stage: str, bit: str, distance: int) -> None:
        """Print a step between lanes whose numbers differ in one bit; `distance` is that of the lanes, where it is
        known.
        """
        dialect = self.names.dialect
        near = self._bits[0]
        lane_distance = str(distance) if distance else f"(1 << ({bit} - {near}))"
        with self._loop("k", self.count):
            if self._shuffles and distance < dialect.warp:
                other = dialect.shuffle.format(value=f"{words}[k]", distance=lane_distance)
                self.out.line(f"const {word} other = {other};")
            else:
                scratch = self.names.lane_scratch(DType.U64)
                self.out.line(f"{scratch}[tid] = {words}[k];")
                self.out.line(dialect.barrier)
                self.out.line(f"const {word} other = {scratch}[tid ^ {lane_distance}];")
                self.out.line(dialect.barrier)
            least = f"({self._rises('k', stage)}) == ((tid & {lane_distance}) == 0)"
            self.out.line(f"{words}[k] = (other < {words}[k]) == ({least}) ? other : {words}[k];")
