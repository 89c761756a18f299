"""Type promotion for nodes whose operand types the vocabulary lacks.

The standard allows several types at once, or one that our operation does not take. The operands are cast to one type
that it takes, and the result to the type that the standard defines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from attrs import define, field, frozen

from ...ir import Attribute, DType
from .call import Convert, NodeCall

#: Maps the types of some operands to the type of the computation.
Choice: TypeAlias = Callable[[Collection[DType]], DType]


def widest(types: Collection[DType]) -> DType:
    """Return the type of most digits."""
    return max(types, key=lambda dtype: dtype.element.digits)


def widest_real(types: Collection[DType]) -> DType:
    """Return the real type of most digits, f64 for integers."""
    wide = widest(types)
    return DType.F64 if wide.is_int else wide


def widest_number(types: Collection[DType]) -> DType:
    """Return the type of most digits, a byte for conditions."""
    wide = widest(types)
    return DType.U8 if wide is DType.BOOL else wide


@frozen
class TypePromotion:
    """Conversion of a node of one result that promotes operands.

    The result has the first operand's type. `positions` are the operands that become one type, which `choice` selects.
    """

    convert: Convert
    positions: Sequence[int]
    choice: Choice

    def __call__(self, call: NodeCall) -> None:
        """Convert a node, directly where its operands have the chosen type."""
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
        inner = _CollectedCall(
            call.builder, call.op_type, call.where, call.origin, tuple(inputs), call.outputs, call.attributes, call.used
        )
        self.convert(inner)
        call.only_first_output()
        call.result("cast", inner.collected[0], to=types[0].value)


@define
class _CollectedCall(NodeCall):
    """Call whose result is collected rather than defined."""

    collected: list[str] = field(factory=list)

    def result(self, op: str, *inputs: str | None, **attributes: Attribute | None) -> None:
        """Add the operation and collect its result."""
        given = {name: value for name, value in attributes.items() if value is not None}
        self.collected += self.builder.add_node(op, inputs, given, self.origin, [None])

    def give(self, value: str, position: int = 0) -> None:
        """Collect an existing value."""
        self.collected.append(value)
