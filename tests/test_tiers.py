"""The tiers of the tests: cases that the default one takes."""

from __future__ import annotations

import pytest
from attrs import frozen
from cuts.tests.tiers import FUNCTION_SECONDS, MAX_CASE_SECONDS, case_count, chosen_cases, function_name
from hypothesis import given
from hypothesis import strategies as st


@frozen
class Case:
    """A test case, as pytest names it."""

    nodeid: str


CASES = st.lists(st.sampled_from("abc"), max_size=60).map(
    lambda names: [Case(f"test.py::{name}[{number}]") for number, name in enumerate(names)]
)
SECONDS = st.dictionaries(st.sampled_from(["test.py::a", "test.py::b"]), st.floats(0.01, 9))


@given(CASES, SECONDS)
def test_chosen_cases_are_ordered_and_fit_their_time(cases: list, seconds: dict[str, float]) -> None:
    chosen = chosen_cases(cases, seconds)
    assert chosen == [case for case in cases if case in chosen]
    for name in {function_name(case.nodeid) for case in cases}:
        count = sum(function_name(case.nodeid) == name for case in chosen)
        if name not in seconds:
            assert count == sum(function_name(case.nodeid) == name for case in cases)
        elif seconds[name] <= MAX_CASE_SECONDS:
            assert count == 1 or count * seconds[name] <= FUNCTION_SECONDS + 1e-9
        else:
            assert count == 0


@pytest.mark.parametrize(("cases", "seconds", "count"), [(1, 1.0, 1), (1, 3.0, 0), (40, 0.05, 10), (5, 0.1, 5)])
def test_a_function_takes_as_many_cases_as_fit(cases: int, seconds: float, count: int) -> None:
    assert case_count(cases, seconds) == count
