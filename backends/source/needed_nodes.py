"""Nodes that a node needs: operands, and writes of its registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir import (
    Accumulate,
    DfgNode,
    Index,
    IndexNode,
    RegisterRead,
    RegisterWrite,
    Test,
    Value,
    Window,
    indirects,
    operand_nodes,
    own_indices,
)


def source_nodes(node: DfgNode) -> list[Value]:
    """Return the operands that are printed themselves, the loads of windows."""
    return [o.load if isinstance(o, Window) else o for o in operand_nodes(node)]


def registers_read(node: DfgNode) -> Iterator[tuple[str, tuple[Index, ...]]]:
    """Yield names and places of registers that a node reads."""
    yield from ((o.name, o.at) for o in operand_nodes(node) if isinstance(o, RegisterRead))
    for inner in (node, *(o for o in operand_nodes(node) if isinstance(o, (IndexNode, Test)))):
        yield from ((i.tensor, i.indices) for index in own_indices(inner) for i in indirects(index) if i.held)


def needed_nodes(nodes: Sequence[DfgNode]) -> dict[DfgNode, list[DfgNode]]:
    """Return the operands of nodes, and earlier writes of their registers."""
    written: dict[str, list[DfgNode]] = {}
    found: dict[DfgNode, list[DfgNode]] = {}
    for node in nodes:
        held = (name for name, _ in registers_read(node))
        found[node] = [*source_nodes(node), *(w for name in held for w in written.get(name, ()))]
        if isinstance(node, (Accumulate, RegisterWrite)):
            written.setdefault(node.name, []).append(node)
    return found
