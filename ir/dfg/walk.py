"""Traversal and rewriting of data-flow graphs.

Tables list the operands and the indices of each class, so that a new class is walked everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, frozen

from ..affine import (
    Guard,
    Index,
    IndexLike,
    MoveGuards,
    MoveIndex,
    Var,
    map_guards,
    substitute,
    substitute_guards,
    variables,
)
from ..types import DType
from .roots import (
    Accumulate,
    AsyncCopy,
    DfgNode,
    LaneProduct,
    Mma,
    MmaAccumulate,
    RegisterWrite,
    Store,
    VectorStore,
    WarpgroupMma,
    WideStore,
)
from .values import (
    Convert,
    IndexNode,
    LdMatrix,
    Literal,
    Load,
    Op,
    Pack,
    PackedConvert,
    PackedLoad,
    RegisterRead,
    SharedMatrix,
    Test,
    Value,
    VectorLoad,
    Window,
)

Node = TypeVar("Node", bound=DfgNode)

#: Fields with the operands of each class, and with the indices and guards that a node itself holds.
_OPERANDS: Mapping[type, tuple[str, ...]] = {
    Op: ("args",),
    Convert: ("arg",),
    Pack: ("arg",),
    PackedConvert: ("arg",),
    Window: ("load",),
    Store: ("value", "when"),
    WideStore: ("values",),
    VectorStore: ("value", "when"),
    Accumulate: ("value",),
    LaneProduct: ("a", "b"),
    MmaAccumulate: ("a", "b"),
    Mma: ("a", "b"),
    WarpgroupMma: ("a", "b"),
    RegisterWrite: ("value",),
}
_INDICES: Mapping[type, tuple[str, ...]] = {
    Load: ("address", "guards"),
    VectorLoad: ("address", "guards"),
    PackedLoad: ("address",),
    LdMatrix: ("row",),
    SharedMatrix: ("start",),
    IndexNode: ("index",),
    Test: ("guards",),
    RegisterRead: ("at",),
    Window: ("at",),
    Store: ("address", "guards"),
    WideStore: ("address", "guards"),
    VectorStore: ("address", "guards"),
    AsyncCopy: ("address", "start", "guards", "valid"),
    Accumulate: ("at",),
    LaneProduct: ("at",),
    MmaAccumulate: ("at",),
    Mma: ("results",),
    WarpgroupMma: ("upper", "lower"),
    RegisterWrite: ("at",),
}


def operand_nodes(node: DfgNode) -> tuple[Value, ...]:
    """Return the direct operands of a node."""
    found: list[Value] = []
    for name in _OPERANDS.get(type(node), ()):
        operand = getattr(node, name)
        found += operand if isinstance(operand, tuple) else (operand,)
    return tuple(found)


def own_indices(node: DfgNode) -> Iterator[Index]:
    """Yield the index expressions that a node itself holds."""
    for name in _INDICES.get(type(node), ()):
        held = getattr(node, name)
        for index in held if isinstance(held, tuple) else (held,):
            yield index.index if isinstance(index, Guard) else index


@frozen
class BufferAccess:
    """Memory that a node reads or, with `stores`, writes.

    `dtype` is None where several elements are one value.
    """

    stores: bool
    space: str
    buffer: str
    dtype: DType | None


def buffer_accesses(node: DfgNode) -> tuple[BufferAccess, ...]:
    """Return the accesses of a node itself."""
    if isinstance(node, (Load, VectorLoad)):
        dtype = node.memory_dtype if isinstance(node, VectorLoad) else node.dtype
        return (BufferAccess(False, node.space, node.buffer, dtype),)
    if isinstance(node, PackedLoad):
        return (BufferAccess(False, node.space, node.buffer, None),)
    if isinstance(node, (LdMatrix, SharedMatrix)):
        return (BufferAccess(False, "shared", node.buffer, node.dtype if isinstance(node, SharedMatrix) else None),)
    if isinstance(node, (Store, VectorStore, WideStore)):
        return (BufferAccess(True, node.space, node.buffer, node.dtype),)
    if isinstance(node, AsyncCopy):
        source = BufferAccess(False, "global", node.source, node.dtype)
        return source, BufferAccess(True, "shared", node.buffer, node.dtype)
    return ()


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


def with_operands(node: Node, change: Callable[[Value], Value]) -> Node:
    """Return a node over other operands."""
    changed: dict[str, Any] = {}
    for name in _OPERANDS.get(type(node), ()):
        operand = getattr(node, name)
        changed[name] = tuple(map(change, operand)) if isinstance(operand, tuple) else change(operand)
    return evolve(node, **changed) if changed else node


def vector_axes(node: DfgNode) -> tuple[Var, ...]:
    """Return the variables whose elements one instruction node moves."""
    if isinstance(node, (LaneProduct, LdMatrix)):
        return node.axes
    if isinstance(node, (VectorLoad, VectorStore, AsyncCopy, Accumulate, PackedConvert)) and node.axis is not None:
        return (node.axis,)
    return ()


def box_variables(roots: Iterable[DfgNode], unrolled: Sequence[Var]) -> dict[DfgNode, tuple[Var, ...]]:
    """Return the unrolled variables of each node's family, operands before users."""
    boxes: dict[DfgNode, tuple[Var, ...]] = {}
    for node in post_order(roots):
        own = set(own_variables(node))
        if isinstance(node, (Accumulate, MmaAccumulate, Mma, WarpgroupMma)):
            own |= set(node.over)
        if isinstance(node, LdMatrix):
            own |= set(node.axes)
        for operand in operand_nodes(node):
            own |= set(boxes[operand])
        if isinstance(node, (Window, MmaAccumulate, Mma)):
            own -= set(node.axes)
        if isinstance(node, Pack):
            own.discard(node.axis)
        boxes[node] = tuple(v for v in unrolled if v in own)
    return boxes


def with_indices(node: Node, move: MoveIndex, check: MoveGuards | None = None) -> Node | Literal:
    """Return a node with other indices of its own.

    `check` maps its guards, by default to the same guards of moved indices. A test whose guards all hold is true.
    """
    changed: dict[str, Any] = {}
    for name in reversed(_INDICES.get(type(node), ())):  # guards first
        held = getattr(node, name)
        if name in ("guards", "valid"):
            changed[name] = check(held) if check is not None else map_guards(held, move)
        else:
            changed[name] = tuple(map(move, held)) if isinstance(held, tuple) else move(held)
    if isinstance(node, Test) and node.guards and not changed["guards"]:
        return Literal(True, DType.BOOL)
    return evolve(node, **changed) if changed else node


def node_users(nodes: Iterable[DfgNode]) -> dict[DfgNode, list[DfgNode]]:
    """Return the nodes that read each node."""
    users: dict[DfgNode, list[DfgNode]] = {}
    for node in nodes:
        for operand in operand_nodes(node):
            users.setdefault(operand, []).append(node)
    return users


def substitute_node(node: Value, values: Mapping[Var, IndexLike], cache: dict[Value, Value]) -> Value:
    """Replace variables in a value and everything below it."""
    if node not in cache:
        free = {v: i for v, i in values.items() if v not in node.axes} if isinstance(node, Window) else values
        over = with_operands(node, lambda operand: substitute_node(operand, free, cache))
        cache[node] = substitute_indices(over, values)
    return cache[node]


def substitute_indices(node: Node, values: Mapping[Var, IndexLike]) -> Node | Literal:
    """Replace variables in the indices and guards of a node itself."""
    return with_indices(node, lambda index: substitute(index, values), lambda guards: substitute_guards(guards, values))
