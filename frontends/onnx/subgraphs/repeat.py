"""Bodies of ONNX's `Scan` and `Loop`, imported once for all steps.

Compile time then does not depend on the number of steps. That the steps are equal must be decided without the number of
the step: where the body asks for a constant that is computed from it, or changes the shape of a state, the caller
unrolls the body.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from attrs import frozen

from ....ir import CutsError, DType, TensorType
from ....ops import RolledLoop, SequenceAxis, declare_loop, loop_body
from ....ops.language import Registry
from ..importer import Importer
from .steps import import_step

#: Steps up to which a body is unrolled: its nodes then fuse with those around it.
MAX_UNROLLED_STEPS = 4


@frozen
class LoopBody:
    """Loop body: first states, scanned sequences, and collected results.

    `sequences` and `collected` carry their axes. A `counted` body takes its number and a condition
    first, and returns a condition.
    """

    body: onnx.GraphProto
    steps: int
    states: Sequence[str]
    sequences: Sequence[tuple[str, SequenceAxis]] = ()
    collected: Sequence[SequenceAxis] = ()
    counted: str = ""


def import_iterations(importer: Importer, loop: LoopBody, origin: str, where: str) -> tuple[str, ...] | None:
    """Import a body as one operation for all steps; return its results.

    The last states come first. Returns None where the steps differ and have to be unrolled.
    """
    known = (*loop.states, *(value for value, _ in loop.sequences))
    if loop.steps <= MAX_UNROLLED_STEPS or not all(value in importer.types for value in known):
        return None
    first, wanted = len(importer.nodes), set(importer.wanted)
    number = [_define_part(importer, f"{origin}.number", TensorType(DType.I64, ()))] if loop.counted else []
    states = [_define_part(importer, f"{origin}.state", importer.types[value]) for value in loop.states]
    elements = {_element(importer, origin, value, along): along for value, along in loop.sequences}
    operands = [*number, *([loop.counted] if loop.counted else []), *states, *elements]
    found = importer.attempt(lambda: import_step(importer, loop.body, operands, f"{origin}.turn", where))
    nodes = importer.nodes[first:]
    del importer.nodes[first:]
    results = None if found is None else _results(importer, loop, states, found)
    if results is not None:
        body = loop_body(nodes, importer.types, (*number, *states, *elements), results)
        along = _collected_axes(importer, loop, results)
        repetition = RolledLoop(body, loop.steps, tuple(states), elements, along, next(iter(number), None))
        results_of_all = _add_repetition(importer, repetition, known, origin)
        if results_of_all is not None:
            return results_of_all
    importer.wanted = wanted
    return None


def define_results(importer: Importer, node: onnx.NodeProto, values: Sequence[str]) -> None:
    """Define the results of a node by values."""
    for name, value in zip(node.output, values, strict=False):
        if name:
            importer.alias(name, value)


def _define_part(importer: Importer, hint: str, type_: TensorType) -> str:
    name = importer.fresh(hint)
    importer.define_input(name, type_)
    return name


def _element(importer: Importer, origin: str, value: str, along: SequenceAxis) -> str:
    type_ = importer.types[value]
    shape = tuple(n for d, n in enumerate(type_.shape) if d != along.axis)
    return _define_part(importer, f"{origin}.element", TensorType(type_.dtype, shape))


def _results(importer: Importer, loop: LoopBody, states: Sequence[str], found: Sequence[str]) -> list[str] | None:
    """Return the next states and the collected results, None where a step may end the loop or change a state's type."""
    results = list(found)
    if loop.counted:
        condition = importer.constant(results.pop(0))
        if condition is None or not condition.all():
            return None
    if any(value not in importer.types for value in results):
        return None
    is_stable = all(importer.types[a] == importer.types[b] for a, b in zip(states, results, strict=False))
    return results if is_stable else None


def _collected_axes(importer: Importer, loop: LoopBody, results: Sequence[str]) -> tuple[SequenceAxis, ...]:
    ranks = [len(importer.types[value].shape) for value in results[len(loop.states) :]]
    pairs = zip(loop.collected, ranks, strict=True)
    return tuple(SequenceAxis(along.axis % (rank + 1), along.backwards) for along, rank in pairs)


def _add_repetition(
    importer: Importer, repetition: RolledLoop, operands: Sequence[str], origin: str
) -> tuple[str, ...] | None:
    """Add the operation of all steps, where the language has one."""
    try:
        name, text = declare_loop(repetition, Registry.builtin().instances)
    except CutsError:
        return None
    count = len(repetition.body.outputs)
    return importer.add_node(name, [*operands, *repetition.same], {}, origin, [None] * count, text)
