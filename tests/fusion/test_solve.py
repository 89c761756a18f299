"""Inversion of index maps.

The result of `solve` satisfies the equations exactly, and bijections are recognised.
"""

from __future__ import annotations

from itertools import product

import pytest
from cuts.ir.affine import Index, Var, as_index, delinearise, evaluate, is_bijection, linearise, solve
from cuts.ir.types import row_major
from hypothesis import given
from hypothesis import strategies as st

EXTENTS = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6]), min_size=1, max_size=4)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[Var, ...], tuple[Index, ...], tuple[int, ...]]:
    """Draw axes, and their image under a reshape with permuted axes."""
    shape = draw(EXTENTS)
    factors = [f for e in shape for f in ((2, 2) if e == 4 else (2, 3) if e == 6 else (e,))]
    target: list[int] = []
    for factor in factors:
        if target and draw(st.booleans()):
            target[-1] *= factor
        else:
            target.append(factor)
    axes = tuple(Var(f"a{n}", e) for n, e in enumerate(shape))
    image = delinearise(linearise([as_index(a) for a in axes], row_major(tuple(shape))), target)
    order = draw(st.permutations(range(len(target))))
    return axes, tuple(image[n] for n in order), tuple(target[n] for n in order)


@given(reshapes())
def test_a_reshape_and_transpose_is_inverted(case: tuple[tuple[Var, ...], tuple[Index, ...], tuple[int, ...]]) -> None:
    axes, image, shape = case
    onto = tuple(Var(f"p{n}", e) for n, e in enumerate(shape))
    solution = solve([(i, as_index(p)) for i, p in zip(image, onto, strict=True)], axes)
    assert solution is not None
    assert (solution.guards, solution.free) == ((), ())
    assert is_bijection(solution.values, axes, onto)
    for point in product(*(range(e) for e in shape)):
        place = dict(zip(onto, point, strict=True))
        values = {a: evaluate(solution.values[a], place) for a in axes}
        assert tuple(evaluate(i, values) for i in image) == point


def test_a_missing_digit_is_a_free_variable() -> None:
    channel, group = Var("c", 32), Var("g", 4)
    solution = solve([(channel // 8, as_index(group))], [channel])
    assert solution is not None
    assert solution.values[channel].text == "8*g + x0"
    assert [v.extent for v in solution.free] == [8]


def test_a_slice_exists_only_where_its_guard_holds() -> None:
    axis, place = Var("a", 4), Var("p", 10)
    solution = solve([(axis * 2 + 3, as_index(place))], [axis])
    assert solution is not None
    hits = [p for p in range(10) if all(g.low <= evaluate(g.index, {place: p}) < g.high for g in solution.guards)]
    assert hits == [3, 5, 7, 9]
    assert [evaluate(solution.values[axis], {place: p}) for p in hits] == [0, 1, 2, 3]


@pytest.mark.parametrize("left", [Var("a", 5) + Var("b", 5), Var("a", 5) * 2 + Var("b", 5)])
def test_an_index_that_mixes_axes_has_no_inverse(left: Index) -> None:
    assert solve([(left, as_index(Var("p", 20)))], [Var("a", 5), Var("b", 5)]) is None


CHANNEL = Var("c", 32)


@pytest.mark.parametrize(
    ("axis", "left"),
    [
        (Var("c", 10), [Var("c", 10) % 4]),
        (CHANNEL, [CHANNEL % 8, CHANNEL // 4]),
        (CHANNEL, [as_index(CHANNEL), CHANNEL // 4]),
    ],
)
def test_incomplete_digits_have_no_inverse(axis: Var, left: list[Index]) -> None:
    assert solve([(place, as_index(Var(f"p{n}", 8))) for n, place in enumerate(left)], [axis]) is None


def test_a_duplicated_axis_is_no_bijection() -> None:
    p, q = Var("p", 3), Var("q", 3)
    a, b = Var("a", 3), Var("b", 3)
    assert not is_bijection({a: as_index(p), b: as_index(p)}, (a, b), (p, q))
