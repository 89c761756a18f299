"""Texts of operations in ONNX's notation, generated for a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from attrs import frozen


@frozen
class NodeUse:
    """Attributes of a node, flags of its present operands, and known shapes."""

    attributes: dict[str, Any]
    present: tuple[bool, ...]
    shapes: tuple[tuple[int, ...] | None, ...] = ()

    def has(self, position: int) -> bool:
        """Return whether an operand is present."""
        return position < len(self.present) and self.present[position]

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an operand.

        Raises `ValueError` where it is unknown.
        """
        found = self.shapes[position] if position < len(self.shapes) else None
        if found is None:
            raise ValueError(f"operand {position} has no known shape")
        return found

    def get(self, name: str, default: Any) -> Any:
        """Return the value of an attribute."""
        return self.attributes.get(name, default)


#: Operands and results by name, and the lines between them.
Text: TypeAlias = tuple[Sequence[str], Sequence[str], Sequence[str]]
WriteText: TypeAlias = Callable[[NodeUse], Text]


def attributes_text(**values: object) -> str:
    """Return attributes in ONNX's notation."""
    return (
        "<" + ", ".join(f"{k} = {v!r}" if isinstance(v, float) else f"{k} = {v}" for k, v in values.items()) + ">"
        if values
        else ""
    )
