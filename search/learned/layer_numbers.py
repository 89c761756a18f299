"""Sizes of the layer that a fusion group computes."""

from __future__ import annotations

from math import prod

from ...ir import FusedGroup, Index, Reduction, Var, reads


def layer_numbers(group: FusedGroup) -> tuple[float, ...]:
    """Return a layer's sizes, stride and padding.

    They are N, C, K, filter rows and columns, image rows and columns, the stride, and 1 where there is padding. They
    follow from accesses: an index `S * output + D * reduced - P` is that of an image. A matrix product is a
    convolution whose image and filter are one pixel, as in DeepCuts.
    """
    segment = next((s for s in group.segments if s.reductions), group.segments[-1])
    axes = set(segment.axes)
    if not segment.reductions:
        return (float(prod(a.extent for a in axes)), *(1.0,) * 7, 0.0)
    reduction = segment.reductions[0]
    operands = reads(reduction.body)
    image = next((r for r in operands if any(_is_window(i, reduction) for i in r.indices)), operands[0])
    others = {v for r in operands if r is not image for i in r.indices for v in _variables(i)}
    windows = [(i, e) for i, e in zip(image.indices, group.tensors[image.tensor].shape, strict=True)
               if _is_window(i, reduction)][:2]  # fmt: skip
    of_image, inside = {v for i in image.indices for v in _variables(i)}, {v for i, _ in windows for v in _variables(i)}
    channels = [v for v in reduction.reduce if v not in inside]
    filters = [v.extent for i, _ in windows for v in _variables(i) if v in reduction.reduce]
    sizes = [extent for _, extent in windows]
    strides = [abs(f) for i, _ in windows for v, f in i.terms if v in axes]
    counts = (
        [v.extent for v in axes & of_image - others - inside], [v.extent for v in channels],
        [v.extent for v in axes & others - of_image],
    )  # fmt: skip
    padded = float(any(i.const < 0 for i, _ in windows))
    return (
        *(float(prod(c)) for c in counts), *map(float, ([1, 1, *filters])[-2:]), *map(float, ([1, 1, *sizes])[-2:]),
        float(strides[0] if strides else 1), padded,
    )  # fmt: skip


def _is_window(index: Index, reduction: Reduction) -> bool:
    found = _variables(index)
    return len(found) == 2 and sum(v in reduction.reduce for v in found) == 1


def _variables(index: Index) -> list[Var]:
    return [primary for primary, _ in index.terms if isinstance(primary, Var)]
