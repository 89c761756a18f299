"""ONNX's `Scan`: its length is that of a static axis, so the body is imported once for every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from ...ir import Attribute, GraphError
from .call import Opaque
from .functions import renamed
from .importer import Importer
from .model import tensor_array

_LONGEST = 1 << 12


def unroll_scan(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
    """Import the body of a `Scan` in the node's place, step by step.

    Raises `GraphError` where the sequences have not one length, or a great one, its subclass `Opaque` for the form
    before operator set 9.
    """
    if importer.opset < 9:
        raise Opaque(f"{where}: only the form since operator set 9 is supported", hint="convert the model")
    body, count = attributes["body"], attributes["num_scan_inputs"]
    states = [importer.aliases.get(name, name) for name in node.input[: len(node.input) - count]]
    sequences = [importer.aliases.get(name, name) for name in node.input[len(states) :]]
    axes = [
        int(a) % len(importer.types[v].shape)
        for a, v in zip(attributes.get("scan_input_axes", [0] * count), sequences, strict=True)
    ]
    lengths = {importer.types[v].shape[axis] for v, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1 or max(lengths) > _LONGEST:
        raise GraphError(f"{where}: expected sequences of one length up to {_LONGEST}, found {sorted(lengths)}")
    (length,) = lengths
    collected: list[list[str]] = [[] for _ in body.output[len(states) :]]
    backwards = attributes.get("scan_input_directions", [0] * count)
    origin = node.name or node.output[0]
    for step in range(length):
        places = [length - 1 - step if back else step for back in backwards]
        elements = [
            _element(importer, v, axis, place, origin) for v, axis, place in zip(sequences, axes, places, strict=True)
        ]
        results = import_step(importer, body, [*states, *elements], f"{origin}.{step}", where)
        if any(value in importer.unknown for value in results):
            importer.unknown.update(node.output)
            return
        states = results[: len(states)]
        for values, value in zip(collected, results[len(states) :], strict=True):
            values.append(value)
    for name, value in zip(node.output, states, strict=False):
        importer.alias(name, value)
    targets = attributes.get("scan_output_axes", [0] * len(collected))
    directions = attributes.get("scan_output_directions", [0] * len(collected))
    for name, values, axis, back in zip(node.output[len(states) :], collected, targets, directions, strict=True):
        if name:
            importer.alias(name, stacked(importer, values[::-1] if back else values, int(axis), origin))


def import_step(importer: Importer, body: onnx.GraphProto, operands: list[str], label: str, where: str) -> list[str]:
    """Import a body in place, its inputs bound to values; return its results."""
    own = set(_defined(body))
    names: dict[str, str] = dict(zip((value.name for value in body.input), operands, strict=True))

    def rename(name: str) -> str:  # a name of the body, or of the graph around it
        if name in own and name not in names:
            names[name] = importer.fresh(f"{label}.{name}")
        return names.get(name, name)

    for tensor in body.initializer:
        importer.define_constants(
            {rename(tensor.name): tensor_array(tensor, importer.folder, f"{where}: initialiser '{tensor.name}'")}
        )
    importer.run([renamed(inner, rename, f"{label}/{inner.name or inner.op_type}") for inner in body.node])
    found: list[str] = [rename(value.name) for value in body.output]
    return [importer.aliases.get(name, name) for name in found]


def _defined(body: onnx.GraphProto) -> Iterator[str]:
    """Yield the values that a body and the bodies in it define;
    what they read of the graph around is not among them.
    """
    yield from (tensor.name for tensor in body.initializer)
    for node in body.node:
        yield from (name for name in node.output if name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from (value.name for value in attribute.g.input)
                yield from _defined(attribute.g)


def _element(importer: Importer, value: str, axis: int, place: int, origin: str) -> str:
    """Return a sequence's element of one step."""
    array = importer.constant(value)
    if array is not None:
        return importer.add_constant(np.take(array, place, axis), f"{origin}.element")
    shape = importer.types[value].shape
    (part,) = importer.add_node(
        "slice", [value], {"starts": (place,), "ends": (place + 1,), "axes": (axis,)}, origin, [None]
    )
    kept = tuple(n for a, n in enumerate(shape) if a != axis)
    return importer.add_node("reshape", [part], {"shape": kept, "allowzero": True}, origin, [None])[0]


def stacked(importer: Importer, values: list[str], axis: int, origin: str) -> str:
    """Return the elements of all steps as one tensor."""
    shape = importer.types[values[0]].shape
    place = axis % (len(shape) + 1)
    deep: dict[str, Attribute] = {"shape": (*shape[:place], 1, *shape[place:]), "allowzero": True}
    wide = [importer.add_node("reshape", [v], deep, origin, [None])[0] for v in values]
    return wide[0] if len(wide) == 1 else importer.add_node("concat", wide, {"axis": place}, origin, [None])[0]
