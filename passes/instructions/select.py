"""Instruction selection for thread-level kernels.

Accesses and fragments become instructions of a dialect. A node keeps its family; its axes are covered by vectors,
copies or matrices instead of single elements. Selection also opens the *scopes* of a phase: loops over its reduced
variables, with the loads, the products and the sums of a point together. A reduced variable along which loads are
vectors has no scope, as its loads precede all of its uses. Neither has one that looks up the places of loads: each of
these waits for another, and few would be issued together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import prod
from typing import TypeVar

from attrs import define, evolve, field

from ...ir import (
    COPIES,
    INSTRUCTIONS,
    MATRIX_LOADS,
    PACKED_CONVERSIONS,
    UNPACKED_CONVERSIONS,
    Accumulate,
    AsyncCopy,
    Convert,
    DfgNode,
    Item,
    Kernel,
    Load,
    Loop,
    MmaAccumulate,
    Op,
    Pack,
    PackedConvert,
    PackedLoad,
    Phase,
    Root,
    Store,
    Value,
    Var,
    VectorLoad,
    VectorStore,
    Window,
    box_variables,
    indirects,
    node_users,
    post_order,
    variables,
    vector_address,
    vector_axes,
    with_operands,
)
from .context import SelectionContext
from .lane_products import select_lane_product, shared_sums
from .loaded_bits import select_bits
from .matrix_loads import select_matrix_load
from .matrix_products import select_mma, unroll_factor
from .vector_accesses import (
    WORD_BYTES,
    round_by_addition,
    select_addition,
    select_copy,
    select_extreme,
    select_vector_load,
    select_vector_store,
    select_window_load,
)

Node = TypeVar("Node", Value, Root)
#: Most bytes of a thread's loads that are issued together.
MAX_AWAITED_BYTES = 256


def select_instructions(kernel: Kernel, dialect: str) -> Kernel:
    """Return a thread-level kernel over the instructions of a dialect."""
    context = evolve(SelectionContext.of(kernel, INSTRUCTIONS[dialect]), sums=shared_sums(kernel))
    return evolve(kernel, items=_items(kernel.items, context))


def _items(items: Iterable[Item], context: SelectionContext) -> tuple[Item, ...]:
    return tuple(
        evolve(item, body=_items(item.body, context), unroll=unroll_factor(item))
        if isinstance(item, Loop)
        else PhaseSelector(item, context).select()
        if isinstance(item, Phase)
        else item
        for item in items
    )


@define
class PhaseSelector:
    """Instruction selection of a phase: `users` of nodes, `selected` values."""

    phase: Phase
    context: SelectionContext
    boxes: dict[DfgNode, tuple[Var, ...]] = field(init=False)
    users: dict[DfgNode, list[DfgNode]] = field(init=False)
    selected: dict[Value, Value] = field(factory=dict)
    scopes: tuple[Var, ...] = ()
    copies: bool = field(init=False)
    matrices: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.copies = self.phase.asynchronous and not COPIES.keys().isdisjoint(self.context.instructions)
        self.matrices = not MATRIX_LOADS.keys().isdisjoint(self.context.instructions)
        self.boxes = box_variables(self.phase.roots, self.phase.unrolled)
        self.users = node_users(self.boxes)

    def select(self) -> Phase:
        """Return the phase over instructions."""
        self.scopes = self._scopes()
        return evolve(self.phase, roots=tuple(map(self._root, self.phase.roots)), scopes=self.scopes)

    def _scopes(self) -> tuple[Var, ...]:
        if self.phase.kind == "fetch":
            return self.phase.unrolled[:1]
        loads = [node for node in self.boxes if isinstance(node, Load) and self.boxes[node]]
        vectors = {v for n in loads for v in vector_axes(self._load(n, self.boxes[n]))}
        computed = (select_bits(node, self.context) for node in self.boxes if isinstance(node, Convert))
        vectors |= {bits.axis for bits in computed if bits}
        for node in loads:
            if prod(v.extent for v in self.boxes[node]) * node.dtype.size <= MAX_AWAITED_BYTES:
                vectors |= {v for place in indirects(node.address) for part in place.parts for v in variables(part)}
        reduced = {v for r in self.phase.roots if isinstance(r, (Accumulate, MmaAccumulate)) for v in r.over} - vectors
        return tuple(v for v in self.phase.unrolled if v in reduced)

    def _root(self, root: Root) -> Root:
        found = root
        if isinstance(root, MmaAccumulate):
            found = select_mma(root, self.context.shapes[root.name])
        elif isinstance(root, Store) and root.into:
            found = next(filter(None, (select_addition(root, v, self.context) for v in self.boxes[root])), root)
        elif isinstance(root, Store):
            # Elements of a vector that stay beside others are left out one by one.
            found = self._instruction(root, self._store)
            found = next((k for k in map(self._keep_elements, (found, root)) if k not in (found, root)), found)
        elif isinstance(root, Accumulate):
            whole = evolve(root, value=self._value(root.value))
            product = select_lane_product(root, self._value, self.boxes, self.context)
            return product or next(
                filter(None, (select_extreme(whole, v, self.context) for v in self.boxes[root])), whole
            )
        if isinstance(found, Store) and (load := self._copy_source(found)):
            return select_copy(found, load, None, self.phase.l1, self.context) or found
        return with_operands(found, self._value)

    def _value(self, node: Value) -> Value:
        if node not in self.selected:
            found: Value = node
            if isinstance(node, (Load, Pack)):
                found = self._instruction(node, self._load)
            elif isinstance(node, (Op, Convert)):
                found = select_bits(node, self.context) or node
            if found is node and isinstance(node, Convert):
                found = self._converted_load(node) or self._by_words(node) or round_by_addition(node, self.context)
            if found is node and isinstance(node, Pack):
                found = _packed_load(node) or node
            self.selected[node] = with_operands(found, self._value)
        return self.selected[node]

    def _converted_load(self, node: Convert) -> VectorLoad | None:
        """Return a load that converts the bytes which it unpacks."""
        load, kinds = node.arg, (node.arg.dtype, node.dtype)
        converts = any(UNPACKED_CONVERSIONS.get(name) == kinds for name in self.context.instructions)
        if not converts or not isinstance(load, Load):
            return None
        if self.users[load] != [node] or self.boxes[load] != self.boxes[node]:
            return None
        found = self._instruction(load, self._load)
        whole = isinstance(found, VectorLoad) and all(n * load.dtype.size % WORD_BYTES == 0 for n in found.pieces)
        return evolve(found, dtype=node.dtype, stored=load.dtype) if isinstance(found, VectorLoad) and whole else None

    def _by_words(self, node: Convert) -> PackedConvert | None:
        """Return the conversion of words of floats to bytes and back."""
        inner = node.arg
        if not isinstance(inner, Convert) or self.users[inner] != [node]:
            return None
        ways = {PACKED_CONVERSIONS.get(n) for n in self.context.instructions}
        back = {UNPACKED_CONVERSIONS.get(n) for n in self.context.instructions}
        if (inner.dtype, inner.arg.dtype) not in ways or (inner.dtype, node.dtype) not in back:
            return None
        words = (v for v in reversed(self.boxes[node]) if v not in self.scopes and v.extent % WORD_BYTES == 0)
        axis = next(words, None)
        value = round_by_addition(inner, self.context).arg
        return None if axis is None else PackedConvert(value, node.dtype, inner.dtype, axis)

    def _instruction(self, node: Node, select: Callable[[Node, Sequence[Var]], Node]) -> Node:
        """Return the instruction of a node, within the loops of the scopes that enclose it."""
        rest: Sequence[Var] = self.boxes[node]
        found: Node = select(node, rest)
        while rest and rest[0] in self.scopes and {*rest} != {*vector_axes(found)}:
            rest = rest[1:]
            found = select(node, rest)
        return found

    def _load(self, node: Value, rest: Sequence[Var]) -> Value:
        """Return the load of several elements of a box, else the node."""
        if not isinstance(node, (Load, Pack)):
            return node
        found: Value | None = select_matrix_load(node, rest, self.phase, self.users) if self.matrices else None
        if isinstance(node, Load) and found is None:
            vectors = () if self.copies else (select_vector_load(node, v, self.context) for v in reversed(rest))
            walked = {v for user in self.users.get(node, ()) if isinstance(user, Window) for v in user.axes}
            windows = (select_window_load(node, v, self.context) for v in rest if v in walked)
            found = next(filter(None, chain(vectors, windows)), None)
        return found or node

    def _keep_elements(self, node: Root) -> Root:
        """Return a store without the elements that it would write unchanged.

        p[i] = select(c, x, p[i])   ->   p[i] = x when c, where no other root reads the old element
        """
        value = node.value if isinstance(node, (Store, VectorStore)) and node.space != "shared" else None
        if not isinstance(node, (Store, VectorStore)) or not isinstance(value, Op) or value.fn != "select":
            return node
        condition, new, old = value.args
        own = isinstance(old, Load) and (old.buffer, old.address) == (node.buffer, node.address)
        varies = isinstance(node, VectorStore) and node.axis in self.boxes[condition]
        alone = own and sum(old in post_order((root,)) for root in self.phase.roots) == 1
        return evolve(node, value=new, when=(condition,)) if alone and not varies else node

    def _store(self, node: Root, rest: Sequence[Var]) -> Root:
        """Return the store of several elements of a box, else the node."""
        assert isinstance(node, Store)
        vectors = (self._vector_store(node, v) for v in reversed(rest))
        return next((v for v in vectors if v is not None), node)

    def _vector_store(self, node: Store, var: Var) -> VectorStore | AsyncCopy | None:
        if load := self._copy_source(node):
            return select_copy(node, load, var, self.phase.l1, self.context)
        return None if self.copies else select_vector_store(node, var, self.context)

    def _copy_source(self, node: Store) -> Load | None:
        """Return the load of global memory whose value an asynchronous copy stores."""
        load = node.value if self.copies and not node.into else None
        return load if isinstance(load, Load) and load.space == "global" else None


def _packed_load(node: Pack) -> PackedLoad | None:
    """Return the load of a register whose elements are adjacent and unguarded in memory."""
    load = node.arg
    if node.axis.extent == 1 or not isinstance(load, Load) or load.guards or load.space != "shared":
        return None
    start = vector_address(load.address, node.axis)
    return None if start is None else PackedLoad(load.space, load.buffer, start)
