"""ONNX's `Scan` as a loop over a static axis.

Where its steps differ by more than their elements, the body is unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ....ir import GraphError
from ....ops import SequenceAxis
from ..importer import Importer
from ..protos import Opaque
from .repeat import LoopBody, define_results, import_iterations
from .steps import import_step, stack_steps

_MAX_UNROLLED_STEPS = 1 << 12


def import_scan(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
    """Import a `Scan` in place, as one operation or unrolled.

    Raises `GraphError` where the sequences have not one length, or a great one, its subclass `Opaque` for the form
    before operator set 9.
    """
    if importer.opset < 9:
        raise Opaque(f"{where}: only the form since operator set 9 is supported", hint="convert the model")
    scan = _scan(importer, node, attributes, where)
    origin = node.name or node.output[0]
    results: Sequence[str] | None = import_iterations(importer, scan, origin, where)
    if results is None:
        results = _unroll(importer, scan, origin, where)
    if results is None:
        importer.unknown.update(node.output)
    else:
        define_results(importer, node, results)


def _scan(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> LoopBody:
    """Return the loop of a node."""
    body, count = attributes["body"], attributes["num_scan_inputs"]
    values = [importer.aliases.get(name, name) for name in node.input]
    states, sequences = values[: len(values) - count], values[len(values) - count :]
    axes = [
        int(a) % len(importer.types[v].shape)
        for a, v in zip(attributes.get("scan_input_axes", [0] * count), sequences, strict=True)
    ]
    lengths = {importer.types[v].shape[axis] for v, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise GraphError(f"{where}: expected sequences of one length, found {sorted(lengths)}")
    (steps,) = lengths
    rest = len(body.output) - len(states)
    taken = _alongs(axes, attributes.get("scan_input_directions", [0] * count))
    given = [attributes.get(f"scan_output_{kind}", [0] * rest) for kind in ("axes", "directions")]
    return LoopBody(body, steps, states, list(zip(sequences, taken, strict=True)), _alongs(*given))


def _alongs(axes: Sequence[int], backwards: Sequence[int]) -> list[SequenceAxis]:
    return [SequenceAxis(int(axis), bool(back)) for axis, back in zip(axes, backwards, strict=True)]


def _unroll(importer: Importer, scan: LoopBody, origin: str, where: str) -> list[str] | None:
    """Import the body once for every step; return the results, None where one is unknown."""
    if scan.steps > _MAX_UNROLLED_STEPS:
        raise GraphError(f"{where}: expected up to {_MAX_UNROLLED_STEPS} steps where they differ, found {scan.steps}")
    states, count = list(scan.states), len(scan.states)
    collected: list[list[str]] = [[] for _ in scan.collected]
    for step in range(scan.steps):
        places = [scan.steps - 1 - step if along.backwards else step for _, along in scan.sequences]
        pairs = zip(scan.sequences, places, strict=True)
        elements = [_element(importer, value, along.axis, place, origin) for (value, along), place in pairs]
        results = import_step(importer, scan.body, [*states, *elements], f"{origin}.{step}", where)
        if any(value in importer.unknown for value in results):
            return None
        states = results[:count]
        for values, value in zip(collected, results[count:], strict=True):
            values.append(value)
    return states + [
        stack_steps(importer, values[::-1] if along.backwards else values, along.axis, origin)
        for values, along in zip(collected, scan.collected, strict=True)
    ]


def _element(importer: Importer, value: str, axis: int, place: int, origin: str) -> str:
    """Return a sequence's element of one step."""
    array = importer.constant(value)
    if array is not None:
        return importer.add_constant(np.take(array, place, axis), f"{origin}.element")
    shape = importer.types[value].shape
    (part,) = importer.add_node(
        "slice", [value], {"starts": (place,), "ends": (place + 1,), "axes": (axis,)}, origin, [None]
    )
    element_shape = tuple(n for a, n in enumerate(shape) if a != axis)
    return importer.add_node("reshape", [part], {"shape": element_shape, "allowzero": True}, origin, [None])[0]
