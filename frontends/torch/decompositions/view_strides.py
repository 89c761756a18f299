"""Strides of traced views: those of eager ones.

An axis of one element may have any stride. A trace gives it another one than an eager view has, which a convolution
reads: a batch of one image counts as channels-last where no stride is less than those of the axes within it.

    x of shape (1, 16, 256), strides (4096, 1, 16);  x.view(1, 16, 16, 16)
      ->   eager strides (16, 1, 256, 16), traced strides (4096, 1, 256, 16)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import FakeTensorMode, fake_impls

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


@contextmanager
def trace_eager_views() -> Iterator[None]:
    """Trace views of static shapes with the strides of eager ones.

    Cached views of traces would keep theirs, and are forgotten.
    """
    rules = fake_impls.op_implementations_dict
    taken = {view: rules[view] for view in _VIEWS if view in rules}
    for key in [key for key in FakeTensorMode.cache if key.key[0] in _VIEWS]:
        FakeTensorMode.cache.pop(key, None)
    try:
        rules.update({view: _with_eager_strides(rule) for view, rule in taken.items()})
        yield
    finally:
        rules.update(taken)


def _with_eager_strides(rule: Any) -> Any:
    def view(mode: FakeTensorMode, function: Any, source: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        found: torch.Tensor = rule(mode, function, source, *shape, **options)
        sizes = (*source.shape, *source.stride(), *found.shape, source.storage_offset())
        if any(type(size) is not int for size in sizes) or 1 not in found.shape or 0 in found.shape:
            return found
        strides = view_strides(source.shape, source.stride(), found.shape)
        return found if strides == found.stride() else source.as_strided(found.shape, strides, source.storage_offset())

    return view


def view_strides(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an eager view of shape `wanted`.

    Axes that step evenly are one run, with axes of one element before them (`computeStride` in ATen). No axis is empty.
    """
    runs: list[list[int]] = []  # elements and last stride of each run, the last run first
    for axis in reversed(range(len(shape))):
        if runs and (shape[axis] == 1 or strides[axis] == runs[-1][0] * runs[-1][1]):
            runs[-1][0] *= shape[axis]
        else:
            runs.append([shape[axis], strides[axis]])
    found: list[int] = []
    left = [*wanted]
    for elements, step in runs or [[1, 1]]:
        taken = 1
        while left and (taken < elements or left[-1] == 1):
            found.append(taken * step)
            taken *= left.pop()
    return tuple(reversed(found))
