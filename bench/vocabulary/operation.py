"""Rows of the suite of many operations.

A row is a function of PyTorch, three sizes, and its tensors.

The tables are `vocabulary_tensors.py` and `vocabulary_rows.py`. An operation has a size for tests, which a processor
computes in a moment, and two that are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from attrs import evolve, field, frozen
from cuts.backends.device import Array
from cuts.bench.operators.shapes import Case, normal_numbers, unit_numbers
from cuts.ir.graph import Graph
from cuts.ir.machine import PRECISIONS
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry

#: Numbers of f32 between 0 and 1 that differ, in steps of one size.
_DISTINCT = 1 << 24


@frozen
class Given:
    """Operand of an operation: type, random distribution, and constness.

    Weights are constant when it is compiled.

    `draw` is one of `normal`, `positive` (from 0.5 on), `unit` (0 to 1), `distinct` (0 to 1, no two of a row equal),
    `integer` (0 to `limit` - 1), `order` (a permutation), `bounds` (multiples of
    `limit`) and `spectrum` (pairs whose first and last are real). Floats are multiplied by `scale`, and stored as
    `stored`, or as the operation's are.
    """

    shape: tuple[int, ...]
    draw: str = "normal"
    weight: bool = False
    limit: int = 0
    scale: float = 1.0
    stored: DType | None = None

    @property
    def type(self) -> TensorType:
        """Type; integers are PyTorch's index type."""
        return TensorType(
            DType.I64 if self.draw in ("integer", "order", "bounds") else self.stored or DType.F32, self.shape
        )

    def values(self, seed: int) -> Array:
        """Return random elements, the same ones for the same seed."""
        size = prod(self.shape)
        numbers: Array
        if self.draw == "distinct":
            count = min(size, _DISTINCT)
            numbers = (np.random.default_rng(seed).permutation(count) / count).astype(np.float32)
        elif self.draw == "order":
            numbers = np.random.default_rng(seed).permutation(size)
        elif self.draw == "bounds":
            numbers = np.arange(size) * self.limit
        elif self.draw == "integer":
            numbers = (unit_numbers(seed) * self.limit).astype(np.int64)
        else:
            numbers = unit_numbers(seed) if self.draw == "unit" else normal_numbers(seed)
        numbers = np.abs(numbers) + np.float32(0.5) if self.draw == "positive" else numbers
        if self.scale != 1:
            numbers = numbers * np.float32(self.scale)
        values = np.resize(numbers.astype(self.type.dtype.numpy, copy=False), self.shape)
        if self.draw == "spectrum":
            values[..., (0, -1), 1] = 0
        return values


def x(*shape: int) -> Given:
    """Return a tensor of normal numbers."""
    return Given(shape)


def w(*shape: int) -> Given:
    """Return weights: normal numbers that are known when the operation is compiled."""
    return Given(shape, weight=True)


def positive(*shape: int) -> Given:
    """Return a tensor of numbers from 0.5 on."""
    return Given(shape, "positive")


def unit(*shape: int) -> Given:
    """Return a tensor of numbers between 0 and 1."""
    return Given(shape, "unit")


def distinct(*shape: int) -> Given:
    """Return a tensor of distinct elements, which have one order."""
    return Given(shape, "distinct")


def integers(limit: int, *shape: int) -> Given:
    """Return a tensor of integers below a limit."""
    return Given(shape, "integer", limit=limit)


Sizes: TypeAlias = tuple[int, ...]
#: A line of a table: name, the size for tests, the two measured sizes, operands by size, the function.
Line: TypeAlias = tuple[str, Sizes, Sizes, Sizes, Callable[..., "tuple[Given, ...]"], Callable[..., Any]]


@frozen(eq=False)
class UserOperation:
    """Operation of users: family, name, operands by size, PyTorch function.

    `peers` are other functions of the same operands and results, besides `plain` ones: the function itself, and that by
    torch.compile. `cuts` imports `traced`, where that is another function.
    """

    family: str
    name: str
    given: Callable[..., tuple[Given, ...]]
    call: Callable[..., Any]
    tiny: Sizes
    sizes: tuple[Sizes, ...]
    precision: str = field(default="fp32", kw_only=True)
    peers: Mapping[str, Callable[..., Any]] = field(factory=dict, kw_only=True)
    traced: Callable[..., Any] | None = field(default=None, kw_only=True)
    plain: tuple[str, ...] = field(default=("torch", "compile"), kw_only=True)
    deterministic: bool = field(default=True, kw_only=True)

    def at(self, size: Sizes) -> SizedOperation:
        """Return the row of one size."""
        return SizedOperation(self, size)

    @property
    def rows(self) -> tuple[SizedOperation, ...]:
        """The rows that are measured."""
        return tuple(self.at(size) for size in self.sizes)


def table(family: str, *lines: Line) -> list[UserOperation]:
    """Return the operations of a family."""
    return [UserOperation(family, name, given, call, tiny, (a, b)) for name, tiny, a, b, given, call in lines]


@frozen
class SizedOperation:
    """An operation at one size."""

    operation: UserOperation
    size: Sizes

    @property
    def name(self) -> str:
        """The operation's name and the size."""
        return f"{self.operation.name}, {'x'.join(map(str, self.size))}"

    @property
    def key(self) -> str:
        """Identity of its rows."""
        policy = self.operation.precision
        return f"{self.operation.family}/{self.name}/b1{'' if policy == 'fp32' else f'/{policy}'}"

    @property
    def given(self) -> tuple[Given, ...]:
        """The tensors that it is given."""
        stored = PRECISIONS[self.operation.precision].stored
        return tuple(evolve(g, stored=g.stored or stored) for g in self.operation.given(*self.size))

    def case(self, graph: Graph, sources: tuple[Source, ...] = ()) -> TorchCase:
        """Return a benchmark case from a graph.

        Its inputs have the function's order.
        """
        given = dict(zip(graph.inputs, self.given, strict=True))
        shapes, weights = {n: g.shape for n, g in given.items()}, tuple(n for n, g in given.items() if g.weight)
        own = self.operation
        case = TorchCase(own.family, self.name, 1, shapes, (), traced=graph, given=given, texts=sources)
        return evolve(case, weights=weights, precision=own.precision, deterministic=own.deterministic)


@frozen
class TorchCase(Case):
    """Row as a graph of our vocabulary.

    Tensors lie as they are and are stored in strict f32, or are integers. `texts` are its declarations outside of the
    vocabulary.
    """

    traced: Graph = field(kw_only=True)
    given: Mapping[str, Given] = field(kw_only=True)
    texts: tuple[Source, ...] = field(kw_only=True)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The results, in order."""
        return self.traced.outputs

    @property
    def sources(self) -> tuple[Source, ...]:
        """Declarations that it needs besides the vocabulary."""
        return self.texts

    def type_of(self, tensor: str) -> TensorType:
        """Return the type of an input."""
        return self.given[tensor].type

    def values(self, tensor: str) -> Array:
        """Return an input's contents."""
        return self.given[tensor].values(list(self.given).index(tensor))

    def is_channels_last(self, tensor: str) -> bool:
        """Return whether a tensor has another dim order; none does."""
        return False

    def graph(self, registry: Registry) -> Graph:
        """Return the graph; weights are inputs of it."""
        return self.traced
