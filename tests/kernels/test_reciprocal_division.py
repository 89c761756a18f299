"""Reciprocal division.

Divisions by one number share its reciprocal and round as divisions do. Signs of zeros, infinities, NaN, subnormal
numbers and both limits of every type are included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..needs import DEVICES
from .cases import builder, legal_points, unite
from .extremes import extremes
from .test_points import GPU, SPACES, _device, _run

FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)
ROWS, COLUMNS = 96, 32


def numbers(dtype: DType, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers of a type: its extremes, small integers, and any bits."""
    generator = np.random.default_rng(seed)
    bits = generator.integers(0, 1 << 8 * dtype.size, count, np.uint64, endpoint=False)
    some = [bits.astype(f"u{dtype.size}").view(dtype.numpy), np.arange(-9, 10).astype(dtype.numpy), extremes(dtype)]
    return np.concatenate([generator.choice(values, count) for values in some])[
        generator.permutation(3 * count)[:count]
    ]


def equal_numbers(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the mask of equal numbers, signs of zeros included.

    Any NaN equals another.
    """
    equal = (found == expected) & (np.signbit(found) == np.signbit(expected))
    return np.asarray(equal | np.isnan(found) & np.isnan(expected))


def division(dtype: DType, floor: bool = False) -> FusedGroup:
    """Return the group of rows divided by a number each.

    A second result has the floors of the quotients.
    """
    make = builder()
    x, t = make.input(ROWS, COLUMNS, dtype=dtype), make.input(ROWS, 1, dtype=dtype)
    y = make.node("div", x, t)
    y = make.node("floor", y) if floor else y
    return unite(make.programs(), y)


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quotients_round_as_divisions_do(dtype: DType, target: str) -> None:
    group, shared = division(dtype), 0
    x, t = (numbers(dtype, n, n).reshape(-1, m) for n, m in ((ROWS * COLUMNS, COLUMNS), (ROWS, 1)))
    inputs, wide = dict(zip(group.inputs, (x, t), strict=True)), dtype.arithmetic.numpy
    with np.errstate(all="ignore"):
        expected = (x.astype(wide) / t.astype(wide)).astype(dtype.numpy)
        step = np.where(abs(x) < np.finfo(wide).smallest_normal / np.finfo(wide).eps, np.spacing(abs(expected)), -1)
        exact = x.astype(np.float64) / t.astype(np.float64)
        # A half type may round another way where the quotient is in the middle between two of its numbers.
        middle = (abs(expected - exact) + 2.0**-22 * abs(exact)) if dtype.arithmetic is not dtype else -1
    space = make_space(group, SPACES[target.split(":")[0]])
    for structure in space.templates:
        for point in legal_points(space, structure, 7, 3):
            function = emit(extract(lower(group, point, {}, space.target)), _device(target).target.dialect)
            shared += "quotient" in function.source
            (found,) = _run(_device(target), function, group, inputs).values()
            with np.errstate(all="ignore"):
                near = abs(found - expected) <= step  # the remainder of a small number has no room for all its digits
                near |= abs(found - exact) <= middle
            wrong = ~(equal_numbers(found, expected) | near)
            assert not wrong.any(), [(x[n], t[n[0]], found[n]) for n in zip(*np.where(wrong), strict=True)][:5]
    assert shared


def test_only_numbers_with_one_divisor_share_its_reciprocal() -> None:
    group = division(DType.F32)
    space = make_space(group, GPU)
    points = [p for s in space.templates for p in legal_points(space, s, 1, 32)]
    found = [[d.thread for d in p.segments[0].dims] for p in points]
    texts = [emit(extract(lower(group, p, {}, GPU)), "cuda").source for p in points]
    assert any("cuts_quotient" in text for text in texts)
    assert not any("cuts_quotient" in text for text, tile in zip(texts, found, strict=True) if np.prod(tile) < 4)


def test_values_rounded_at_once_need_no_remainder() -> None:
    def helpers(dtype: DType, floor: bool) -> set[str]:
        group = division(dtype, floor)
        space = make_space(group, GPU)
        points = [p for s in space.templates for p in legal_points(space, s, 1, 16)]
        texts = [emit(extract(lower(group, p, {}, GPU)), "cuda").source for p in points]
        return {name for name in ("cuts_quotient_f32(", "cuts_near_quotient_f32(") if any(name in t for t in texts)}

    assert helpers(DType.F16, floor=False) == {"cuts_near_quotient_f32("}
    assert helpers(DType.F16, floor=True) == helpers(DType.F32, floor=False) == {"cuts_quotient_f32("}
