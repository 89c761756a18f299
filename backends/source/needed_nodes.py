"""Nodes that a node needs: operands, and writes of its registers."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Accumulate, DfgNode, RegisterRead, RegisterWrite, Value, Window, operand_nodes


def source_nodes(node: DfgNode) -> list[Value]:
    """Return the operands that are printed themselves, the loads of windows."""
    return [o.load if isinstance(o, Window) else o for o in operand_nodes(node)]


def needed_nodes(nodes: Sequence[DfgNode]) -> dict[DfgNode, list[DfgNode]]:
    """Return the operands of nodes, and earlier writes of their registers."""
    written: dict[str, list[DfgNode]] = {}
    found: dict[DfgNode, list[DfgNode]] = {}
    for node in nodes:
        held = (o.name for o in operand_nodes(node) if isinstance(o, RegisterRead))
        found[node] = [*source_nodes(node), *(w for name in held for w in written.get(name, ()))]
        if isinstance(node, (Accumulate, RegisterWrite)):
            written.setdefault(node.name, []).append(node)
    return found
