"""PyTorch's updates of elements, each at the place along an axis that an integer names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ir import COMBINERS, DType
from ..reader import Convert, Reader, Value
from .arithmetic import divide
from .movement import expand, with_axis

_REDUCTIONS = {
    None: "none", "add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul", "amax": "max",
    "amin": "min",
}  # fmt: skip


def _neutral(how: str, kind: DType) -> float:
    """Return the number that changes no result of a reduction."""
    return COMBINERS[{"add": "sum", "mul": "prod"}.get(how, how)].identity(kind)


def _scatter(how: str) -> Convert:
    def convert(
        reader: Reader,
        x: Value,
        axis: int,
        indices: Value,
        updates: Any,
        reduce: str | None = None,
        include_self: bool = True,
    ) -> Value:
        own, shape = reader.type(x).dtype, reader.shape(indices)
        kind = DType.U8 if own is DType.BOOL else own
        if not isinstance(updates, Value):
            updates = reader.cast(reader.number(updates, own, shape), kind)
        elif reader.shape(updates) != shape:
            updates = reader.emit("slice", updates, starts=(0,) * len(shape), ends=shape, axes=tuple(range(len(shape))))
        if reduce not in _REDUCTIONS:
            reader.fail(f"reduction {reduce!r}: expected one of {', '.join(str(name) for name in _REDUCTIONS if name)}")
        kept = _REDUCTIONS[reduce] if reduce else how
        x, updates = reader.cast(x, kind), reader.cast(updates, kind)
        count = _updates_per_element(reader, x, axis, indices) if reduce == "mean" or not include_self else None
        if count is not None and not include_self:
            x = reader.emit(
                "where", reader.cast(count, DType.BOOL), reader.constant(_neutral(kept, kind), dtype=kind), x
            )
        found = reader.emit("scatter_elements", x, indices, updates, axis=axis, reduction=kept)
        if reduce == "mean" and count is not None:
            one = reader.constant(1, dtype=DType.I64)
            shares = reader.emit("add" if include_self else "max", count, one)
            found = divide(reader, found, reader.cast(shares, kind), None if kind.is_float else "floor")
        return reader.cast(found, own)

    return convert


def _updates_per_element(reader: Reader, x: Value, axis: int, indices: Value) -> Value:
    none = reader.constant(np.broadcast_to(np.int64(0), reader.shape(x)))
    ones = reader.constant(np.broadcast_to(np.int64(1), reader.shape(indices)))
    return reader.emit("scatter_elements", none, indices, ones, axis=axis, reduction="add")  # type: ignore[no-any-return]


def _index_reduce(
    reader: Reader, x: Value, axis: int, indices: Value, updates: Value, reduce: str, *, include_self: bool = True
) -> Any:
    """Each integer names a place for a whole slice."""
    own, x, updates = reader.shape(x), with_axis(reader, x), with_axis(reader, updates)
    shape = reader.shape(updates)
    axis %= len(shape)
    column = reader.reshape(indices, (shape[axis], *(1,) * (len(shape) - 1 - axis)))
    found = _scatter("none")(reader, x, axis, expand(reader, column, shape), updates, reduce, include_self)
    return found if own else reader.reshape(found, ())


TABLE: dict[str, Convert] = {
    "aten.scatter": _scatter("none"), "aten.scatter_add": _scatter("add"), "aten.scatter_reduce": _scatter("none"),
    "aten.index_reduce": _index_reduce,
}  # fmt: skip
