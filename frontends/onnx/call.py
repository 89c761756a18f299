"""View of an ONNX node for the conversion tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, field

from ...ir import Array, Attribute, DType, GraphError, Infer, Node, TensorType
from ...ops.symbolic import ComputedSizes
from .protos import Opaque

_NO_DEFAULT = object()


class MoreResults(Opaque):
    """Raised where a conversion defines only the first result.

    The standard's function body may define all of them.
    """


class GraphBuilder(Protocol):
    """Importer interface for conversions: types, constants, new nodes."""

    opset: int
    computed: ComputedSizes | None
    types: dict[str, TensorType]
    nodes: list[Node]
    infer: Infer

    def fresh(self, hint: str) -> str:
        """Return a new value name."""

    def type_of(self, value: str) -> TensorType:
        """Return the type of a value."""

    def constant(self, value: str) -> Array | None:
        """Return the array of a value, None where it is computed."""

    def want(self, value: str) -> None:
        """Note that a computed value must become a constant."""

    def add_constant(self, array: Array, hint: str) -> str:
        """Return the name of a new constant."""

    def add_node(
        self,
        op: str,
        inputs: Sequence[str | None],
        attributes: Mapping[str, Attribute],
        origin: str,
        outputs: Sequence[str | None],
    ) -> tuple[str, ...]:
        """Add an operation and return its outputs.

        An output of None gets a fresh name.
        """

    def alias(self, name: str, value: str) -> None:
        """Let an ONNX name stand for an existing value."""


@define
class NodeCall:
    """ONNX node: operands by position, attributes by name, required results."""

    builder: GraphBuilder
    op_type: str
    where: str
    origin: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    attributes: Mapping[str, Any]
    used: set[str] = field(factory=set)

    @property
    def opset(self) -> int:
        """The version of the operator set."""
        return self.builder.opset

    def fail(self, message: str, hint: str = "") -> NoReturn:
        """Raise a `GraphError` about this node."""
        raise GraphError(f"{self.where}: {message}", hint=hint)

    def refuse(self, message: str, hint: str = "") -> NoReturn:
        """Raise `Opaque` where this valid node is outside the vocabulary."""
        raise Opaque(f"{self.where}: {message}", hint=hint)

    # ---- operands

    def optional(self, position: int) -> str | None:
        """Return an operand, None where it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def operand(self, position: int) -> str:
        """Return an operand that must be there."""
        value = self.optional(position)
        if value is None:
            self.fail(f"operand {position} is absent")
        return value

    def type(self, position: int) -> TensorType:
        """Return the type of an operand."""
        return self.builder.type_of(self.operand(position))

    def rank(self, position: int = 0) -> int:
        """Return the number of axes of an operand."""
        return len(self.type(position).shape)

    def array(self, position: int, what: str) -> Array | None:
        """Return a constant operand as an array, None where absent.

        A computed operand is an error.
        """
        value = self.optional(position)
        if value is None:
            return None
        array = self.builder.constant(value)
        if array is None:
            self.builder.want(value)
            self.refuse(
                f"operand {position} ({what}) must be a constant, found a computed value",
                "fix dynamic shapes with --shape",
            )
        return array

    # ---- attributes, and operands that were attributes in older operator sets

    def attribute(self, name: str, default: Any = _NO_DEFAULT) -> Any:
        """Return an attribute or its default, and note that it was understood."""
        self.used.add(name)
        value = self.attributes.get(name, default)
        if value is _NO_DEFAULT:
            self.fail(f"attribute '{name}' is required")
        return value

    def ints(self, name: str, position: int | None = None) -> tuple[int, ...] | None:
        """Return a list of integers from an attribute or a constant operand.

        Newer operator sets give operands in place of attributes.
        """
        self.used.add(name)
        if name in self.attributes:
            return tuple(int(v) for v in np.atleast_1d(self.attributes[name]))
        array = None if position is None else self.array(position, name)
        return None if array is None else tuple(int(v) for v in array.reshape(-1))

    def number(self, name: str, position: int, default: float | None = None) -> float | int | bool | None:
        """Return a number from an attribute or a constant operand.

        The operand must have one element.
        """
        self.used.add(name)
        if name in self.attributes:
            value: float | int = self.attributes[name]
            return value
        array = self.array(position, name)
        if array is None:
            return default
        if array.size != 1:
            self.fail(f"operand {position} ({name}) must have one element, found shape {list(array.shape)}")
        return array.reshape(-1)[0].item()  # type: ignore[no-any-return]

    # ---- results

    def emit(self, op: str, *inputs: str | None, outputs: int = 1, **attributes: Attribute | None) -> Any:
        """Add an operation with fresh results and return them.

        A single result is returned bare.
        """
        given = {k: v for k, v in attributes.items() if v is not None}
        values = self.builder.add_node(op, inputs, given, self.origin, [None] * outputs)
        return values[0] if outputs == 1 else values

    def result(self, op: str, *inputs: str | None, **attributes: Attribute | None) -> None:
        """Add the operation that defines this node's results."""
        given = {k: v for k, v in attributes.items() if v is not None}
        self.builder.add_node(op, inputs, given, self.origin, self.outputs)

    def give(self, value: str, position: int = 0) -> None:
        """Let an existing value be one of this node's results."""
        name = self.outputs[position]
        if name is not None:
            self.builder.alias(name, value)

    def constant(self, array: npt.ArrayLike, dtype: DType) -> str:
        """Return a new constant."""
        return self.builder.add_constant(np.asarray(array, dtype.numpy), f"{self.origin}.const")

    def only_first_output(self) -> None:
        """Raise `MoreResults` where results after the first are used."""
        if any(name is not None for name in self.outputs[1:]):
            raise MoreResults(f"{self.where}: only the first result is supported, found uses of others")


Convert: TypeAlias = Callable[[NodeCall], None]
