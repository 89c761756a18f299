"""ONNX's `Loop` where its length can be told at import, and sequences of tensors: lists of values while a graph is
read.

Where every step is like the others, the body is one operation for all of them (`repeat`). Else it is imported once for
every step, with the number of the step as a constant; after each, the condition must be a constant. Exporters write
loops over the items of a batch so, and collect results in sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ...ir import Attribute, GraphError
from ...ops import Along
from .call import Opaque
from .importer import Importer
from .model import element_type
from .repeat import LoopBody, give_all, import_turns
from .steps import import_step, stacked

_LONGEST = 1 << 10


def import_loop(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
    """Import a `Loop` in the node's place, as one operation or step by step.

    Raises `Opaque` where its length is not known, or too great to be unrolled.
    """
    body = attributes["body"]
    most = _known(importer, node.input[0], where, "the number of steps") if node.input[0] else None
    going = len(node.input) < 2 or not node.input[1] or bool(_known(importer, node.input[1], where, "the condition"))
    states = [importer.aliases.get(name, name) for name in node.input[2:]]
    collected: list[list[str]] = [[] for _ in body.output[1 + len(states) :]]
    origin = node.name or next(name for name in node.output if name)
    condition = importer.add_constant(np.asarray(True), f"{origin}.condition")
    if most is not None and going:
        turns = LoopBody(body, int(most), states, (), [Along()] * len(collected), condition)
        if (made := import_turns(importer, turns, origin, where)) is not None:
            give_all(importer, node, made)
            return
    step = 0
    while going and (most is None or step < int(most)):
        if step >= _LONGEST:
            raise Opaque(f"{where}: a loop of more than {_LONGEST} steps is not unrolled")
        number = importer.add_constant(np.asarray(step, np.int64), f"{origin}.step")
        condition, *results = import_step(importer, body, [number, condition, *states], f"{origin}.{step}", where)
        if any(value in importer.unknown for value in (condition, *results)):
            importer.unknown.update(node.output)
            return
        going = bool(_known(importer, condition, where, "the condition"))
        states = results[: len(states)]
        for values, value in zip(collected, results[len(states) :], strict=True):
            values.append(value)
        step += 1
    for name, value in zip(node.output, states, strict=False):
        if name:
            importer.alias(name, value)
    for name, values, declared in zip(
        node.output[len(states) :], collected, body.output[1 + len(states) :], strict=True
    ):
        if name:
            importer.alias(
                name, stacked(importer, values, 0, origin) if values else _empty(importer, name, declared, where)
            )


def _empty(importer: Importer, name: str, declared: onnx.ValueInfoProto, where: str) -> str:
    """Return what a loop of no steps collects: nothing, of the type that its body declares."""
    type_ = declared.type.tensor_type
    if not type_.HasField("shape") or not all(dim.HasField("dim_value") for dim in type_.shape.dim):
        raise Opaque(f"{where}: no step is taken, so the shape of result '{name}' is not known")
    shape = (0, *(dim.dim_value for dim in type_.shape.dim))
    return importer.add_constant(np.zeros(shape, element_type(type_.elem_type, where).numpy), name)


def _known(importer: Importer, name: str, where: str, what: str) -> Any:
    """Return a value that decides how long a loop runs."""
    value = importer.aliases.get(name, name)
    array = importer.constant(value)
    if array is None:
        importer.want(value)
        raise Opaque(f"{where}: {what} must be a constant, found a computed value")
    return array.reshape(-1)[0]


# ---- sequences


class _Reading:
    """A node that makes or reads a sequence."""

    def __init__(self, importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
        self.importer = importer
        self.inputs = [importer.aliases.get(name, name) for name in node.input]
        self.attributes = attributes
        self.where = where
        self.origin = node.name or node.output[0]

    def sequence(self) -> tuple[str, ...]:
        if self.inputs[0] not in self.importer.sequences:
            raise Opaque(f"{self.where}: operand 0 is a sequence that is not known at import")
        return self.importer.sequences[self.inputs[0]]

    def place(self, position: int, length: int) -> int:
        """Return the operand that names a place, counted from the front; without one it is the end."""
        if position >= len(self.inputs) or not self.inputs[position]:
            return length
        place = int(_known(self.importer, self.inputs[position], self.where, "the place"))
        if not -length <= place <= length:
            raise GraphError(f"{self.where}: expected a place in a sequence of {length}, found {place}")
        return place + length if place < 0 else place


def _construct(call: _Reading) -> tuple[str, ...]:
    return tuple(call.inputs)


def _insert(call: _Reading) -> tuple[str, ...]:
    values = call.sequence()
    place = call.place(2, len(values))
    return (*values[:place], call.inputs[1], *values[place:])


def _erase(call: _Reading) -> tuple[str, ...]:
    values = call.sequence()
    place = min(call.place(1, len(values)), len(values) - 1)
    return (*values[:place], *values[place + 1 :])


def _split(call: _Reading) -> tuple[str, ...]:
    importer, value = call.importer, call.inputs[0]
    shape = importer.types[value].shape
    axis = int(call.attributes.get("axis", 0)) % len(shape)
    given = len(call.inputs) > 1 and bool(call.inputs[1])
    sizes = [1] * shape[axis]
    if given:
        _known(importer, call.inputs[1], call.where, "the sizes")
        asked = np.asarray(importer.constant(call.inputs[1]))
        size = int(asked.reshape(-1)[0])
        sizes = (
            [int(n) for n in asked] if asked.ndim else [min(size, shape[axis] - n) for n in range(0, shape[axis], size)]
        )
    dropped = not given and not call.attributes.get("keepdims", 1)
    starts = np.cumsum([0, *sizes]).tolist()
    parts = []
    for start, size in zip(starts, sizes, strict=False):
        cut = {"starts": (start,), "ends": (start + size,), "axes": (axis,)}
        (part,) = importer.add_node("slice", [value], cut, call.origin, [None])
        if dropped:
            kept: dict[str, Attribute] = {"shape": (*shape[:axis], *shape[axis + 1 :]), "allowzero": True}
            (part,) = importer.add_node("reshape", [part], kept, call.origin, [None])
        parts.append(part)
    return tuple(parts)


def _identity(call: _Reading) -> tuple[str, ...]:
    return call.sequence()


def _at(call: _Reading) -> str:
    values = call.sequence()
    place = call.place(1, len(values))
    if place >= len(values):
        raise GraphError(f"{call.where}: expected a place in a sequence of {len(values)}, found {place}")
    return values[place]


def _length(call: _Reading) -> str:
    return call.importer.add_constant(np.asarray(len(call.sequence()), np.int64), f"{call.origin}.length")


def _concat(call: _Reading) -> str:
    values: Sequence[str] = call.sequence()
    if not values:
        raise Opaque(f"{call.where}: an empty sequence has no element type")
    axis = int(call.attributes["axis"])
    if call.attributes.get("new_axis", 0):
        return stacked(call.importer, list(values), axis, call.origin)
    axis %= len(call.importer.types[values[0]].shape)
    return (
        values[0]
        if len(values) == 1
        else call.importer.add_node("concat", values, {"axis": axis}, call.origin, [None])[0]
    )


_MAKERS: dict[str, Callable[[_Reading], tuple[str, ...]]] = {
    "SequenceEmpty": lambda call: (), "SequenceConstruct": _construct, "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SplitToSequence": _split, "Identity": _identity,
}  # fmt: skip
_READERS: dict[str, Callable[[_Reading], str]] = {
    "SequenceAt": _at,
    "SequenceLength": _length,
    "ConcatFromSequence": _concat,
}
#: Operations that only sequences have.
SEQUENCES = frozenset({*_MAKERS, *_READERS} - {"Identity"})


def read_sequence(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
    """Import a node that makes or reads a sequence."""
    call = _Reading(importer, node, attributes, where)
    if node.op_type in _MAKERS:
        importer.sequences[node.output[0]] = _MAKERS[node.op_type](call)
    else:
        importer.alias(node.output[0], _READERS[node.op_type](call))
