"""PyTorch's operations that speak of memory: strides, and tensors that are filled or written over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..reader import Convert, Reader, Value, dtype_of


def _as_strided(
    reader: Reader, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> Any:
    """Elements at computed places of the flat tensor; what lies in memory otherwise than in order is refused."""
    example = reader.node.args[0].meta.get("val") if reader.node is not None else None  # type: ignore[union-attr]
    if not isinstance(example, torch.Tensor) or not example.is_contiguous() or example.storage_offset():
        reader.fail(
            "strides of a tensor that does not lie in memory in order are not supported; call contiguous() before"
        )
    places = np.full((), offset or 0, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    return reader.emit("gather", reader.emit("reshape", x, shape=(-1,)), reader.constant(places), axis=0)


def _fill(reader: Reader, x: Value, value: Any) -> Any:
    kind, shape = reader.type(x).dtype, reader.shape(x)
    if isinstance(value, Value):
        return reader.emit("expand", reader.cast(value, kind), shape=shape)
    return reader.number(value, kind, shape)


def _written_over(reader: Reader, shape: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Any:
    """A tensor without defined elements; zeros are as good as any."""
    kind = dtype_of(dtype or torch.get_default_dtype())
    return reader.constant(np.broadcast_to(np.zeros((), kind.numpy), tuple(shape)))


TABLE: dict[str, Convert] = {
    "aten.as_strided": _as_strided, "aten.fill": _fill, "aten.empty_permuted": _written_over,
    "aten.empty_strided": _written_over,
}  # fmt: skip
