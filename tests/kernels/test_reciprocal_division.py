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


QUOTIENTS = ("quotient", "near_quotient", "approximate_quotient")


def names_of_quotients(dtype: DType, shared: bool, *then: str, into: DType | None = None) -> set[str]:
    """Return the functions that divide, in kernels of some schedules."""
    make = builder()
    y = make.node(
        "div", make.input(ROWS, COLUMNS, dtype=dtype), make.input(ROWS, 1 if shared else COLUMNS, dtype=dtype)
    )
    for op in then:
        y = make.node(op, y)
    y = make.node("cast", y, to=into.value) if into else y
    group = unite(make.programs(), y)
    space = make_space(group, GPU)
    points = [p for s in space.templates for p in legal_points(space, s, 1, 16)]
    texts = [emit(extract(lower(group, p, {}, GPU)), "cuda").source for p in points]
    return {name for name in QUOTIENTS if any(f"cuts_{name}_f32(" in text for text in texts)}


@pytest.mark.parametrize(
    ("dtype", "then", "into", "near"),
    [
        (DType.F16, (), None, True),
        (DType.BF16, ("neg", "exp"), None, True),
        (DType.F32, (), DType.BF16, True),
        (DType.F16, (), DType.F32, True),
        (DType.F16, ("floor",), None, False),
        (DType.BF16, ("is_nan",), DType.F32, False),
        (DType.F16, (), DType.I32, False),
        (DType.F32, ("neg",), DType.F16, False),
        (DType.F32, (), None, False),
    ],
    ids=lambda each: str(each),
)
def test_rounded_quotients_are_approximate(dtype: DType, then: tuple[str, ...], into: DType | None, near: bool) -> None:
    """Quotients need the digits of half types alone, unless a step follows."""
    shared = names_of_quotients(dtype, True, *then, into=into)
    assert "near_quotient" in shared if near else shared == {"quotient"}
    assert names_of_quotients(dtype, False, *then, into=into) == ({"approximate_quotient"} if near else set())


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_halves_divided_one_by_one_round_exactly(dtype: DType, target: str) -> None:
    """Normal quotients of halves are never near the middle of two."""
    make, least = builder(), 2.0**-14 if dtype is DType.F16 else 2.0**-126
    result = make.node("div", *(make.input(ROWS, COLUMNS, dtype=dtype) for _ in range(2)))
    group = unite(make.programs(), result)
    x, t = (numbers(dtype, ROWS * COLUMNS, n).reshape(ROWS, COLUMNS) for n in range(2))
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32) / t.astype(np.float32)
        expected = wide.astype(dtype.numpy)
        tiny = abs(wide) < least  # of fewer digits: a middle of two may be met
    space = make_space(group, SPACES[target.split(":")[0]])
    point = next(p for s in space.templates for p in legal_points(space, s, 7, 1))
    function = emit(extract(lower(group, point, {}, space.target)), _device(target).target.dialect)
    (found,) = _run(_device(target), function, group, dict(zip(group.inputs, (x, t), strict=True))).values()
    with np.errstate(all="ignore"):
        near = tiny & (abs(found - expected) <= least * 2.0 ** (1 - dtype.element.digits))
    wrong = ~(equal_numbers(found, expected) | near)
    assert not wrong.any(), list(zip(x[wrong], t[wrong], found[wrong], strict=True))[:5]
