"""What the door of PyTorch asks of whoever compiles: plans that run in PyTorch's memory, or functions of arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import frozen

from ...ir import DType
from .captured import Captured, Ends


class OutletLike(Protocol):
    """Where an output is found: elements from the start of a block, with strides; `owned` where the block is for it."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def block(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def owned(self) -> bool: ...


class Blocks(Protocol):
    """The blocks of memory of a program: constants, scratch, shared constants, held inputs, other inputs, outputs."""

    @property
    def held(self) -> tuple[str, ...]: ...
    @property
    def moving(self) -> tuple[str, ...]: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...
    @property
    def fresh(self) -> tuple[int, ...]: ...
    @property
    def outlets(self) -> Sequence[OutletLike]: ...


class Running(Protocol):
    """A program opened on a device; memory of its own was allocated by PyTorch."""

    @property
    def layout(self) -> Blocks: ...
    @property
    def waits(self) -> bool: ...
    def fixed(self, held: Sequence[int], scratch: int | None = None) -> tuple[int, ...]: ...
    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None: ...
    def launch_apart(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None: ...


#: Returns the address of memory with the content of a digest, of so many bytes; the last argument fills new memory.
Share: TypeAlias = Callable[[str, int, Callable[[int], None]], int]


class TensorProgram(Protocol):
    """A compiled graph that runs over memory of another library."""

    def open(self, held: Collection[str], allocate: Callable[[int], int], share: Share | None = None) -> Running: ...


#: A compiled graph as a function of arrays by name.
ArrayFunction: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Choice(Protocol):
    """Compiled forms of one graph: PyTorch's settings say, at each call, which of them runs."""

    def choose(self) -> TensorProgram | ArrayFunction: ...


#: Compiles a graph for a device of PyTorch.
CompileGraph: TypeAlias = Callable[[Captured, Any], ArrayFunction | Choice]


@frozen
class Found:
    """What an earlier process made of a captured graph; inputs of the numbers `frozen` became constants."""

    ends: Ends
    frozen: tuple[int, ...]
    compiled: ArrayFunction | Choice


class Kept(Protocol):
    """What earlier processes made of captured graphs, found by what is told of these."""

    def find(
        self, words: Sequence[str | bytes], device: Any, captured: Callable[[Sequence[int]], Captured]
    ) -> Found | None:
        """Return what was made of a graph; `captured` reads it again, with inputs of these numbers as constants, where
        more must be made of it.
        """

    def keep(self, words: Sequence[str | bytes], found: Found) -> None:
        """Let later processes find it."""
