"""Data-flow graphs of a phase, folded: a node stands for a family of scalar operations over a box of unrolled
variables.

Nodes are frozen and compare by value, so equal computations are one node. Which variables a family ranges over (its
*box*) is read off the variables it mentions: the box of an operand is part of the box of its user, a missing axis is a
broadcast. The scalar graph of the paper (DeepCuts section 5.1, Figure 3) is the expansion of the families.

A phase's graph is an ordered tuple of *roots*, the nodes with an effect; everything else is reached from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, Union

from attrs import evolve, frozen

from .expr import Guard, substitute_guards
from .index import Index, IndexLike, Var, indirects, substitute, variables
from .types import DType


@frozen(cache_hash=True)
class Load:
    """An element of a buffer in `space` ("global" or "shared") at a flat address, or `fill` where a guard fails."""

    space: str
    buffer: str
    address: Index
    dtype: DType
    guards: tuple[Guard, ...] = ()
    fill: float = 0.0


@frozen(cache_hash=True)
class Literal:
    """A constant."""

    value: float | int | bool
    dtype: DType


@frozen(cache_hash=True)
class IndexNode:
    """The value of an index expression."""

    index: Index
    dtype: DType


@frozen(cache_hash=True)
class Test:
    """Whether all guards hold."""

    guards: tuple[Guard, ...]
    dtype: DType = DType.BOOL


@frozen(cache_hash=True)
class Op:
    """A scalar function of `functions.FUNCTIONS` applied to values."""

    fn: str
    args: tuple[Value, ...]
    dtype: DType


@frozen(cache_hash=True)
class Convert:
    """A conversion to `dtype`."""

    arg: Value
    dtype: DType


@frozen(cache_hash=True)
class Held:
    """The register that holds a reduction's value for one instance; `at` counts instances within a thread once
    extracted.
    """

    name: str
    at: tuple[Index, ...]
    dtype: DType


@frozen(cache_hash=True)
class Window:
    """An element of a family of loads that several users share: `load` with its variables `axes` at the places `at`.

    Neighbouring outputs of a convolution read overlapping elements; the family ranges over each distinct element once,
    and its users name the one they mean.
    """

    load: Load
    axes: tuple[Var, ...]
    at: tuple[Index, ...]

    @property
    def dtype(self) -> DType:
        """The element type of the loads."""
        return self.load.dtype


Value: TypeAlias = Union[Load, Literal, IndexNode, Test, Op, Convert, Held, Window]


@frozen(cache_hash=True)
class Store:
    """Write a value to a buffer where all guards hold."""

    space: str
    buffer: str
    address: Index
    value: Value
    dtype: DType
    guards: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class WideStore:
    """Write values to neighbouring elements of a buffer, the first of them at `address`, where all guards hold."""

    space: str
    buffer: str
    address: Index
    values: tuple[Value, ...]
    dtype: DType
    guards: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class Accumulate:
    """`held[at] = combine(held[at], value)` for every point of `over`, in order."""

    name: str
    at: tuple[Index, ...]
    combine: str
    value: Value
    over: tuple[Var, ...]
    dtype: DType


@frozen(cache_hash=True)
class Initialise:
    """Set all held values of a reduction to the identity of its combiner; `shape` counts instances per dim of a thread."""

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType


@frozen(cache_hash=True)
class LaneReduce:
    """Combine the held values of the `lanes` threads that share an instance; all of them hold the result afterwards."""

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType
    lanes: int


Root: TypeAlias = Union[Store, WideStore, Accumulate, Initialise, LaneReduce]
DfgNode: TypeAlias = Union[Value, Root]


def operand_nodes(node: DfgNode) -> tuple[Value, ...]:
    """Return the direct operands of a node."""
    if isinstance(node, Op):
        return node.args
    if isinstance(node, Convert):
        return (node.arg,)
    if isinstance(node, (Store, Accumulate)):
        return (node.value,)
    if isinstance(node, WideStore):
        return node.values
    return (node.load,) if isinstance(node, Window) else ()


def own_indices(node: DfgNode) -> Iterator[Index]:
    """Yield the index expressions a node itself holds."""
    if isinstance(node, (Load, Store, WideStore)):
        yield node.address
        yield from (g.index for g in node.guards)
    elif isinstance(node, IndexNode):
        yield node.index
    elif isinstance(node, Test):
        yield from (g.index for g in node.guards)
    elif isinstance(node, (Held, Accumulate, Window)):
        yield from node.at


def own_variables(node: DfgNode) -> frozenset[Var]:
    """Return the variables a node itself mentions, not its operands."""
    found: set[Var] = set()
    for index in own_indices(node):
        found |= variables(index)
    return frozenset(found)


def post_order(roots: Iterable[DfgNode]) -> list[DfgNode]:
    """Return all nodes, operands before users, each once, roots in their order (reverse post order of the paper's
    section 6.1).
    """
    seen: set[DfgNode] = set()
    order: list[DfgNode] = []

    def visit(node: DfgNode) -> None:
        if node in seen:
            return
        seen.add(node)
        for operand in operand_nodes(node):
            visit(operand)
        order.append(node)

    for root in roots:
        visit(root)
    return order


def substitute_node(node: Value, values: Mapping[Var, IndexLike], cache: dict[Value, Value]) -> Value:
    """Replace variables in a value and everything below it."""
    if node in cache:
        return cache[node]
    result: Value
    if isinstance(node, Load):
        result = evolve(node, address=substitute(node.address, values), guards=substitute_guards(node.guards, values))
    elif isinstance(node, IndexNode):
        result = evolve(node, index=substitute(node.index, values))
    elif isinstance(node, Test):
        guards = substitute_guards(node.guards, values)
        result = Test(guards) if guards else Literal(True, DType.BOOL)
    elif isinstance(node, Op):
        result = Op(node.fn, tuple(substitute_node(a, values, cache) for a in node.args), node.dtype)
    elif isinstance(node, Convert):
        result = Convert(substitute_node(node.arg, values, cache), node.dtype)
    elif isinstance(node, Held):
        result = evolve(node, at=tuple(substitute(i, values) for i in node.at))
    elif isinstance(node, Window):
        load = substitute_node(node.load, {v: i for v, i in values.items() if v not in node.axes}, cache)
        assert isinstance(load, Load)
        result = Window(load, node.axes, tuple(substitute(i, values) for i in node.at))
    else:
        result = node
    cache[node] = result
    return result


def buffers_read(roots: Iterable[DfgNode]) -> tuple[tuple[str, str], ...]:
    """Return (space, buffer) of every load, indirect index tables as global, in order of first use."""
    found: dict[tuple[str, str], None] = {}
    for node in post_order(roots):
        if isinstance(node, Load):
            found[(node.space, node.buffer)] = None
        for index in own_indices(node):
            for inner in indirects(index):
                found[("global", inner.tensor)] = None
    return tuple(found)
