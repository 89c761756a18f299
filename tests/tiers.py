"""Tiers of the tests: the default one, the complete one, all cases.

In the first two, a test function whose cases take long together runs as many of them as its share of time allows:
`durations.json` has the CPU seconds of such functions, and `pytest --update-durations` runs all cases and writes it.
Cases are taken evenly over the list of a function's parameters, the same in every run and on every machine. A property
whose case takes longer than its function's share draws fewer examples. A function that the table does not have runs
whole.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, inf
from pathlib import Path

import pytest
from attrs import frozen
from hypothesis import is_hypothesis_test, settings

DURATIONS = Path(__file__).with_name("durations.json")


@frozen
class Tier:
    """CPU seconds that a test function may take.

    One case runs where a case takes at most `case_seconds`, none where it takes longer.
    """

    function_seconds: float
    case_seconds: float


DEFAULT_TIER = Tier(0.5, 0.8)
COMPLETE_TIER = Tier(1.5, inf)
#: Least part of its examples that a property draws: a case has costs beside them.
MIN_DRAWN_PART = 0.25

#: CPU seconds of all cases below which a function is not listed.
MIN_LISTED_SECONDS = 0.5


def function_name(nodeid: str) -> str:
    """Return the test function of a case: its node id without parameters."""
    return nodeid.partition("[")[0]


def case_count(cases: int, seconds: float, tier: Tier) -> int:
    """Return how many of a function's cases a tier runs.

    `seconds` is the CPU time of one case. A function of one case runs or does not.
    """
    if seconds * cases <= tier.function_seconds:
        return cases
    return 0 if seconds > tier.case_seconds else max(1, int(tier.function_seconds / seconds))


def example_count(examples: int, seconds: float, tier: Tier) -> int:
    """Return how many of a property's examples a tier draws.

    `seconds` is the CPU time of all of them.
    """
    return ceil(examples * min(1.0, max(MIN_DRAWN_PART, tier.function_seconds / seconds)))


def limit_examples(items: Sequence[pytest.Item], seconds: Mapping[str, float], tier: Tier) -> None:
    """Limit the examples of the properties among a tier's items.

    `seconds` has the CPU seconds of a case, by test function.
    """
    functions = {function_name(item.nodeid): item.function for item in items if isinstance(item, pytest.Function)}
    for name, function in functions.items():
        if name in seconds and is_hypothesis_test(function):
            drawn = function._hypothesis_internal_use_settings or settings.default
            count = example_count(drawn.max_examples, seconds[name], tier)
            function._hypothesis_internal_use_settings = settings(drawn, max_examples=count)


def chosen_cases(items: Sequence[pytest.Item], seconds: Mapping[str, float], tier: Tier) -> list[pytest.Item]:
    """Return the items of a tier, in order.

    `seconds` has the CPU seconds of a case, by test function.
    """
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[function_name(item.nodeid)].append(item)
    chosen = set()
    for name, cases in functions.items():
        count = case_count(len(cases), seconds[name], tier) if name in seconds else len(cases)
        chosen.update(cases[number * len(cases) // count] for number in range(count))
    return [item for item in items if item in chosen]


def read_durations() -> dict[str, float]:
    """Return the CPU seconds of a case, by listed test function."""
    return json.loads(DURATIONS.read_text("utf-8")) if DURATIONS.is_file() else {}


def write_durations(cases: Sequence[tuple[str, float]]) -> None:
    """Write the table from node ids and CPU seconds of cases."""
    functions: dict[str, list[float]] = defaultdict(list)
    for nodeid, spent in cases:
        functions[function_name(nodeid)].append(spent)
    listed = {
        name: ceil(100 * sum(spent) / len(spent)) / 100
        for name, spent in sorted(functions.items())
        if sum(spent) >= MIN_LISTED_SECONDS
    }
    DURATIONS.write_text(json.dumps(listed, indent=0) + "\n", encoding="utf-8")
