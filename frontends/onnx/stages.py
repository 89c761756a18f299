"""Stages of a model: parts to compile, each followed by foreign nodes.

A foreign node follows the part that completes its operands.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from attrs import frozen

from .contrib import has_contrib
from .functions import declared_name, standard_schema
from .model import OnnxModel
from .node_opset import opset_of
from .operators import TABLE
from .order import values_read
from .structures import STRUCTURES


@frozen
class ForeignStage:
    """Nodes to compile together, then foreign nodes."""

    part: tuple[onnx.NodeProto, ...]
    foreign: tuple[onnx.NodeProto, ...]


@frozen
class Borders:
    """Conditions under which a node is foreign.

    The caller has a function for it, or it was found to be opaque. `declared` operations are not foreign.
    """

    given: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()
    opaque: frozenset[str] = frozenset()

    def is_chosen(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is foreign regardless of its operands.

        Other nodes of constants alone are computed when a part is imported.
        """
        return op_name(node) in self.given or first_result(node) in self.opaque

    def is_foreign(self, node: onnx.NodeProto, opset: int) -> bool:
        """Return whether a node runs uncompiled; `opaque` has first results."""
        return self.is_chosen(node) or not (declared_name(node.op_type, self.declared) or is_known(node, opset))


def stages_of(model: OnnxModel, weights: Collection[str], borders: Borders) -> tuple[ForeignStage, ...]:
    """Return the stages of a model.

    The number of a node's stage is the length of the longest chain of foreign nodes that it depends on.
    """
    constant = set(weights)
    outputs = {value.name for value in model.graph.output}
    available: dict[str, int] = {}
    parts: dict[int, tuple[list[onnx.NodeProto], list[onnx.NodeProto]]] = {}
    shared: list[onnx.NodeProto] = []  # of constants alone: every stage that reads such a node contains it
    for node in _live_nodes(list(model.graph.node), set(outputs)):
        reads = values_read([node]) - constant
        foreign = borders.is_foreign(node, opset_of(node, model.opset))
        if not reads and not (foreign and borders.is_chosen(node)):
            constant.update(node.output)
            shared.append(node)
            continue
        stage = max((available.get(name, 0) for name in reads), default=0)
        parts.setdefault(stage, ([], []))[foreign].append(node)
        available.update(dict.fromkeys(node.output, stage + foreign))
    return tuple(
        ForeignStage(
            (*_live_nodes(shared, values_read([*part, *foreign_nodes]) | outputs), *part), tuple(foreign_nodes)
        )
        for _, (part, foreign_nodes) in sorted(parts.items() or [(0, ([], []))])
    )


def _live_nodes(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.insert(0, node)
            wanted |= values_read([node])
    return kept


def is_known(node: onnx.NodeProto, version: int) -> bool:
    """Return whether the tables or a standard function body cover an operation."""
    if node.domain not in ("", "ai.onnx"):
        return has_contrib(node)
    if node.op_type in TABLE or STRUCTURES.reads(node):
        return True
    schema = standard_schema(node, version)
    if schema is not None and schema.has_function:
        return all(is_known(inner, version) for inner in schema.function_body.node)
    return bool(schema is not None and schema.has_context_dependent_function) and node.op_type not in (
        "Bernoulli",
        "SequenceMap",
    )


def op_name(node: onnx.NodeProto) -> str:
    """Return the name of a node's operation, with a foreign domain."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def first_result(node: onnx.NodeProto) -> str:
    """Return the first result of a node, which identifies it."""
    return next((name for name in node.output if name), "")
