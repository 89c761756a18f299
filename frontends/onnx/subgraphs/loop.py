"""ONNX's `Loop` of known length, and sequences of tensors.

Sequences are lists of values while a graph is imported. Where every step is like the others, the body is one operation
for all of them (`repeat`). Otherwise it is unrolled with the number of the step as a constant, and after each step the
condition must be a constant. Exporters write loops over the items of a batch so, and collect results in sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ....ir import Attribute, GraphError
from ....ops import SequenceAxis
from ..importer import Importer
from ..protos import Opaque, element_type
from .repeat import LoopBody, define_results, import_iterations
from .steps import import_step, stack_steps

_MAX_UNROLLED_STEPS = 1 << 10


def import_loop(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
    """Import a `Loop` in place, as one operation or unrolled.

    Raises `Opaque` where its length is not known, or too great to be unrolled.
    """
    body = attributes["body"]
    max_steps = _constant_scalar(importer, node.input[0], where, "the number of steps") if node.input[0] else None
    is_running = (
        len(node.input) < 2
        or not node.input[1]
        or bool(_constant_scalar(importer, node.input[1], where, "the condition"))
    )
    states = [importer.aliases.get(name, name) for name in node.input[2:]]
    collected: list[list[str]] = [[] for _ in body.output[1 + len(states) :]]
    origin = node.name or next(name for name in node.output if name)
    condition = importer.add_constant(np.asarray(True), f"{origin}.condition")
    if max_steps is not None and is_running:
        loop = LoopBody(body, int(max_steps), states, (), [SequenceAxis()] * len(collected), condition)
        if (results_of_all := import_iterations(importer, loop, origin, where)) is not None:
            define_results(importer, node, results_of_all)
            return
    step = 0
    while is_running and (max_steps is None or step < int(max_steps)):
        if step >= _MAX_UNROLLED_STEPS:
            raise Opaque(f"{where}: a loop of more than {_MAX_UNROLLED_STEPS} steps is not unrolled")
        number = importer.add_constant(np.asarray(step, np.int64), f"{origin}.step")
        condition, *results = import_step(importer, body, [number, condition, *states], f"{origin}.{step}", where)
        if any(value in importer.unknown for value in (condition, *results)):
            importer.unknown.update(node.output)
            return
        is_running = bool(_constant_scalar(importer, condition, where, "the condition"))
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
                name, stack_steps(importer, values, 0, origin) if values else _empty(importer, name, declared, where)
            )


def _empty(importer: Importer, name: str, declared: onnx.ValueInfoProto, where: str) -> str:
    """Return the empty result of a loop of no steps, of the type that its body declares."""
    type_ = declared.type.tensor_type
    if not type_.HasField("shape") or not all(dim.HasField("dim_value") for dim in type_.shape.dim):
        raise Opaque(f"{where}: no step is taken, so the shape of result '{name}' is not known")
    shape = (0, *(dim.dim_value for dim in type_.shape.dim))
    return importer.add_constant(np.zeros(shape, element_type(type_.elem_type, where).numpy), name)


def _constant_scalar(importer: Importer, name: str, where: str, what: str) -> Any:
    """Return the constant that decides the length of a loop."""
    value = importer.aliases.get(name, name)
    array = importer.constant(value)
    if array is None:
        importer.want(value)
        raise Opaque(f"{where}: {what} must be a constant, found a computed value")
    return array.reshape(-1)[0]


# ---- sequences


class _SequenceCall:
    """Node that makes or reads a sequence."""

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
        """Return the position that an operand names, the end without one."""
        if position >= len(self.inputs) or not self.inputs[position]:
            return length
        place = int(_constant_scalar(self.importer, self.inputs[position], self.where, "the place"))
        if not -length <= place <= length:
            raise GraphError(f"{self.where}: expected a place in a sequence of {length}, found {place}")
        return place + length if place < 0 else place


def _construct(call: _SequenceCall) -> tuple[str, ...]:
    return tuple(call.inputs)


def _insert(call: _SequenceCall) -> tuple[str, ...]:
    values = call.sequence()
    place = call.place(2, len(values))
    return (*values[:place], call.inputs[1], *values[place:])


def _erase(call: _SequenceCall) -> tuple[str, ...]:
    values = call.sequence()
    place = min(call.place(1, len(values)), len(values) - 1)
    return (*values[:place], *values[place + 1 :])


def _split(call: _SequenceCall) -> tuple[str, ...]:
    importer, value = call.importer, call.inputs[0]
    shape = importer.types[value].shape
    axis = int(call.attributes.get("axis", 0)) % len(shape)
    given = len(call.inputs) > 1 and bool(call.inputs[1])
    sizes = [1] * shape[axis]
    if given:
        _constant_scalar(importer, call.inputs[1], call.where, "the sizes")
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
            squeezed: dict[str, Attribute] = {"shape": (*shape[:axis], *shape[axis + 1 :]), "allowzero": True}
            (part,) = importer.add_node("reshape", [part], squeezed, call.origin, [None])
        parts.append(part)
    return tuple(parts)


def _identity(call: _SequenceCall) -> tuple[str, ...]:
    return call.sequence()


def _sequence_at(call: _SequenceCall) -> str:
    values = call.sequence()
    place = call.place(1, len(values))
    if place >= len(values):
        raise GraphError(f"{call.where}: expected a place in a sequence of {len(values)}, found {place}")
    return values[place]


def _length(call: _SequenceCall) -> str:
    return call.importer.add_constant(np.asarray(len(call.sequence()), np.int64), f"{call.origin}.length")


def _concat(call: _SequenceCall) -> str:
    values: Sequence[str] = call.sequence()
    if not values:
        raise Opaque(f"{call.where}: an empty sequence has no element type")
    axis = int(call.attributes["axis"])
    if call.attributes.get("new_axis", 0):
        return stack_steps(call.importer, list(values), axis, call.origin)
    axis %= len(call.importer.types[values[0]].shape)
    return (
        values[0]
        if len(values) == 1
        else call.importer.add_node("concat", values, {"axis": axis}, call.origin, [None])[0]
    )


_MAKERS: dict[str, Callable[[_SequenceCall], tuple[str, ...]]] = {
    "SequenceEmpty": lambda call: (), "SequenceConstruct": _construct, "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SplitToSequence": _split, "Identity": _identity,
}  # fmt: skip
_READERS: dict[str, Callable[[_SequenceCall], str]] = {
    "SequenceAt": _sequence_at,
    "SequenceLength": _length,
    "ConcatFromSequence": _concat,
}
#: Operations on sequences alone.
SEQUENCE_OPERATIONS = frozenset({*_MAKERS, *_READERS} - {"Identity"})


def read_sequence(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
    """Import a node that makes or reads a sequence."""
    call = _SequenceCall(importer, node, attributes, where)
    if node.op_type in _MAKERS:
        importer.sequences[node.output[0]] = _MAKERS[node.op_type](call)
    else:
        importer.alias(node.output[0], _READERS[node.op_type](call))
