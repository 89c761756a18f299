"""Radix sort of rows that lanes hold, least digit first.

    words of lane 0 | lane 1 | ...   in the order of the row
    counts[digit][lane] = words of the lane with this digit          each word's number among them is kept
    counts = exclusive prefix sums, digit by digit, then lane by lane
    row[counts[digit][lane] + number] = word                         for each word of each lane

Each pass is stable, so that equal elements keep their order. Lanes own columns of the counts and stretches of the row;
after each `count` words, and after each 16 counts, one place is free, so that lanes access different banks. A word
holds its place below its key, in 32 bits where these suffice.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod

from attrs import frozen

from ....ir import RADIX_DIGITS, DType, LaneReduce, Var, key_bits
from ..scope import KernelNames, Writer
from .bitonic_network import LaneSort
from .prefix_scan import LaneScan

#: Bits of a digit.
DIGIT_BITS = RADIX_DIGITS.bit_length() - 1


@frozen
class LaneRadix:
    """Printer of one row's sort; `sort` prints its words."""

    sort: LaneSort
    names: KernelNames
    out: Writer

    @property
    def _node(self) -> LaneReduce:
        return self.sort.node

    @property
    def _place_bits(self) -> int:
        """Return the bits of a word below its key: those of a place, or half of a word."""
        bits = (self._node.threads * self.sort.count - 1).bit_length()
        return bits if bits + key_bits(self.sort.kind) <= 32 else 32

    @property
    def _word(self) -> DType:
        return DType.U64 if self._place_bits == 32 else DType.U32

    def print(self) -> None:
        """Print the words, the passes over their digits, and the resulting places."""
        node, count, barrier, low = self._node, self.sort.count, self.names.dialect.barrier, self._place_bits
        word, words, numbers, total = self.names.dialect.type(self._word), *(self.names.fresh() for _ in range(3))
        self.names.registers[total] = total
        with self.out.loop(Var("e", prod(node.shape[:-1])), meets=True):
            self.out.line(f"{word} {words}[{count}];")
            self.out.line(f"int {numbers}[{count}], {total}[1];")
            with self._loop(count):
                whole = f"({word}){self.sort.key} << {low} | ({word}){self.sort.place}"
                self.out.line(f"{self._row(self._padded_place(self.sort.place))} = {whole};")
            self.out.line(barrier)
            self._fetch(words)
            counter = self.names.dialect.meeting_counter
            head = f"for ({counter} step = {low}; step < {low + key_bits(self.sort.kind)}; step += {DIGIT_BITS})"
            with self.out.block(head):
                self.out.line("const int shift = step;")
                with self._loop(RADIX_DIGITS):
                    self.out.line(f"{self._count('k')} = 0;")
                digit = self._count(f"(int)({words}[k] >> shift & {RADIX_DIGITS - 1})")
                with self._loop(count):
                    self.out.line(f"{numbers}[k] = {digit};")
                    self.out.line(f"{digit} = {numbers}[k] + 1;")
                self.out.line(barrier)
                self._scan(total)
                self.out.line(barrier)
                with self._loop(count):
                    self.out.line(f"{numbers}[k] += {digit};")
                self.out.line(barrier)
                with self._loop(count):
                    self.out.line(f"{self._row(self._padded_place(f'{numbers}[k]'))} = {words}[k];")
                self.out.line(barrier)
                self._fetch(words)
            register = f"{self.names.registers[node.name]}[e * {count} + k]"
            with self._loop(count):
                place = f"{self._row(self._padded_place(self.sort.place))} & {(1 << low) - 1}u"
                self.out.line(f"{register} = ({self.names.dialect.type(node.dtype)})({place});")
            self.out.line(barrier)

    def _loop(self, count: int) -> AbstractContextManager[None]:
        return self.out.loop(Var("k", count))

    def _row(self, place: str) -> str:
        """Return a word of the row in shared memory; the sums of a scan lie before it."""
        lanes, size = self._node.threads, self._node.threads * (self.sort.count + 1)
        return f"{self.names.lane_scratch(self._word)}[{self._start(self._word)} + tid / {lanes} * {size} + {place}]"

    def _count(self, digit: str) -> str:
        """Return the number of the lane's words with a digit, in shared memory."""
        pitch = self._node.threads * (RADIX_DIGITS + 1) // RADIX_DIGITS
        lane = f"tid % {self._node.threads}"
        return self._counts(f"{digit} * {pitch} + {lane} + {lane} / {RADIX_DIGITS}")

    def _counts(self, place: str) -> str:
        lanes, size = self._node.threads, self._node.threads * (RADIX_DIGITS + 1)
        return f"{self.names.lane_scratch(DType.I32)}[{self._start(DType.I32)} + tid / {lanes} * {size} + {place}]"

    def _start(self, dtype: DType) -> int:
        """Return the elements that the sums of a scan take, one of 32 bits for each thread."""
        return -(-self.names.kernel.threads // 2) * (8 // dtype.size)

    def _padded_place(self, place: str) -> str:
        """Return where a place of the row lies."""
        return f"{place} + {place} / {self.sort.count}"

    def _fetch(self, words: str) -> None:
        """Print the loads of a lane's stretch of the row."""
        with self._loop(self.sort.count):
            self.out.line(f"{words}[k] = {self._row(f'tid % {self._node.threads} * {self.sort.count + 1} + k')};")
        self.out.line(self.names.dialect.barrier)

    def _scan(self, total: str) -> None:
        """Print the prefix sums of all counts: a lane adds up those of one stretch."""
        own = self._counts(f"tid % {self._node.threads} * {RADIX_DIGITS + 1} + k")
        self.out.line(f"{total}[0] = 0;")
        with self._loop(RADIX_DIGITS):
            self.out.line(f"{total}[0] += {own};")
        sums = LaneReduce(total, (1,), "sum", DType.I32, self._node.threads, "before")
        LaneScan(sums, self.names, self.out).print()
        with self.out.block(""):
            self.out.line(f"int counts[{RADIX_DIGITS}];")
            with self._loop(RADIX_DIGITS):
                self.out.line(f"counts[k] = {own};")
            with self._loop(RADIX_DIGITS):
                self.out.line(f"{own} = {total}[0];")
                self.out.line(f"{total}[0] += counts[k];")
