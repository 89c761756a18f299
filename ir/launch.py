"""What code generation hands to a runtime: kernel functions in source form and where tensors live.

Names inside a kernel are generated; the tensor names of a graph appear only in `Argument.tensor`, never in source.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from .types import DType

#: What the names of kernels end in that begin by waiting for the end of all that was launched before them, where the
#: machine can place a kernel earlier than that.
WAITING = "_waits"
#: What the facts of a library's routine call the name of the generated kernel whose place it takes.
INSTEAD = "instead"


@frozen
class Storage:
    """Where a tensor's elements live: element `i` is at `offset + sum(i * strides)` of buffer `buffer`, counted in
    elements.

    Most tensors own a dense buffer of their own name; a part of a concatenation or a slice lives inside another's. What
    a loop of `turns` touches may move by `by` elements a turn; where `period` is not 0 it starts anew after so many
    turns, and `phase` of them are gone at the first.
    """

    buffer: str
    offset: int
    strides: tuple[int, ...]
    by: int = 0
    turns: int = 1
    period: int = 0
    phase: int = 0

    def start(self, turn: int = 0) -> int:
        """Return at which element of the buffer the tensor begins at a turn of its loop."""
        return self.offset + self.by * ((turn + self.phase) % self.period if self.period else turn)

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest element of the buffer that it begins at."""
        last = self.by * ((self.period or self.turns) - 1)
        return self.offset + min(0, last), self.offset + max(0, last)


@frozen
class Argument:
    """A pointer parameter of a kernel: the graph tensor bound to it, its element type and whether the kernel writes it.

    The pointer addresses the tensor's first element (`Storage.offset` is added at launch); strides are baked into the
    source. A `table` argument is an int32 array made on the host (`KernelFunction.tables`), not a graph tensor.
    """

    tensor: str
    dtype: DType
    written: bool
    table: bool = False


@frozen
class KernelFunction:
    """One kernel: source of one dialect ("cuda" or "opencl"), entry name, launch geometry, parameters in order.

    `source` is a complete translation unit. `grid` counts blocks and `block` threads, each (x, y, z). `shared_bytes` is
    static shared memory, declared inside the kernel; `dynamic_shared` what a launch must ask for besides. `info` is
    what reports show: chosen parameters, bound, FLOPs, bytes, group members.
    """

    name: str
    dialect: str
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    dynamic_shared: int = 0
    tables: Mapping[str, tuple[int, ...]] = field(factory=dict)
    info: Mapping[str, object] = field(factory=dict)
