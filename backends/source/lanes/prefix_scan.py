"""Prefix scans along rows that lanes hold.

A lane holds `vector` neighbours of each *stretch* of the row, all lanes together one after another:

    row of 8 lanes x 2 neighbours x 2 stretches:   lane 0: 0 1 | 16 17   lane 1: 2 3 | 18 19   ...

It scans its neighbours, then lanes exchange their totals: within a warp by shuffles, between warps, or where there are
no warps, through shared memory. The prefix of a stretch is carried from one to the next. Running from the end,
everything is mirrored.
"""

from __future__ import annotations

from math import prod

from attrs import field, frozen

from ....ir import COMBINERS, SCAN_MODES, LaneReduce, Var
from ..ctext import call_text, number_text
from ..scope import KernelNames, Writer


@frozen
class LaneScan:
    """Printer of one scan; `warp` is 1 without shuffles."""

    node: LaneReduce
    names: KernelNames
    out: Writer
    warp: int = field(init=False)

    @warp.default
    def _warp(self) -> int:
        dialect, threads = self.names.dialect, self.names.kernel.threads
        shuffles = dialect.shuffle_from and threads % dialect.warp == 0 and self.node.dtype.size in (4, 8)
        return dialect.warp if shuffles else 1

    @property
    def kind(self) -> str:
        """Type of a value."""
        return self.names.dialect.type(self.node.dtype)

    @property
    def identity(self) -> str:
        """Identity element."""
        return number_text(COMBINERS[self.node.combine].identity(self.node.dtype), self.node.dtype, self.names.dialect)

    @property
    def mirrored(self) -> bool:
        """True where the scan runs from the end of the row."""
        return SCAN_MODES[self.node.along][0]

    def combine(self, left: str, right: str) -> str:
        """Return two combined values, the earlier one on the left."""
        return call_text(COMBINERS[self.node.combine].fn, (left, right), self.node.dtype, self.names.dialect)

    @property
    def stretches(self) -> int:
        """Number of stretches of a row."""
        return self.node.shape[-1] // self.node.vector

    def print(self) -> None:
        """Print the scan: totals of up to a warp's stretches, then prefixes."""
        instances = prod(self.node.shape[:-1])
        carry = self.names.fresh()
        with self.out.block(""):
            self.out.line(f"{self.kind} {carry}[{instances}];")
            with self.out.loop(Var("e", instances)):
                self.out.line(f"{carry}[e] = {self.identity};")
            # Scratch has room for a value of each thread, and each warp stores one of a stretch.
            count = instances * self.stretches
            for start in range(0, count, self.warp):
                with self.out.block(""):
                    self._scan_stretches(Var("k", min(self.warp, count - start)), start, carry)

    def _scan_stretches(self, number: Var, start: int, carry: str) -> None:
        """Print some stretches from number `start` on."""
        totals, befores = self.names.fresh(), self.names.fresh()
        self.out.line(f"{self.kind} {totals}[{number.extent}], {befores}[{number.extent}];")
        total, before = f"{totals}[k]", f"{befores}[k]"
        with self.out.loop(number):
            self._scan_neighbours(start, total)
            (self._scan_in_warp if self.warp > 1 else self._scan_in_shared_memory)(total, before)
            if self._spans_warps:
                self._store_warp_total(total)
        if self._spans_warps:
            self.out.line(self.names.dialect.barrier)
        with self.out.loop(number):
            front = f"{carry}[(k + {start}) / {self.stretches}]"
            whole = self._combine_warps(before) if self._spans_warps else self._total_in_warp(total)
            self._add_prefix(start, front, before)
            self.out.line(f"{front} = {self.combine(front, whole)};")
        if self._spans_warps:
            self.out.line(self.names.dialect.barrier)

    def _places(self) -> list[int]:
        """Return the places of a lane's neighbours in the order of the row."""
        places = range(self.node.vector)
        return [*reversed(places)] if self.mirrored else [*places]

    def _register(self, start: int, place: int) -> str:
        """Return the register of a neighbour of stretch `start + k`; stretches of an instance are adjacent."""
        number = f"(k + {start})"
        if self.mirrored:
            number = (
                f"({number} / {self.stretches} * {self.stretches} + {self.stretches - 1} - {number} % {self.stretches})"
            )
        return f"{self.names.registers[self.node.name]}[{number} * {self.node.vector} + {place}]"

    @property
    def _spans_warps(self) -> bool:
        """Return whether a row spans warps."""
        return self.warp > 1 and self.node.threads > self.warp

    def _scan_neighbours(self, start: int, total: str) -> None:
        """Scan a lane's neighbours; `total` becomes their total."""
        last = ""
        for place in self._places():
            register = self._register(start, place)
            if last:
                self.out.line(f"{register} = {self.combine(last, register)};")
            last = register
        self.out.line(f"{total} = {last};")

    def _lane(self, of: int) -> str:
        """Return a thread's number among `of` threads, in the order of the row."""
        return f"({of - 1} - tid % {of})" if self.mirrored else f"(tid % {of})"

    def _earlier_thread(self, distance: int) -> str:
        """Return the thread `distance` positions before."""
        return f"tid {'+' if self.mirrored else '-'} {distance}"

    def _shuffle(self, value: str, source: str) -> str:
        return self.names.dialect.shuffle_from.format(value=value, source=source)

    def _scan_in_warp(self, total: str, before: str) -> None:
        """Scan the totals of lanes within a warp; `before` becomes a lane's prefix."""
        among = min(self.node.threads, self.warp)
        lane, distance = self._lane(among), 1
        while distance < among:
            # All lanes of the warp must take part, so a shuffle is no operand of a conditional expression.
            other = self.names.fresh()
            self.out.line(f"const {self.kind} {other} = {self._shuffle(total, self._earlier_thread(distance))};")
            self.out.line(f"if ({lane} >= {distance}) {total} = {self.combine(other, total)};")
            distance *= 2
        self.out.line(f"{before} = {self._shuffle(total, self._earlier_thread(1))};")
        self.out.line(f"if ({lane} == 0) {before} = {self.identity};")

    def _scan_in_shared_memory(self, total: str, before: str) -> None:
        """Do the same for all lanes of a row in shared memory; `total` becomes that of the row."""
        lane, scratch, distance, barrier = self._lane(self.node.threads), self._scratch, 1, self.names.dialect.barrier
        self.out.line(f"{scratch}[tid] = {total};")
        self.out.line(barrier)
        while distance < self.node.threads:
            other = self.names.fresh()
            self.out.line(f"{self.kind} {other} = {self.identity};")
            self.out.line(f"if ({lane} >= {distance}) {other} = {scratch}[{self._earlier_thread(distance)}];")
            self.out.line(barrier)
            self.out.line(f"{scratch}[tid] = {self.combine(other, f'{scratch}[tid]')};")
            self.out.line(barrier)
            distance *= 2
        self.out.line(f"{before} = {self.identity};")
        self.out.line(f"if ({lane} != 0) {before} = {scratch}[{self._earlier_thread(1)}];")
        self.out.line(f"{total} = {scratch}[{self._last_thread(self.node.threads)}];")
        self.out.line(barrier)

    def _last_thread(self, among: int) -> str:
        """Return the last thread among `among` neighbours."""
        start = f"tid / {among} * {among}"
        return start if self.mirrored else f"{start} + {among - 1}"

    def _total_in_warp(self, total: str) -> str:
        """Return the total of a row's lanes where they are no more than a warp."""
        if self.warp == 1:
            return total
        whole = self.names.fresh()
        source = self._last_thread(min(self.node.threads, self.warp))
        self.out.line(f"const {self.kind} {whole} = {self._shuffle(total, source)};")
        return whole

    @property
    def _scratch(self) -> str:
        return self.names.lane_scratch(self.node.dtype)

    @property
    def _warps(self) -> int:
        """Warps of a block."""
        return self.names.kernel.threads // self.warp

    def _store_warp_total(self, total: str) -> None:
        """Store a warp's total in shared memory."""
        place = f"k * {self._warps} + tid / {self.warp}"
        self.out.line(f"if ({self._lane(self.warp)} == {self.warp - 1}) {self._scratch}[{place}] = {total};")

    def _combine_warps(self, before: str) -> str:
        """Combine the totals of earlier warps into a lane's prefix; return the row's total."""
        warps = self.node.threads // self.warp
        whole, front = self.names.fresh(), self.names.fresh()
        self.out.line(f"{self.kind} {whole} = {self.identity}, {front} = {self.identity};")
        with self.out.loop(Var("s", warps)):
            place = f"({warps - 1} - s)" if self.mirrored else "s"
            self.out.line(f"if ({place} == tid % {self.node.threads} / {self.warp}) {front} = {whole};")
            value = f"{self._scratch}[k * {self._warps} + tid / {self.node.threads} * {warps} + {place}]"
            self.out.line(f"{whole} = {self.combine(whole, value)};")
        self.out.line(f"{before} = {self.combine(front, before)};")
        return whole

    def _add_prefix(self, start: int, front: str, before: str) -> None:
        """Combine a lane's prefix with its neighbours; an exclusive scan shifts them by one."""
        self.out.line(f"{before} = {self.combine(front, before)};")
        places, without = self._places(), SCAN_MODES[self.node.along][1]
        for number, place in reversed([*enumerate(places)]):
            value = self._register(start, places[number - without] if number or not without else 0)
            new = before if without and number == 0 else self.combine(before, value)
            self.out.line(f"{self._register(start, place)} = {new};")
