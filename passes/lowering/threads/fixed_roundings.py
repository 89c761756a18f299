"""Roundings that no tile changes, for the policy `batch-invariant`.

A compiler adds to a product before it is rounded where nothing else uses that product, which tiles and their sharing
decide. Here a product is rounded first, except the terms of a sum, which are added unrounded everywhere. Divisions of
many numbers by one share its reciprocal where a thread has enough of them: here all do.
"""

from __future__ import annotations

from attrs import evolve

from ....ir import (
    Accumulate,
    DfgNode,
    Item,
    Kernel,
    Loop,
    Op,
    Phase,
    Root,
    Value,
    operand_nodes,
    post_order,
    with_operands,
)

#: Functions that are rounded once in any kernel.
_ROUNDED_FUNCTIONS = {"mul": "product", "div": "quotient"}


def fix_roundings(kernel: Kernel) -> Kernel:
    """Return a kernel with one rounding of each product and quotient."""
    return evolve(kernel, items=tuple(map(_item, kernel.items)))


def _item(item: Item) -> Item:
    if isinstance(item, Loop):
        return evolve(item, body=tuple(map(_item, item.body)))
    return _phase(item) if isinstance(item, Phase) else item


def _phase(phase: Phase) -> Phase:
    terms, others = set[DfgNode](), set[DfgNode]()
    for node in post_order(phase.roots):
        (terms if isinstance(node, Accumulate) and node.combine == "sum" else others).update(operand_nodes(node))
    done: dict[Value, Value] = {}

    def change(node: Value) -> Value:
        if node not in done:
            over = with_operands(node, change)
            if isinstance(over, Op) and over.dtype.is_float and not (over.fn == "mul" and node in terms - others):
                over = evolve(over, fn=_ROUNDED_FUNCTIONS.get(over.fn, over.fn))
            done[node] = over
        return done[node]

    def root(old: Root) -> Root:
        return with_operands(old, change)

    return evolve(phase, roots=tuple(map(root, phase.roots)))
