"""Masked writes of exporters as a choice between two tensors.

    NonZero(mask) -> Transpose -> places;  ScatterND(x, places, updates)   becomes   Where(mask, value, x)

The places are as many as the mask has true elements, so their tensor has no type of ours; the choice needs none, where
the updates are one constant that is repeated. Operands are transposed, as a mask may have the first axes of the tensor
only, and broadcasting aligns last ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from ....ir import fresh_name
from .order import values_read

_BROADCASTS = ("Expand", "Reshape", "Identity", "Squeeze", "Unsqueeze")


def convert_masked_writes(graph: onnx.GraphProto) -> onnx.GraphProto:
    """Return a graph with masked writes replaced by choices.

    Nodes that only such a write needed are removed.
    """
    if not any(node.op_type == "NonZero" for node in graph.node):
        return graph
    producers = {name: node for node in graph.node for name in node.output}
    single = {tensor.name for tensor in graph.initializer if _is_single(tensor)}
    taken = {*producers, *(value.name for value in (*graph.input, *graph.initializer))}
    nodes: list[onnx.NodeProto] = []
    lost: set[str] = set()
    for node in graph.node:
        found = _choice(node, producers, single, taken)
        nodes += found or [node]
        lost.update(node.input if found else ())
    if not lost:
        return graph
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    del copy.node[:]
    copy.node.extend(_remove_dead(nodes, lost, [value.name for value in graph.output]))
    return copy


def _is_single(tensor: onnx.TensorProto) -> bool:
    return list(tensor.dims) in ([], [1])


def _choice(
    node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], single: set[str], taken: set[str]
) -> list[onnx.NodeProto] | None:
    if node.op_type != "ScatterND" or node.domain not in ("", "ai.onnx") or _reduces(node) or len(node.input) != 3:
        return None
    mask, value = (
        _mask_of(producers.get(node.input[1]), producers),
        _repeated_constant(node.input[2], producers, single),
    )
    if mask is None or value is None:
        return None
    helper, label = onnx.helper, node.name or node.output[0]
    names = [fresh_name(taken, f"{label}/{part}") for part in ("mask", "turned", "before", "chosen")]
    taken.update(names)
    truth, turned, before, chosen = names
    return [
        helper.make_node("Cast", [mask], [truth], truth, to=onnx.TensorProto.BOOL),
        helper.make_node("Transpose", [truth], [turned], turned),
        helper.make_node("Transpose", [node.input[0]], [before], before),
        helper.make_node("Where", [turned, value, before], [chosen], node.name),
        helper.make_node("Transpose", [chosen], list(node.output), chosen),
    ]


def _reduces(node: onnx.NodeProto) -> bool:
    return any(a.name == "reduction" and a.s not in (b"", b"none") for a in node.attribute)


def _mask_of(places: onnx.NodeProto | None, producers: dict[str, onnx.NodeProto]) -> str | None:
    """Return the mask whose true places a node lists, one per row."""
    if places is None or places.op_type != "Transpose":
        return None
    order = [list(a.ints) for a in places.attribute if a.name == "perm"]
    nonzero = producers.get(places.input[0])
    return (
        nonzero.input[0] if nonzero is not None and nonzero.op_type == "NonZero" and order in ([], [[1, 0]]) else None
    )


def _repeated_constant(updates: str, producers: dict[str, onnx.NodeProto], single: set[str]) -> str | None:
    """Return the constant of one element that updates repeat, else None."""
    node = producers.get(updates)
    while node is not None and node.op_type in _BROADCASTS:
        updates = node.input[0]
        node = producers.get(updates)
    if updates in single or (
        node is not None
        and node.op_type == "Constant"
        and any(_is_single(a.t) for a in node.attribute if a.name == "value")
    ):
        return updates
    return None


def _remove_dead(nodes: Sequence[onnx.NodeProto], lost: Iterable[str], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Return nodes without dead ones, starting from the values that lost a reader."""
    kept, pending = list(nodes), set(lost)
    while pending:
        read = values_read(kept) | set(outputs)
        dead = [node for node in kept if pending.intersection(node.output) and not read.intersection(node.output)]
        pending = {name for node in dead for name in node.input}
        kept = [node for node in kept if not any(node is other for other in dead)]
    return kept
