"""Reciprocal and approximate division.

A division is some 25 instructions of a GPU, and branches; a row that is divided by its sum has as many as elements.
Where a thread divides several numbers by one (a reduction's value, a constant, an element of a broadcast vector), each
takes six, without branches:

    y[e] = x[e] / t over e    ->    y[e] = quotient(x[e], t) over e

Both are the same function (`ir.functions`), equally exact: compilers see that the part of its text that depends on t
alone, the reciprocal, is the same for every e. A quotient of a half type, or rounded to one at once, skips the last
step, and takes two instructions; with a divisor of its own it is an approximate division. Either is off by at most two
units in the last place of f32. That changes the rounding only where a quotient is within a part in four million of the
middle between two neighbours, which is never the case for normal quotients of the type's numbers. Quotients on the way
to a comparison, a rounding to integers or a later phase are exact: those of integers may be integers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from attrs import evolve

from ....ir import (
    Accumulate,
    Convert,
    DfgNode,
    DType,
    Item,
    Kernel,
    Loop,
    Op,
    Phase,
    RegisterWrite,
    Root,
    Store,
    Value,
    Var,
    operand_nodes,
    own_variables,
    post_order,
    with_operands,
)

#: Fewest numbers that share a reciprocal.
MIN_SHARED_DIVISIONS = 4
#: Functions of values that are as near as their operands.
_SMOOTH = frozenset({"add", "sub", "mul", "div", "neg", "abs", "min", "max", "select", "exp", "tanh", "erf"})


def share_reciprocals(kernel: Kernel) -> Kernel:
    """Return an extracted kernel whose divisions by one number share reciprocals."""
    return evolve(kernel, items=tuple(_item(i) for i in kernel.items))


def _item(item: Item) -> Item:
    if isinstance(item, Loop):
        return evolve(item, body=tuple(_item(i) for i in item.body))
    return _replace_divisions(item) if isinstance(item, Phase) and not item.asynchronous else item


def _replace_divisions(phase: Phase) -> Phase:
    nodes, unrolled = post_order(phase.roots), frozenset(phase.unrolled)
    divisions = [n for n in nodes if isinstance(n, Op) and n.fn == "div" and n.dtype.is_float]
    if not divisions:
        return phase
    rounded = _rounded_quotients(nodes)
    forms = {
        node: ("near_quotient" if node in rounded else "quotient")
        if _has_shared_divisor(node, unrolled)
        else ("approximate_quotient" if node in rounded else "div")
        for node in divisions
    }
    done: dict[Value, Value] = {}

    def change(node: Value) -> Value:
        if node not in done:
            over = with_operands(node, change)
            done[node] = evolve(over, fn=forms[node]) if isinstance(over, Op) and node in forms else over
        return done[node]

    def root(root: Root) -> Root:
        return evolve(root, value=change(root.value)) if isinstance(root, (Store, Accumulate, RegisterWrite)) else root

    return evolve(phase, roots=tuple(root(r) for r in phase.roots))


def _rounded_quotients(nodes: Sequence[DfgNode]) -> set[DfgNode]:
    """Return divisions that need the digits of a half type alone, of nodes after their operands."""
    exact: set[DfgNode] = set()
    wide: set[DfgNode] = set()  # operands that are not rounded to a half type at once
    for node in reversed(nodes):
        smooth = isinstance(node, Store) and node.into is None
        if (isinstance(node, Op) and node.fn in _SMOOTH) or (isinstance(node, Convert) and node.dtype.is_float):
            smooth = node not in exact
        exact.update(() if smooth else operand_nodes(node))
        narrow = isinstance(node, (Store, Convert)) and _is_half(node.dtype)
        wide.update(() if narrow else operand_nodes(node))
    return {
        node
        for node in nodes
        if isinstance(node, Op) and node.fn == "div" and node not in exact
        and (_is_half(node.dtype) or (node.dtype is DType.F32 and node not in wide))
    }  # fmt: skip


def _is_half(dtype: DType) -> bool:
    return dtype.is_float and dtype.arithmetic is not dtype


def _has_shared_divisor(node: Value, unrolled: Collection[Var]) -> bool:
    """Return whether a thread divides enough numbers by each divisor."""
    assert isinstance(node, Op)
    dividend, divisor = ({v for n in post_order([a]) for v in own_variables(n)} for a in node.args)
    return prod(v.extent for v in (dividend - divisor).intersection(unrolled)) >= MIN_SHARED_DIVISIONS
