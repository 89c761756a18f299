"""Radix sort of rows that lanes hold, least digit first.

    words of lane 0 | lane 1 | ...   in the order of the row
    counts[digit][lane] = words of the lane with this digit          each word's number among them is kept
    counts = exclusive prefix sums, digit by digit, then lane by lane
    row[counts[digit][lane] + number] = word                         for each word of each lane

Each pass is stable, so that equal elements keep their order. Lanes own columns of the counts and stretches of the row;
after each `count` words, and after each 16 counts, one place is free, so that lanes access different banks. A word
holds its place below its key, in 32 bits where these suffice.

Where warps vote, they own columns and stretches instead, and digits have eight bits: lanes whose words have a digit
find one another by votes on its bits, and the last of them counts for all (Merrill and Grimshaw, onesweep).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod

from attrs import frozen

from ....ir import RADIX_DIGITS, DType, LaneReduce, Var, key_bits
from ..scope import KernelNames, Writer
from .bitonic_network import LaneSort
from .prefix_scan import LaneScan

#: Bits of a digit, and of one that a warp counts.
DIGIT_BITS, WARP_DIGIT_BITS = RADIX_DIGITS.bit_length() - 1, 8
#: Helper that numbers the words of a warp among those with their digit.
NUMBER_IN_WARP = "cuts_number_in_warp"


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
            head = f"for ({counter} step = {low}; step < {low + key_bits(self.sort.kind)}; step += {self.digit_bits})"
            with self.out.block(head):
                self.out.line("const int shift = step;")
                self._number_words(words, numbers, total)
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

    @property
    def digit_bits(self) -> int:
        """Return the bits of a digit."""
        return DIGIT_BITS

    def _number_words(self, words: str, numbers: str, total: str) -> None:
        """Print the counts of a pass, and the resulting place of each word."""
        barrier = self.names.dialect.barrier
        with self._loop(RADIX_DIGITS):
            self.out.line(f"{self._count('k')} = 0;")
        digit = self._count(f"(int)({words}[k] >> shift & {RADIX_DIGITS - 1})")
        with self._loop(self.sort.count):
            self.out.line(f"{numbers}[k] = {digit};")
            self.out.line(f"{digit} = {numbers}[k] + 1;")
        self.out.line(barrier)
        self._scan(total)
        self.out.line(barrier)
        with self._loop(self.sort.count):
            self.out.line(f"{numbers}[k] += {digit};")

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
        self._scan_totals(total)
        with self.out.block(""):
            self.out.line(f"int counts[{RADIX_DIGITS}];")
            with self._loop(RADIX_DIGITS):
                self.out.line(f"counts[k] = {own};")
            with self._loop(RADIX_DIGITS):
                self.out.line(f"{own} = {total}[0];")
                self.out.line(f"{total}[0] += counts[k];")

    def _scan_totals(self, total: str) -> None:
        """Print the prefix sums of the lanes' totals."""
        sums = LaneReduce(total, (1,), "sum", DType.I32, self._node.threads, "before")
        LaneScan(sums, self.names, self.out).print()


@frozen
class WarpRadix(LaneRadix):
    """Printer of one row's sort whose warps vote on digits."""

    @property
    def digit_bits(self) -> int:
        """Return the bits of a digit."""
        return WARP_DIGIT_BITS

    @property
    def _warp(self) -> str:
        """Return the number of a lane's warp in its row."""
        return f"tid % {self._node.threads} / {self.names.dialect.warp}"

    def _warp_count(self, warp: str, digit: str) -> str:
        return self._counts(f"({warp}) * {1 << WARP_DIGIT_BITS} + {digit}")

    def _padded_place(self, place: str) -> str:
        """Return where a place of the row lies: lanes access neighbours."""
        return place

    def _fetch(self, words: str) -> None:
        """Print the loads of a warp's stretch of the row."""
        lanes = self.names.dialect.warp
        place = f"{self._warp} * {lanes * self.sort.count} + k * {lanes} + tid % {lanes}"
        with self._loop(self.sort.count):
            self.out.line(f"{words}[k] = {self._row(place)};")
        self.out.line(self.names.dialect.barrier)

    def _number_words(self, words: str, numbers: str, total: str) -> None:
        """Print the counts of a pass, and the resulting place of each word."""
        lanes, digits, barrier = self.names.dialect.warp, 1 << WARP_DIGIT_BITS, self.names.dialect.barrier
        with self._loop(digits // lanes):
            self.out.line(f"{self._warp_count(self._warp, f'k * {lanes} + tid % {lanes}')} = 0;")
        digit = f"(int)({words}[k] >> shift & {digits - 1})"
        with self._loop(self.sort.count):
            self.out.line(f"{numbers}[k] = {NUMBER_IN_WARP}(&{self._warp_count(self._warp, '0')}, {digit}, tid);")
        self.out.line(barrier)
        own, each = f"tid % {self._node.threads}", -(-digits // self._node.threads)
        inside = f"if ({own} < {digits // each}) " if self._node.threads * each > digits else ""
        count = self._warp_count("w", f"{own} * {each} + k")
        warps = Var("w", self._node.threads // lanes)
        self.out.line(f"{total}[0] = 0;")
        with self._loop(each), self.out.loop(warps):
            self.out.line(f"{inside}{total}[0] += {count};")
        self._scan_totals(total)
        with self._loop(each), self.out.loop(warps), self.out.block(inside):
            self.out.line(f"const int before = {total}[0];")
            self.out.line(f"{total}[0] += {count};")
            self.out.line(f"{count} = before;")
        self.out.line(barrier)
        with self._loop(self.sort.count):
            self.out.line(f"{numbers}[k] += {self._warp_count(self._warp, digit)};")


def radix_printer(sort: LaneSort, names: KernelNames, out: Writer) -> LaneRadix:
    """Return the printer of a row's sort, by whole warps that vote."""
    dialect = names.dialect
    whole = sort.node.threads % dialect.warp == 0 and names.kernel.threads % dialect.warp == 0
    votes = NUMBER_IN_WARP in dialect.helpers and whole
    return (WarpRadix if votes else LaneRadix)(sort, names, out)
