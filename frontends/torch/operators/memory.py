"""PyTorch's operations on strides, and fills of tensors.

Strides name positions of a storage; a tensor of the graph has its elements at those that its example shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..calls import is_view, tensor_of
from ..import_context import Convert, ImportContext, Value, dtype_of


def _as_strided(
    ctx: ImportContext, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> Any:
    """Return elements of the first tensor whose memory has them: the operand, or one that it is a view of."""
    places = _places(shape, strides, _start(ctx) if offset is None else offset)
    for node in _owners(ctx):
        value, found = ctx.values.get(node), _lookup(_places_of(node), places)
        if isinstance(value, Value) and (found >= 0).all():
            return ctx.emit("gather", ctx.reshape(value, (-1,)), ctx.constant(found), axis=0)
    return ctx.fail("strides of elements that no tensor of the graph has are not supported; call contiguous() before")


def _as_strided_scatter(
    ctx: ImportContext,
    x: Value,
    updates: Value,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int | None = None,
) -> Any:
    """Return the tensor with other elements at computed positions."""
    places = _places(shape, strides, _start(ctx) if offset is None else offset)
    found = _lookup(places, _places_of(_operand(ctx)))
    if (found < 0).all():
        return x
    moved = ctx.emit("gather", ctx.reshape(updates, (-1,)), ctx.constant(found.clip(0)), axis=0)
    return moved if (found >= 0).all() else ctx.emit("where", ctx.constant(found >= 0), moved, x)


def _operand(ctx: ImportContext) -> torch.fx.Node:
    """Return the node of the first operand; without an example of it the call is refused."""
    first = ctx.node.args[0] if ctx.node is not None else None
    if not isinstance(first, torch.fx.Node) or tensor_of(first) is None:
        ctx.fail("strides of a tensor without a known memory are not supported; call contiguous() before")
    return first


def _start(ctx: ImportContext) -> int:
    return int(_operand(ctx).meta["val"].storage_offset())


def _owners(ctx: ImportContext) -> Iterator[torch.fx.Node]:
    """Yield the first operand, then the tensor that it is a view of, and so on."""
    node: Any = _operand(ctx)
    memory = _memory(node)
    while isinstance(node, torch.fx.Node) and tensor_of(node) is not None and _memory(node) == memory:
        yield node
        is_made_of = isinstance(node.target, torch._ops.OpOverload) and is_view(node.target) and node.args
        node = node.args[0] if is_made_of else None


def _memory(node: torch.fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _places(shape: Sequence[int], strides: Sequence[int], offset: int) -> npt.NDArray[np.int64]:
    """Return the positions of elements in a storage."""
    places = np.full((), offset, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    return places


def _places_of(node: torch.fx.Node) -> npt.NDArray[np.int64]:
    example = node.meta["val"]
    return _places(example.shape, example.stride(), example.storage_offset())


def _lookup(held: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of each wanted position among the held ones, the last of equal ones, or -1."""
    numbers = np.full(max(held.max(initial=-1), wanted.max(initial=-1)) + 1, -1, np.int64)
    numbers[held.reshape(-1)] = np.arange(held.size)
    return numbers[wanted]


def _fill(ctx: ImportContext, x: Value, value: Any) -> Any:
    kind, shape = ctx.type(x).dtype, ctx.shape(x)
    if isinstance(value, Value):
        return ctx.emit("expand", ctx.cast(value, kind), shape=shape)
    return ctx.number(value, kind, shape)


def _empty(ctx: ImportContext, shape: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Any:
    """Return a tensor without defined elements; zeros are as good as any."""
    kind = dtype_of(dtype or torch.get_default_dtype())
    return ctx.constant(np.broadcast_to(np.zeros((), kind.numpy), tuple(shape)))


TABLE: dict[str, Convert] = {
    "aten.as_strided": _as_strided, "aten.as_strided_copy": _as_strided,
    "aten.as_strided_scatter": _as_strided_scatter, "aten.fill": _fill,
    "aten.empty_permuted": _empty, "aten.empty_strided": _empty,
}  # fmt: skip
