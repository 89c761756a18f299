"""Where a model with foreign operations is cut: parts to compile,
each followed by the foreign nodes whose operands it completes.
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
    """What decides whether a node is foreign: the caller has a function for it, or has declared it,
    or it was found to be opaque.
    """

    given: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()
    opaque: frozenset[str] = frozenset()

    def is_chosen(self, node: onnx.NodeProto) -> bool:
        """Whether a node is foreign whatever it reads;
        others of constants alone are computed when a part is imported.
        """
        return op_name(node) in self.given or first_result(node) in self.opaque

    def is_foreign(self, node: onnx.NodeProto, opset: int) -> bool:
        """Whether a node runs elsewhere; `opaque` names nodes by their first results."""
        return self.is_chosen(node) or not (declared_name(node.op_type, self.declared) or is_known(node, opset))


def stages_of(model: OnnxModel, weights: Collection[str], borders: Borders) -> tuple[ForeignStage, ...]:
    """Number nodes by how many foreign ones lie in front of them; a node that needs none belongs to stage 0."""
    constant = set(weights)
    outputs = {value.name for value in model.graph.output}
    available: dict[str, int] = {}
    parts: dict[int, tuple[list[onnx.NodeProto], list[onnx.NodeProto]]] = {}
    shared: list[onnx.NodeProto] = []  # made of constants alone: every stage that reads such a node takes it along
    for node in _behind(list(model.graph.node), set(outputs)):
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
        ForeignStage((*_behind(shared, values_read([*part, *foreign_nodes]) | outputs), *part), tuple(foreign_nodes))
        for _, (part, foreign_nodes) in sorted(parts.items() or [(0, ([], []))])
    )


def _behind(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.insert(0, node)
            wanted |= values_read([node])
    return kept


def is_known(node: onnx.NodeProto, version: int) -> bool:
    """Whether the tables, or a function body of the standard over them, have an operation."""
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
    """Return the name of a node's operation, with its domain where that is not the standard's."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def first_result(node: onnx.NodeProto) -> str:
    """Return the first result of a node, by which it is known."""
    return next((name for name in node.output if name), "")
