"""Rows that bring a dense tensor to a strided place, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve
from cuts.backends import BlockAddress
from cuts.ir import DType, TensorType
from cuts.ir.compiled import Storage
from cuts.runtime import Plan
from cuts.runtime.native.interface_copies import RowCopy, row_copies
from cuts.tests.amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from .handmade import example_plan

ITEM = np.dtype(np.int16)


def plan_with(shape: tuple[int, ...], strides: tuple[int, ...]) -> Plan:
    """Return a plan with a tensor `t` of these strides."""
    plan = example_plan()
    types = {**plan.types, "t": TensorType(DType.I16, shape)}
    return evolve(plan, types=types, storages={**plan.storages, "t": Storage("t", 0, strides)})


def apply(copied: RowCopy, memory: dict[int, Any]) -> None:
    """Copy the rows of bytes as a device does."""
    source, target = memory[copied.source.block], memory[copied.target.block]
    assert min(copied.source_pitch, copied.target_pitch) >= copied.width
    for row in range(copied.height):
        begin, end = (p.offset + row * pitch for p, pitch in (
            (copied.source, copied.source_pitch), (copied.target, copied.target_pitch),
        ))  # fmt: skip
        target[end : end + copied.width] = source[begin : begin + copied.width]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw a shape, and strides of a permuted, padded place without overlap."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    strides, step = [0] * len(shape), draw(st.integers(1, 2))
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step
        step *= max(shape[axis], 1) + draw(st.integers(0, 1))
    return shape, tuple(strides)


@settings(max_examples=examples(200, 2000))
@given(layouts())
def test_rows_are_those_of_the_strided_tensor(layout: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, strides = layout
    plan = plan_with(shape, strides)
    room = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    dense = np.arange(1, 1 + int(np.prod(shape)), dtype=ITEM).reshape(shape)
    place = np.zeros(room, ITEM)
    copies = list(row_copies(plan, "t", BlockAddress(1), BlockAddress(0)))
    memory = {0: dense.reshape(-1).view(np.uint8), 1: place.view(np.uint8)}
    for each in copies:
        apply(each, memory)
    view = np.lib.stride_tricks.as_strided(place, shape, tuple(stride * ITEM.itemsize for stride in strides))
    np.testing.assert_array_equal(view, dense)
    assert np.count_nonzero(place) == dense.size
    back = {1: memory[1], 0: np.zeros_like(memory[0])}
    for each in copies:
        apply(each.backwards(), back)
    np.testing.assert_array_equal(back[0], memory[0])


def test_rows_of_a_repeated_dim_are_pieces() -> None:
    copies = list(row_copies(plan_with((3, 4), (0, 1)), "t", BlockAddress(1), BlockAddress(0)))
    assert [(c.backwards().target.offset, c.height, c.width) for c in copies] == [(8 * n, 1, 8) for n in range(3)]
