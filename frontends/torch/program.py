"""Protocols between PyTorch's compiled function and the compiler.

A plan runs in PyTorch's memory, or as a function of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import frozen

from ...ir import DType
from .captured_graph import CapturedGraph, GraphSignature


class OutputViewLike(Protocol):
    """View of an output in a block, which is `owned` or shared."""

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
    """Blocks of a program's memory.

    These are constants, scratch, shared constants, held inputs, other inputs, outputs.
    """

    @property
    def held(self) -> tuple[str, ...]: ...
    @property
    def moving(self) -> tuple[str, ...]: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...
    @property
    def fresh(self) -> tuple[int, ...]: ...
    @property
    def in_place(self) -> Mapping[str, str]: ...
    @property
    def output_views(self) -> Sequence[OutputViewLike]: ...


class PartLike(Protocol):
    """Part of the launches.

    It has the fresh blocks first touched in it, and those, and the moving inputs, last touched, by position.
    """

    @property
    def allocated(self) -> tuple[int, ...]: ...
    @property
    def released(self) -> tuple[int, ...]: ...
    @property
    def finished(self) -> tuple[int, ...]: ...


class Running(Protocol):
    """Program opened on a device, with memory that PyTorch allocated."""

    @property
    def layout(self) -> Blocks: ...
    @property
    def parts(self) -> Sequence[PartLike]: ...
    @property
    def waits(self) -> bool: ...
    def fixed_addresses(self, held: Sequence[int], scratch: int) -> tuple[int, ...]: ...
    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int, part: int | None = None) -> None: ...


#: Returns the address of memory with the content of a digest, of a size in bytes; the last argument fills new memory.
Share: TypeAlias = Callable[[str, int, Callable[[int], None]], int]


class TensorProgram(Protocol):
    """Compiled graph that runs over memory of another library."""

    def open(
        self,
        held: Collection[str],
        allocate: Callable[[int], int],
        share: Share | None = None,
        divide: bool = False,
    ) -> Running: ...


#: A compiled graph as a function of arrays by name.
ArrayFunction: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Choice(Protocol):
    """Compiled forms of one graph; PyTorch's settings select one at each call."""

    def choose(self) -> TensorProgram | ArrayFunction: ...


#: Compiles a graph for a device of PyTorch.
CompileGraph: TypeAlias = Callable[[CapturedGraph, Any], ArrayFunction | Choice]


@frozen
class CachedGraph:
    """Cached compilation of a captured graph.

    Inputs of the numbers `frozen` are constants. The last results are the new elements of the inputs `updated`.
    """

    ends: GraphSignature
    frozen: tuple[int, ...]
    compiled: ArrayFunction | Choice
    updated: tuple[int, ...] = ()


class GraphCache(Protocol):
    """Cache of compiled graphs by module fingerprint, across processes."""

    def find(
        self, words: Sequence[str | bytes], device: Any, captured: Callable[[Sequence[int]], CapturedGraph]
    ) -> CachedGraph | None:
        """Return the compiled graph of a fingerprint.

        `captured` imports it again, with inputs of these numbers as constants, where it has to be compiled again.
        """

    def keep(self, words: Sequence[str | bytes], found: CachedGraph) -> None:
        """Store a compiled graph for later processes."""
