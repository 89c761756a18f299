"""Stages of a model: parts to compile, each followed by foreign nodes.

A foreign node follows the part that completes its operands.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from attrs import frozen

from ..partition import MIN_WORK, PartitionedOperation, PartitionStage, partition
from .operators import TABLE, elementwise, movement
from .protos import OnnxModel, declared_name, has_contrib, opset_of, standard_schema, values_read
from .subgraphs import STRUCTURES


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

    Light nodes between foreign ones are foreign too (`frontends/partition.py`).
    """
    constant = set(weights)
    outputs = {value.name for value in model.graph.output}
    shared: list[onnx.NodeProto] = []  # of constants alone: every stage that reads such a node contains it
    nodes: list[onnx.NodeProto] = []
    operations: list[PartitionedOperation] = []
    makers: dict[str, int] = {}
    for node in _live_nodes(list(model.graph.node), set(outputs)):
        reads = values_read([node]) - constant
        foreign = borders.is_foreign(node, opset_of(node, model.opset))
        if not reads and not (foreign and borders.is_chosen(node)):
            constant.update(node.output)
            shared.append(node)
            continue
        numbers = tuple(sorted(makers[name] for name in reads if name in makers))
        makers |= dict.fromkeys(node.output, len(nodes))
        nodes.append(node)
        operations.append(
            PartitionedOperation(numbers, foreign, _work(node, borders), returned=bool(outputs & set(node.output)))
        )
    stages = partition(operations, early=True)  # of fixed shapes where possible: a stage is compiled for its operands
    found = []
    for stage in stages or (PartitionStage((), ()),):
        part, foreign_nodes = (tuple(nodes[number] for number in numbers) for numbers in (stage.part, stage.foreign))
        read = values_read([*part, *foreign_nodes]) | outputs
        fixed = _live_nodes(shared, read)
        if not part and foreign_nodes and all(_runs_elsewhere(node, borders) for node in fixed):
            found.append(ForeignStage((), (*fixed, *foreign_nodes)))
        else:
            found.append(ForeignStage((*fixed, *part), foreign_nodes))
    return tuple(found)


def _work(node: onnx.NodeProto, borders: Borders) -> int:
    """Return the work of a node; there is enough for a part where only our kernels know it."""
    if not _runs_elsewhere(node, borders):
        return MIN_WORK
    return 0 if node.op_type in movement.TABLE else 1 if node.op_type in elementwise.TABLE else 2


def _runs_elsewhere(node: onnx.NodeProto, borders: Borders) -> bool:
    """Return whether ONNX's evaluators know a node too."""
    return node.domain in ("", "ai.onnx") and not declared_name(node.op_type, borders.declared)


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
