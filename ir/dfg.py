"""Folded data-flow graphs of a phase.

A node stands for a family of scalar operations over a box of unrolled variables. Nodes are frozen and compare by value,
so equal computations are one node. The variables that a family ranges over (its *box*) are the variables that it
mentions: the box of an operand is part of the box of its user, a missing axis is a broadcast. The scalar graph of the
paper (DeepCuts section 5.1, Figure 3) is the expansion of the families.

A phase's graph is an ordered tuple of *roots*, the nodes with an effect; everything else is reached from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, Union

from attrs import evolve, field, frozen

from .affine import (
    Guard,
    Index,
    IndexLike,
    MoveGuards,
    MoveIndex,
    Var,
    indirects,
    map_guards,
    substitute,
    substitute_guards,
    variables,
)
from .types import DType, exactly


@frozen(cache_hash=True)
class Load:
    """Element of a buffer at a flat address.

    `space` is "global" or "shared". Where a guard fails, the value is `fill`.
    """

    space: str
    buffer: str
    address: Index
    dtype: DType
    guards: tuple[Guard, ...] = ()
    fill: float = field(default=0.0, eq=exactly)


@frozen(cache_hash=True)
class Literal:
    """A constant."""

    value: float | int | bool = field(eq=exactly)
    dtype: DType


@frozen(cache_hash=True)
class IndexNode:
    """The value of an index expression."""

    index: Index
    dtype: DType


@frozen(cache_hash=True)
class Test:
    """Boolean that is true where all guards hold."""

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
class RegisterRead:
    """Register read: a reduction's value for one instance.

    `at` counts instances within a thread once extracted.
    """

    name: str
    at: tuple[Index, ...]
    dtype: DType


@frozen(cache_hash=True)
class Window:
    """Element of a family of loads that several users share.

    It is `load` with its variables `axes` at the places `at`. Neighbouring outputs of a convolution read
    overlapping elements; the family ranges over each distinct element once, and each user names its own.
    """

    load: Load
    axes: tuple[Var, ...]
    at: tuple[Index, ...]

    @property
    def dtype(self) -> DType:
        """The element type of the loads."""
        return self.load.dtype


@frozen(cache_hash=True)
class Pack:
    """Register of 32 bits that holds several narrow values.

    It has a value for every place of `axis`, of the value's own element type, the first one in the low bits.
    """

    arg: Value
    axis: Var

    @property
    def dtype(self) -> DType:
        """The type of the register."""
        return DType.U32


Value: TypeAlias = Union[Load, Literal, IndexNode, Test, Op, Convert, RegisterRead, Window, Pack]


@frozen(cache_hash=True)
class Store:
    """Store of a value to a buffer where all guards hold.

    With `into`, a reduction, the value is combined with the stored one. An update is dropped where an integer in the
    address is no index of its axis.
    """

    space: str
    buffer: str
    address: Index
    value: Value
    dtype: DType
    guards: tuple[Guard, ...] = ()
    into: str | None = None


@frozen(cache_hash=True)
class WideStore:
    """Store of values to neighbouring elements, the first at `address`.

    It takes place where all guards hold.
    """

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
class MmaAccumulate:
    """`held[at] += a * b`, summed over `over` by a matrix instruction.

    The instruction is one of `ir.machine`; the rows of its C lie along the dim of `at` at position `rows`,
    the columns along the one at `columns`.

    Over a block, `a` and `b` are ordinary values, shares give the element that a lane holds of each, and `axes` are the
    variables of shares that number registers of A and of B, and elements in a register of A and of B. Over a thread,
    the operands are `Pack`s, only the first two axes are left, and `at` is the first element of one of C. `lane`
    numbers the threads of a warp. Where a thread's neighbours along a side are elements of several instructions,
    `mixed` gives their number along the rows and along the columns.
    """

    name: str
    at: tuple[Index, ...]
    atom: str
    a: Value
    b: Value
    over: tuple[Var, ...]
    dtype: DType
    rows: int = 0
    columns: int = 0
    axes: tuple[Var, ...] = ()
    lane: Var | None = None
    mixed: tuple[int, ...] = (1, 1)


@frozen(cache_hash=True)
class RegisterWrite:
    """Register write: `held[at] = value`.

    It keeps an operand of matrix instructions, or a fetched value on its way to shared memory, in registers until the
    next write; `shape` counts them.

    For an operand, over a block, shares for the `operand`, "a" or "b", give the elements that a lane holds, and `axes`
    are the variables of shares that number the registers of a fragment, and elements in a register. Over a thread,
    values that share a register are a `Pack`, and only the first axis is left. `lane` numbers the threads of a warp.
    """

    name: str
    at: tuple[Index, ...]
    shape: tuple[int, ...]
    value: Value
    dtype: DType
    operand: str = ""
    axes: tuple[Var, ...] = ()
    lane: Var | None = None


@frozen(cache_hash=True)
class Initialise:
    """Set all held values of a reduction to its combiner's identity.

    `shape` counts instances per dim of a thread.
    """

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType


@frozen(cache_hash=True)
class LaneReduce:
    """Combine the values of the `lanes` threads that share an instance.

    All of them hold the result afterwards. With `along` (`ir.segment.SCAN_MODES`), threads hold the elements of a
    row, as many of an instance as the last number of `shape`, `vector` neighbours at a time, and each element becomes
    the combination of the elements before or after it; or, in an order (`ir.segment.SORT_ORDERS`), the place of
    the element of `keys` that comes there. The `extent` keys are held in the same way.
    """

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType
    lanes: int
    along: str = ""
    vector: int = 1
    keys: str = ""
    extent: int = 0


Root: TypeAlias = Union[Store, WideStore, Accumulate, MmaAccumulate, RegisterWrite, Initialise, LaneReduce]
DfgNode: TypeAlias = Union[Value, Root]


def operand_nodes(node: DfgNode) -> tuple[Value, ...]:
    """Return the direct operands of a node."""
    if isinstance(node, Op):
        return node.args
    if isinstance(node, (Convert, Pack)):
        return (node.arg,)
    if isinstance(node, MmaAccumulate):
        return node.a, node.b
    if isinstance(node, (Store, Accumulate, RegisterWrite)):
        return (node.value,)
    if isinstance(node, WideStore):
        return node.values
    return (node.load,) if isinstance(node, Window) else ()


def own_indices(node: DfgNode) -> Iterator[Index]:
    """Yield the index expressions that a node itself holds."""
    if isinstance(node, (Load, Store, WideStore)):
        yield node.address
        yield from (g.index for g in node.guards)
    elif isinstance(node, IndexNode):
        yield node.index
    elif isinstance(node, Test):
        yield from (g.index for g in node.guards)
    elif isinstance(node, (RegisterRead, Accumulate, MmaAccumulate, RegisterWrite, Window)):
        yield from node.at


def own_variables(node: DfgNode) -> frozenset[Var]:
    """Return the variables that a node itself mentions, without its operands."""
    found: set[Var] = set()
    for index in own_indices(node):
        found |= variables(index)
    return frozenset(found)


def post_order(roots: Iterable[DfgNode]) -> list[DfgNode]:
    """Return all nodes once, operands before users.

    Roots keep their order (reverse post order of the paper's section 6.1).
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


def with_operands(node: Value, change: Callable[[Value], Value]) -> Value:
    """Return a value over other operands."""
    if isinstance(node, Op):
        return Op(node.fn, tuple(change(a) for a in node.args), node.dtype)
    if isinstance(node, Convert):
        return Convert(change(node.arg), node.dtype)
    if isinstance(node, Pack):
        return Pack(change(node.arg), node.axis)
    if isinstance(node, Window):
        load = change(node.load)
        assert isinstance(load, Load), "a window is one of loads"
        return evolve(node, load=load)
    return node


def with_indices(node: Value, move: MoveIndex, check: MoveGuards | None = None) -> Value:
    """Return a value with other indices of its own.

    `check` maps its guards, by default to the same guards of moved indices.
    """
    guards = getattr(node, "guards", ())
    moved = check(guards) if check is not None else map_guards(guards, move)
    if isinstance(node, Load):
        return evolve(node, address=move(node.address), guards=moved)
    if isinstance(node, IndexNode):
        return evolve(node, index=move(node.index))
    if isinstance(node, Test):
        return Test(moved, node.dtype) if moved or not guards else Literal(True, DType.BOOL)
    if isinstance(node, (RegisterRead, Window)):
        return evolve(node, at=tuple(move(i) for i in node.at))
    return node


def substitute_node(node: Value, values: Mapping[Var, IndexLike], cache: dict[Value, Value]) -> Value:
    """Replace variables in a value and everything below it."""
    if node not in cache:
        free = {v: i for v, i in values.items() if v not in node.axes} if isinstance(node, Window) else values
        over = with_operands(node, lambda operand: substitute_node(operand, free, cache))
        cache[node] = with_indices(
            over, lambda index: substitute(index, values), lambda guards: substitute_guards(guards, values)
        )
    return cache[node]


def buffers_read(roots: Iterable[DfgNode]) -> tuple[tuple[str, str], ...]:
    """Return (space, buffer) of every load, in order of first use.

    Tables of indirect indices count as global.
    """
    found: dict[tuple[str, str], None] = {}
    for node in post_order(roots):
        if isinstance(node, Load):
            found[(node.space, node.buffer)] = None
        for index in own_indices(node):
            for inner in indirects(index):
                found[("global", inner.tensor)] = None
    return tuple(found)
