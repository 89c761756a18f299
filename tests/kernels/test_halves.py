"""Half types: rounding as NumPy rounds, wherever numbers are stored or converted.

Every legal point of random groups computes the reference with tensors of every type that kernels load as vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.ir import FUNCTIONS
from cuts.ir.expr import Cast, Const, Expr, IndexValue, Read
from cuts.ir.segment import FusedGroup, Segment
from cuts.ir.traversal import rebuild
from cuts.ir.types import DType, TensorType
from cuts.ir.verify import verify_group
from cuts.tests.amounts import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import DEVICES
from .cases import chains, pairs, points
from .test_numbers import TARGETS, node, result
from .test_points import SPACES, _device, check

HALVES = (DType.F16, DType.BF16)


def every_kind(dtype: DType) -> np.ndarray[Any, Any]:
    """Return single-precision numbers around the steps of a half type.

    They lie on them, halfway and just beside; NaN and infinities are included.
    """
    bits = np.random.default_rng(0).integers(0, 1 << 16, 4000, np.uint16)
    exact = bits.view(dtype.numpy).astype(np.float32)
    with np.errstate(all="ignore"):
        step = np.spacing(np.abs(exact).astype(dtype.numpy)).astype(np.float32) / 2
        found = [exact, exact + step, np.nextafter(exact + step, np.float32(np.inf)), exact - step, exact * 1.37]
    return np.concatenate([*found, np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 65520, 65519, 3.4e38], np.float32)])


def same_bits(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Return true for equal bits, signs of zeros included.

    Any NaN equals another.
    """
    nan = np.isnan(expected)
    return bool((np.isnan(found) == nan).all() and (found.view(np.uint16) == expected.view(np.uint16))[~nan].all())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_stores_round_to_nearest_even(dtype: DType, target: str) -> None:
    x = every_kind(dtype)
    found = result(target, {"x": x}, node("y", "cast", "x", to=dtype.value))
    with np.errstate(all="ignore"):
        assert same_bits(found, x.astype(dtype.numpy))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_conversions_in_registers_round_too(dtype: DType, target: str) -> None:
    x = every_kind(dtype)
    found = result(target, {"x": x}, node("h", "cast", "x", to=dtype.value), node("y", "cast", "h", to="f32"))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, x.astype(dtype.numpy).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_become_the_same_numbers(dtype: DType, target: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    found = result(target, {"x": x}, node("y", "cast", "x", to="f32"))
    np.testing.assert_array_equal(found, x.astype(np.float32))


def ordinals(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return integers in the order of a half type's numbers."""
    codes = numbers.view(np.int16).astype(np.int32)
    return np.where(codes < 0, -32768 - codes, codes)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_functions_of_halves_are_right_to_a_unit(dtype: DType, target: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    other = np.random.default_rng(0).permutation(x)
    with np.errstate(all="ignore"):
        wide, by = x.astype(np.float64), other.astype(np.float64)
    errors, complements = (result(target, {"x": x}, node("y", op, "x")) for op in ("erf", "erfc"))
    quotients = result(target, {"x": x, "z": other}, node("y", "div", "x", "z"))
    with np.errstate(all="ignore"):
        cases = (
            (errors, FUNCTIONS["erf"].numpy(wide), 1),
            (complements, FUNCTIONS["erfc"].numpy(wide), 1),
            (quotients, wide / by, 0),
        )
        for got, exact, units in cases:
            expected = exact.astype(np.float32).astype(dtype.numpy)
            number = ~np.isnan(expected)
            assert (np.isnan(got) == ~number).all()
            if got is complements:  # powers of two may be 0 in place of subnormal
                assert got[np.abs(exact) < 2.0**-126].astype(np.float64).max() < 2.0**-125
                number &= np.abs(exact) >= 2.0**-126
            assert np.abs(ordinals(got) - ordinals(expected))[number].max() <= units


def in_type(group: FusedGroup, dtype: DType) -> FusedGroup:
    """Return a group whose real numbers are of another type.

    Sums keep its accumulator.
    """
    held = {r.name for s in group.segments for r in s.reductions}

    def leaf(node: Expr) -> Expr:
        if isinstance(node, Read) and node.tensor in held:
            return Cast(dtype, node) if dtype.accumulator is not dtype else node
        if isinstance(node, (Const, IndexValue)) and node.dtype is DType.F32:
            return evolve(node, dtype=dtype)
        return node

    def segment(old: Segment) -> Segment:
        reductions = tuple(evolve(r, body=rebuild(r.body, leaf)) for r in old.reductions)
        return Segment(old.axes, reductions, tuple(evolve(o, body=rebuild(o.body, leaf)) for o in old.outputs))

    tensors = {
        name: TensorType(dtype.accumulator if name in held else dtype, type_.shape)
        if type_.dtype is DType.F32
        else type_
        for name, type_ in group.tensors.items()
    }
    found = evolve(group, segments=tuple(map(segment, group.segments)), tensors=tensors)
    verify_group(found)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*HALVES, DType.F64], ids=str)
@settings(max_examples=examples(6, 250), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_points_of_every_type(dtype: DType, device: str, data: st.DataObject) -> None:
    space = SPACES[device]
    group = in_type(data.draw(st.one_of(chains(), pairs())), dtype)
    schedule = data.draw(points(group, space))
    assume(schedule is not None)
    check(_device(device), space, group, schedule)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_exponentials_of_every_number(dtype: DType, target: str) -> None:
    """A half type has 12 digits at most.

    Functions computed with 16 digits round as the exponential does, except for ties.
    """
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    found = result(target, {"x": x}, node("y", "exp", "x")).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
        expected = exact.astype(dtype.numpy).astype(np.float64)
        near = abs(found - exact) <= abs(expected - exact) + 2.0**-16 * exact
    assert (near | (found == expected) | np.isnan(expected) & np.isnan(found)).all()
