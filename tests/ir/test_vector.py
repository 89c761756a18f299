"""Vector access needs alignment, contiguity and a guard of the whole."""

from __future__ import annotations

from cuts.ir.affine import Guard, Index, Var, evaluate, variables, vector_address, vector_guards
from hypothesis import given
from hypothesis import strategies as st

from .strategies import affine, assignments, indices, small

W = Var("w", 4)
GROUP, ROW = Var("g", 5), Var("r", 3)
addresses = st.one_of(
    indices, st.builds(lambda x, step: x * step + W, st.one_of(indices, affine), st.sampled_from((1, 2, 4, 8)))
)


@given(addresses)
def test_vector_addresses_are_aligned_and_walk_neighbours(address: Index) -> None:
    start = vector_address(address, W)
    if start is None:
        return
    assert W not in variables(start)
    for point in assignments(address):
        assert evaluate(start, point) % W.extent == 0
        assert evaluate(address, {**point, W: point.get(W, 0)}) == evaluate(start, point) + point.get(W, 0)


@given(addresses, small, st.integers(0, 30))
def test_vector_guards_hold_for_all_elements_or_none(index: Index, low: int, width: int) -> None:
    guard = Guard(index, low, low + width)
    whole = vector_guards([guard], W)
    if whole is None:
        return
    for point in assignments(index, Index(0, ((W, 1),))):
        inside = guard.low <= evaluate(guard.index, point) < guard.high
        assert inside == all(g.low <= evaluate(g.index, point) < g.high for g in whole)
        assert all(W not in variables(g.index) for g in whole)


def test_an_aligned_row_is_a_vector() -> None:
    assert vector_address(ROW * 20 + GROUP * 4 + W, W) == ROW * 20 + GROUP * 4


def test_a_row_with_an_odd_pitch_is_none() -> None:
    assert vector_address(ROW * 19 + GROUP * 4 + W, W) is None


def test_a_guard_inside_a_vector_forbids_it() -> None:
    assert vector_guards([Guard(GROUP * 4 + W, 0, 18)], W) is None
    assert vector_guards([Guard(GROUP * 4 + W, 0, 16)], W) == (Guard(GROUP * 4, 0, 16),)
