"""What code generation hands to a runtime: kernel functions in source form and where tensors live.

Names inside a kernel are generated; the tensor names of a graph appear only in `Argument.tensor`, never in source.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from .types import DType


@frozen
class Advance:
    """How a tensor moves through its buffer as a loop of `turns` goes on: by `by` elements a turn, starting anew after
    `period` turns where that is not 0, with `phase` turns of a period gone at the first.
    """

    by: int
    turns: int
    period: int = 0
    phase: int = 0

    def at(self, turn: int) -> int:
        """Return how many elements further the tensor begins at a turn."""
        return self.by * ((turn + self.phase) % self.period if self.period else turn)

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest distance over all turns."""
        last = self.by * ((self.period or self.turns) - 1)
        return min(0, last), max(0, last)


@frozen
class Storage:
    """Where a tensor's elements live: element `i` is at `offset + sum(i * strides)` of buffer `buffer`, counted in
    elements.

    Most tensors own a dense buffer of their own name; a part of a concatenation or a slice lives inside another's, and
    what a turn of a loop touches may `advance`.
    """

    buffer: str
    offset: int
    strides: tuple[int, ...]
    advance: Advance | None = None

    def start(self, turn: int = 0) -> int:
        """Return at which element of the buffer the tensor begins at a turn of its loop."""
        return self.offset + (self.advance.at(turn) if self.advance else 0)

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest element of the buffer that it begins at."""
        low, high = self.advance.ends if self.advance else (0, 0)
        return self.offset + low, self.offset + high


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
