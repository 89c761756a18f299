"""Kinds of nodes with a state that is carried over time steps."""

from __future__ import annotations

import zlib
from math import prod

from cuts.ir.types import DType

from ..ops.recurrences import recurrences
from .growth import MAX_ELEMENTS, Growth

#: Steps that are taken at most: the reference and interpreted normal forms take them one by one.
MAX_LENGTH = 6
#: Elements of a state at most.
WIDEST = 16
#: Gates of each operation.
_GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def recurrence(growth: Growth, value: str) -> None:
    """Add a recurrent layer over the first axis.

    It has one direction or both; sequences may end early.
    """
    steps, *batches, features = growth.shape(value)
    batch = prod(batches)
    if len(batches) != 1:
        value = growth.grow("reshape", value, shape=(steps, batch, features), exact=True)
    if steps > MAX_LENGTH:
        value = growth.grow("slice", value, starts=(0,), ends=(MAX_LENGTH,), axes=(0,), exact=True)
        steps = MAX_LENGTH
    op, width = growth.pick(("lstm", "gru", "rnn")), growth.pick((3, 1, 4, 8))
    direction = growth.pick(("forward", "reverse", "bidirectional"))
    ways, rows = 2 if direction == "bidirectional" else 1, _GATES[op] * width
    if 2 * steps * batch * max(rows, ways * width) > MAX_ELEMENTS:
        growth.grow("tanh", value, bound=1.0)
        return
    weights = [growth.weight(features, ways, rows, features), growth.weight(width, ways, rows, width)]
    lengths = growth.build.array(growth.build.rng.integers(0, steps + 1, batch), growth.pick((DType.I32, DType.I64)))
    start = (ways, batch, width)
    optional = [(ways, 2 * rows), None, start, *((start, (ways, 3 * width)) if op == "lstm" else ())]
    given = [(lengths if shape is None else growth.operand(*shape)) if growth.flag() else None for shape in optional]
    more = {"linear_before_reset": growth.flag()} if op == "gru" else {"input_forget": growth.flag()}
    more["together"] = growth.flag()
    results = growth.build.results(
        op, value, *weights, *given, direction=direction, **(more if op != "rnn" else {}), **_clip_attributes(growth)
    )
    for result, bound in zip(results, (4.0, 4.0, 4.0 + steps), strict=False):
        growth.keep(result, (value,), bound)


def declare_recurrence(growth: Growth, value: str) -> None:
    """Add a recurrence with a new declaration.

    It has several states, conditions on the iteration, and reads of earlier ones.
    """
    case = growth.draw(recurrences())
    *outer, width = growth.shape(value)
    if growth.dtype is not DType.F32 or width > WIDEST or prod(outer) < case.steps:
        recurrence(growth, value)
        return
    rows = growth.grow("reshape", value, shape=(prod(outer), width), exact=True)
    rows = growth.grow("slice", rows, starts=(0,), ends=(case.steps,), axes=(0,), exact=True)
    places = growth.build.array(growth.build.rng.integers(0, case.steps, case.steps), DType.I32)
    name = f"turns_{zlib.crc32(case.text.encode()):x}"
    text = case.text.replace('op t "t"', f'op {name} "a recurrence"')
    results = growth.build.results(name, rows, growth.weight(width, width, width), places, declaration=text)
    for result in results:
        growth.keep(result, (rows,), 2 * growth.bounds[value] + 4)


def _clip_attributes(growth: Growth) -> dict[str, float]:
    return {"clip": 1.5} if growth.pick((False, False, True)) else {}
