"""Reciprocal division: divisions of many numbers by one share its reciprocal.

A division is some 25 instructions of a GPU, and branches; a row that is divided by its sum has as many as elements.
Where a thread divides several numbers by one (a reduction's value, a constant, an element of a broadcast vector), each
takes six, without branches:

    y[e] = x[e] / t over e    ->    y[e] = quotient(x[e], t) over e

Both are the same function (`ir.functions`), equally exact: compilers see that the part of its text that depends on t
alone, the reciprocal, is the same for every e. A quotient that is only rounded to a half type skips the last step, and
takes two instructions: that changes its rounding only where a quotient is within a part in four million of the middle
between two neighbours, which is never the case for quotients of the type's numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from attrs import evolve

from ....ir import (
    Accumulate,
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
    found = {node for node in divisions if _has_shared_divisor(node, unrolled)}
    if not found:
        return phase
    # Values with uses other than stores to memory.
    used = {o for node in nodes if not isinstance(node, Store) for o in operand_nodes(node)}
    done: dict[Value, Value] = {}

    def change(node: Value) -> Value:
        if node not in done:
            over = with_operands(node, change)
            if isinstance(over, Op) and node in found:
                rounded = node.dtype.arithmetic is not node.dtype and node not in used
                over = Op("near_quotient" if rounded else "quotient", over.args, over.dtype)
            done[node] = over
        return done[node]

    def root(root: Root) -> Root:
        return evolve(root, value=change(root.value)) if isinstance(root, (Store, Accumulate, RegisterWrite)) else root

    return evolve(phase, roots=tuple(root(r) for r in phase.roots))


def _has_shared_divisor(node: Value, unrolled: Collection[Var]) -> bool:
    """Return whether a thread divides enough numbers by each divisor."""
    assert isinstance(node, Op)
    dividend, divisor = ({v for n in post_order([a]) for v in own_variables(n)} for a in node.args)
    return prod(v.extent for v in (dividend - divisor).intersection(unrolled)) >= MIN_SHARED_DIVISIONS
