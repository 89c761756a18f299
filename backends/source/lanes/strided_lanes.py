"""Strided combination of threads; each gets a part of the values.

A tile of threads holds values of several instances, and sums some dims of it. Where the threads are lanes of a warp,
each exchanges half of its values with the other half of the lanes, then half of the rest, until it has its own part:

    lanes 0, 1 with values a b | c d   ->   lane 0: a + c   lane 1: b + d

It takes a shuffle for half of the values instead of one for all. Warps combine whole values through shared memory.
"""

from __future__ import annotations

from math import prod

from attrs import frozen

from ....ir import COMBINERS, LaneReduce, Var
from ..ctext import call_text
from ..scope import KernelNames, Writer


@frozen
class StridedLanes:
    """Printer of one combination."""

    node: LaneReduce
    names: KernelNames
    out: Writer

    @property
    def _kind(self) -> str:
        return self.names.dialect.type(self.node.dtype)

    @property
    def _lane(self) -> str:
        """Number of a thread among those that it combines with."""
        return f"(tid / {self.node.stride} % {self.node.threads})"

    @property
    def _first(self) -> str:
        """First of the threads that a thread combines with."""
        span = self.node.stride * self.node.threads
        return f"tid / {span} * {span} + tid % {self.node.stride}"

    def print(self) -> None:
        """Print the combination: by shuffles within warps, else through shared memory."""
        dialect, kernel = self.names.dialect, self.names.kernel
        shuffles = dialect.shuffle and kernel.threads % dialect.warp == 0 and self.node.dtype.size in (4, 8)
        if self.node.whole:
            self._gather()
        elif shuffles and self.node.stride * self.node.threads <= dialect.warp:
            self._halve()
        else:
            self._exchange()

    def _combine(self, left: str, right: str) -> str:
        return call_text(COMBINERS[self.node.combine].fn, (left, right), self.node.dtype, self.names.dialect)

    def _register(self, instance: str, number: str) -> str:
        return f"{self.names.registers[self.node.name]}[{instance} * {self.node.shape[-1]} + {number}]"

    def _halve(self) -> None:
        """Exchange halves of the values between lanes."""
        left, distance, dialect = self.node.extent, self.node.threads // 2, self.names.dialect
        while distance:
            left //= 2
            upper, mine, other = self.names.fresh(), self.names.fresh(), self.names.fresh()
            self.out.line(f"const bool {upper} = {self._lane} & {distance};")
            with self.out.loop(Var("e", prod(self.node.shape[:-1]))), self.out.loop(Var("k", left)):
                low, high = self._register("e", "k"), self._register("e", f"k + {left}")
                self.out.line(f"const {self._kind} {mine} = {upper} ? {high} : {low};")
                self.out.line(f"const {self._kind} {other} = {upper} ? {low} : {high};")
                received = dialect.shuffle.format(value=other, distance=distance * self.node.stride)
                self.out.line(f"{low} = {self._combine(mine, received)};")
            distance //= 2

    def _exchange(self) -> None:
        """Combine one value after another through shared memory, each for the thread that gets it."""
        part, scratch = self.node.extent // self.node.threads, self.names.lane_scratch(self.node.dtype)
        for owner in range(self.node.threads):
            with self.out.loop(Var("e", prod(self.node.shape[:-1]))), self.out.loop(Var("k", part)):
                self.out.line(f"{scratch}[tid] = {self._register('e', f'k + {owner * part}')};")
                self.out.line(self.names.dialect.barrier)
                with self.out.block(f"if ({self._lane} == {owner})"):
                    self._add_up(self._register("e", "k"), f"{scratch}[{self._first}")
                self.out.line(self.names.dialect.barrier)

    def _gather(self) -> None:
        """Combine all values through shared memory in the first thread."""
        scratch, threads = self.names.lane_scratch(self.node.dtype), self.names.kernel.threads
        loops, register = (Var("e", prod(self.node.shape[:-1])), Var("k", self.node.extent)), self._register("e", "k")
        place = f"{scratch}[(e * {self.node.extent} + k) * {threads}"
        with self.out.loops(loops):
            self.out.line(f"{place} + tid] = {register};")
        self.out.line(self.names.dialect.barrier)
        with self.out.block(f"if ({self._lane} == 0)"), self.out.loops(loops):
            self._add_up(register, f"{place} + {self._first}")
        self.out.line(self.names.dialect.barrier)

    def _add_up(self, register: str, place: str) -> None:
        """Combine the values of all threads from a place on."""
        self.out.line(f"{register} = {place}];")
        for number in range(1, self.node.threads):
            self.out.line(f"{register} = {self._combine(register, f'{place} + {number * self.node.stride}]')};")
