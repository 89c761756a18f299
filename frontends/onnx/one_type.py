"""Nodes whose operands the standard allows types that the vocabulary has no operation for: several types at once, or
one that our operation does not take. The operands become one type that it takes, the result what the standard says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from attrs import define, field, frozen

from ...ir import Attribute, DType
from .call import Convert, NodeCall

#: From the types of some operands to the one that is computed in.
Choice: TypeAlias = Callable[[Collection[DType]], DType]


def widest(types: Collection[DType]) -> DType:
    """Return the type of most digits."""
    return max(types, key=lambda dtype: dtype.element.digits)


def real(types: Collection[DType]) -> DType:
    """Return the type of most digits, or for integers the real numbers that hold most of them."""
    wide = widest(types)
    return DType.F64 if wide.is_int else wide


def number(types: Collection[DType]) -> DType:
    """Return the type of most digits, a byte for conditions."""
    wide = widest(types)
    return DType.U8 if wide is DType.BOOL else wide


@frozen
class InOneType:
    """A conversion of a node of one result, of the first operand's type; `positions` are the operands that become one
    type, which `choice` picks.
    """

    convert: Convert
    positions: Sequence[int]
    choice: Choice

    def __call__(self, call: NodeCall) -> None:
        """Convert a node; one whose operands fit as they are is converted as ever."""
        given = [n for n in self.positions if call.optional(n) is not None]
        types = [call.type(n).dtype for n in given]
        wide = self.choice(types)
        if all(dtype is wide for dtype in types):
            self.convert(call)
            return
        inputs = list(call.inputs)
        for position, dtype in zip(given, types, strict=True):
            if dtype is not wide:
                inputs[position] = call.emit("cast", call.operand(position), to=wide.value)
        inner = _Captured(
            call.builder, call.op_type, call.where, call.origin, tuple(inputs), call.outputs, call.attributes, call.used
        )
        self.convert(inner)
        call.only_first_output()
        call.result("cast", inner.made[0], to=types[0].value)


@define
class _Captured(NodeCall):
    """A call whose result is kept instead of being the node's."""

    made: list[str] = field(factory=list)

    def result(self, op: str, *inputs: str | None, **attributes: Attribute | None) -> None:
        """Add the operation whose result is kept."""
        given = {name: value for name, value in attributes.items() if value is not None}
        self.made += self.builder.add_node(op, inputs, given, self.origin, [None])

    def give(self, value: str, position: int = 0) -> None:
        """Keep an existing value."""
        self.made.append(value)
