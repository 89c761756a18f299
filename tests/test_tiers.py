"""The tiers of the tests: the cases that they take."""

from __future__ import annotations

import pytest
from attrs import frozen
from cuts.tests.fuzz.planted_bugs import BUGS
from cuts.tests.tiers import COMPLETE_TIER, DEFAULT_TIER, Tier, case_count, chosen_cases, example_count, function_name
from hypothesis import given
from hypothesis import strategies as st


@frozen
class Case:
    """A test case, as pytest names it."""

    nodeid: str


CASES = st.lists(st.sampled_from("abc"), max_size=60).map(
    lambda names: [Case(f"test.py::{name}[{number}]") for number, name in enumerate(names)]
)
TIERS = st.sampled_from([DEFAULT_TIER, COMPLETE_TIER])
SECONDS = st.dictionaries(st.sampled_from(["test.py::a", "test.py::b"]), st.floats(0.01, 9))


@given(CASES, SECONDS, TIERS)
def test_chosen_cases_are_ordered_and_fit_their_time(cases: list, seconds: dict[str, float], tier: Tier) -> None:
    chosen = chosen_cases(cases, seconds, tier)
    assert chosen == [case for case in cases if case in chosen]
    for name in {function_name(case.nodeid) for case in cases}:
        count = sum(function_name(case.nodeid) == name for case in chosen)
        if name not in seconds:
            assert count == sum(function_name(case.nodeid) == name for case in cases)
        elif seconds[name] <= tier.case_seconds:
            assert count == 1 or count * seconds[name] <= tier.function_seconds + 1e-9
        else:
            assert count <= (tier.sampled_functions > 0)
    assert chosen or not cases or not tier.sampled_functions, "a file keeps its shortest function"


def test_long_functions_are_sampled_by_digest() -> None:
    counts = [case_count(3, 60.0, COMPLETE_TIER, f"test.py::test_{number}") for number in range(600)]
    assert set(counts) == {0, 1}
    assert 70 < sum(counts) < 130
    assert not any(case_count(3, 60.0, DEFAULT_TIER, f"test.py::test_{number}") for number in range(600))


def test_detectors_of_planted_bugs_keep_a_case() -> None:
    assert all(case_count(3, 60.0, COMPLETE_TIER, f"{bug.seen}::test") == 1 for bug in BUGS if "/" in bug.seen)


@pytest.mark.parametrize(
    ("cases", "seconds", "count", "of_complete"), [(1, 0.8, 1, 1), (2, 1.9, 0, 1), (40, 0.05, 10, 12), (50, 0.2, 2, 3)]
)
def test_a_function_takes_as_many_cases_as_fit(cases: int, seconds: float, count: int, of_complete: int) -> None:
    assert case_count(cases, seconds, DEFAULT_TIER) == count
    assert abs(case_count(cases, seconds, COMPLETE_TIER) - of_complete) <= 1


@pytest.mark.parametrize(("seconds", "count"), [(0.3, 40), (0.6, 40), (1.2, 20), (60.0, 6)])
def test_a_long_property_draws_fewer_examples(seconds: float, count: int) -> None:
    assert example_count(40, seconds, COMPLETE_TIER) == count
