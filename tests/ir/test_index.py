"""The quasi-affine algebra agrees with evaluation under every simplification."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from cuts.ir.affine import (
    Clamp,
    FloorDiv,
    Guard,
    Index,
    Mod,
    Var,
    as_index,
    clamp,
    coarsen,
    delinearise,
    evaluate,
    floordiv,
    linearise,
    modulo,
    substitute,
    variables,
)
from cuts.ir.affine.traversal import steps_of
from cuts.ir.types import row_major
from hypothesis import given
from hypothesis import strategies as st

from .strategies import VARIABLES, affine, assignments, divisors, indices, small

A, B, C = Var("a", 7), Var("b", 4), Var("c", 3)
shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@given(indices, divisors)
def test_division_and_remainder_are_those_of_the_integers(index: Index, divisor: int) -> None:
    quotient, rest = floordiv(index, divisor), modulo(index, divisor)
    for point in assignments(index):
        value = evaluate(index, point)
        assert (evaluate(quotient, point), evaluate(rest, point)) == divmod(value, divisor)


@given(affine, divisors, divisors, st.integers(-5, 5))
def test_nested_divisions_of_sums_match_integers(index: Index, first: int, second: int, shift: int) -> None:
    nested = floordiv(floordiv(index, first) + shift, second)
    crossed = modulo(floordiv(index, first), second)
    outer = floordiv(modulo(index, first), second)
    for point in assignments(index):
        value = evaluate(index, point)
        assert evaluate(nested, point) == (value // first + shift) // second
        assert evaluate(crossed, point) == value // first % second
        assert evaluate(outer, point) == value % first // second


@given(affine, divisors, st.integers(1, 6), affine)
def test_a_quotient_and_its_remainder_recombine(index: Index, divisor: int, factor: int, rest: Index) -> None:
    assert floordiv(index, divisor) * (divisor * factor) + modulo(index, divisor) * factor == index * factor
    total = rest + floordiv(index, divisor) * (divisor * factor) + modulo(index, divisor) * factor
    for point in assignments(index, rest):
        assert evaluate(total, point) == evaluate(rest, point) + factor * evaluate(index, point)


@given(affine, divisors, divisors)
def test_the_digits_of_a_sum_recombine(index: Index, low: int, high: int) -> None:
    joined = modulo(floordiv(index, low), high) * low + modulo(index, low)
    for point in assignments(index):
        assert evaluate(joined, point) == evaluate(index, point) % (low * high)


@given(indices, indices, st.integers(-5, 5))
def test_sums_and_multiples_are_those_of_the_integers(first: Index, second: Index, factor: int) -> None:
    for point in assignments(first, second):
        a, b = evaluate(first, point), evaluate(second, point)
        assert evaluate(first + second, point) == a + b
        assert evaluate(first - second, point) == a - b
        assert evaluate(first * factor, point) == a * factor


@given(indices, indices, indices)
def test_the_value_of_sums_ignores_their_order(first: Index, second: Index, third: Index) -> None:
    for point in assignments(first, second, third):
        assert evaluate(first + second + third, point) == evaluate(third + first + second, point)


@given(affine, affine)
def test_equal_affine_sums_are_one_object(first: Index, second: Index) -> None:
    assert first + second == second + first
    assert first + second - second == first
    assert first - first == Index()


@given(indices, st.dictionaries(st.sampled_from(VARIABLES), indices, max_size=3))
def test_substitution_then_evaluation_is_evaluation_of_both(index: Index, values: dict[Var, Index]) -> None:
    replaced = substitute(index, values)
    for point in assignments(index, *values.values())[:400]:
        inner = {v: evaluate(as_index(values.get(v, v)), point) for v in variables(index)}
        if all(0 <= inner[v] < v.extent for v in inner):
            assert evaluate(replaced, point) == evaluate(index, inner)


@given(indices)
def test_bounds_hold_every_value(index: Index) -> None:
    low, high = index.bounds()
    assert all(low <= evaluate(index, point) <= high for point in assignments(index))


@given(affine)
def test_bounds_of_affine_sums_are_reached(index: Index) -> None:
    values = [evaluate(index, point) for point in assignments(index)]
    assert index.bounds() == (min(values), max(values))


@given(indices, small, st.integers(0, 9))
def test_clamps_are_those_of_the_integers(index: Index, low: int, width: int) -> None:
    for point in assignments(index):
        assert evaluate(clamp(index, low, low + width), point) == min(max(evaluate(index, point), low), low + width)


@given(indices)
def test_every_index_is_in_canonical_form(index: Index) -> None:
    texts = [primary.text for primary, _ in index.terms]
    assert texts == sorted(set(texts))
    assert all(factor for _, factor in index.terms)
    for primary, _ in index.terms:
        assert not isinstance(primary, Var) or primary.extent > 1
        assert not isinstance(primary, (FloorDiv, Mod)) or primary.den > 1
        assert not isinstance(primary, Clamp) or primary.low < primary.high


@given(shapes)
def test_delinearise_inverts_linearise(shape: tuple[int, ...]) -> None:
    axes = [Var(f"v{number}", extent) for number, extent in enumerate(shape)]
    flat = linearise([as_index(v) for v in axes], row_major(shape))
    assert delinearise(flat, shape) == tuple(as_index(v) for v in axes)


@given(shapes)
def test_linearise_inverts_delinearise(shape: tuple[int, ...]) -> None:
    flat = as_index(Var("flat", prod(shape)))
    assert linearise(delinearise(flat, shape), row_major(shape)) == flat


@given(shapes, st.permutations([0, 1, 2, 3]), st.integers(1, 4))
def test_reshapes_are_exact_point_by_point(shape: tuple[int, ...], order: list[int], split: int) -> None:
    """Reshape to another factorisation with permuted axes.

    Chains of movement operations lead to such maps.
    """
    permuted = [shape[i] for i in order if i < len(shape)]
    target = (-(-prod(permuted) // split), split)
    axes = [Var(f"v{number}", extent) for number, extent in enumerate(permuted)]
    flat = linearise([as_index(v) for v in axes], row_major(tuple(permuted)))
    places = delinearise(flat, target)
    for point in product(*(range(e) for e in permuted)):
        value = sum(p * s for p, s in zip(point, row_major(tuple(permuted)), strict=True))
        found = tuple(evaluate(p, dict(zip(axes, point, strict=True))) for p in places)
        assert found == (value // split, value % split)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (floordiv(A * 4 + B, 4), as_index(A)),
        (modulo(A * 4 + B, 4), as_index(B)),
        (floordiv(A * 4 + B - 4, 4), A - 1),
        (modulo(A * 12 + B * 3 + C, 12), B * 3 + C),
        (floordiv(A * 12 + B * 3 + C, 3), A * 4 + B),
        (modulo(floordiv(A * 12 + B * 3 + C, 3), 4), as_index(B)),
        (floordiv(floordiv(as_index(A), 2), 3), floordiv(as_index(A), 6)),
        (modulo(modulo(as_index(A), 6), 3), modulo(as_index(A), 3)),
        (floordiv(as_index(A) % 6, 2), floordiv(as_index(A), 2) % 3),
        (floordiv(as_index(A), 2) * 2 + as_index(A) % 2, as_index(A)),
        (floordiv(as_index(B) - 4, 4), Index(-1)),
        (modulo(as_index(B) - 4, 4), as_index(B)),
        (as_index(Var("one", 1)), Index()),
        (clamp(as_index(A), 0, 6), as_index(A)),
        (clamp(A + 9, 0, 6), Index(6)),
    ],
    ids=str,
)
def test_what_must_simplify_does(found: Index, expected: Index) -> None:
    assert found == expected


@given(affine, st.sampled_from((2, 4, 8)), st.integers(-4, 4), st.integers(-4, 4), st.sets(st.sampled_from(VARIABLES)))
def test_coarse_guards_hold_at_the_same_points(index: Index, unit: int, low: int, high: int, kept: set[Var]) -> None:
    guard = Guard(index * unit + Var("v", unit), unit * low, unit * high)
    found = coarsen(guard, kept)
    for point in assignments(guard.index):
        holds = [g.low <= evaluate(g.index, point) < g.high for g in (guard, found)]
        assert holds[0] == holds[1]
    assert variables(guard.index) & kept <= variables(found.index)


def test_neighbours_before_a_multiple_share_a_guard() -> None:
    t, v = Var("t", 16), Var("v", 8)
    guard = Guard(as_index(t) * 8 + v, 0, 64)
    assert coarsen(guard, ()) == Guard(as_index(t) * 8, 0, 64)
    assert coarsen(guard, (v,)) == guard
    assert coarsen(Guard(as_index(t) * 8 + v, 0, 63), ()) == Guard(as_index(t) * 8 + v, 0, 63)


@given(indices)
def test_steps_are_blocks_of_one_value(index: Index) -> None:
    for axis in variables(index):
        step = steps_of(index, axis)
        for point in assignments(index):
            first = point[axis] // step * step if step else 0
            assert step == 1 or evaluate(index, point) == evaluate(index, {**point, axis: first})
