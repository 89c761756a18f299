"""Tiers of the tests: the default one, the complete one, all cases.

In the first two, a test function whose cases take long together runs as many of them as its share of time allows:
`durations.json` has the CPU seconds of such functions, and `pytest --update-durations` runs all cases and writes it.
Cases are taken evenly over the list of a function's parameters. A property whose case takes longer than its function's
share draws fewer examples. Functions whose case takes too long for a tier are sampled by digest; each file keeps its
shortest function, and those that planted bugs name keep a case of all. A choice is the same in every run and on every
machine. A function that the table does not have runs whole.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from math import ceil
from pathlib import Path

import pytest
from attrs import frozen
from hypothesis import is_hypothesis_test, settings

from .fuzz.planted_bugs import BUGS

DURATIONS = Path(__file__).with_name("durations.json")


@frozen
class Tier:
    """CPU seconds for a test function and for one case.

    One case runs where a case takes at most `case_seconds`; of functions whose case takes longer, one case of one
    function in `sampled_functions` runs, none where that is 0. In the files `detectors` a function may take as long as
    a case, and one case of each runs. A property draws `drawn_part` of its examples at least: a case has costs beside
    them.
    """

    function_seconds: float
    case_seconds: float
    drawn_part: float
    sampled_functions: int = 0
    detectors: frozenset[str] = frozenset()


DEFAULT_TIER = Tier(0.5, 0.8, 0.6)
COMPLETE_TIER = Tier(0.6, 2.0, 0.15, 6, frozenset(bug.seen for bug in BUGS))
TIERS = {"default": DEFAULT_TIER, "complete": COMPLETE_TIER, "all": None}

#: CPU seconds of all cases below which a function is not listed.
MIN_LISTED_SECONDS = 0.5


def part_of_the_day(part: int, parts: int) -> int:
    """Return the part of a large sample that a case takes.

    A tier runs few cases of a function, so they take other parts each day. `CUTS_SAMPLE` has the day, as Python's
    ordinal, to repeat its parts.
    """
    return (part + int(os.environ.get("CUTS_SAMPLE") or date.today().toordinal())) % parts


def function_name(nodeid: str) -> str:
    """Return the test function of a case: its node id without parameters."""
    return nodeid.partition("[")[0]


def case_count(cases: int, seconds: float, tier: Tier, name: str = "") -> int:
    """Return how many cases of a named function a tier runs.

    `seconds` is the CPU time of one case.
    """
    is_detector = name.partition("::")[0] in tier.detectors
    allowed = tier.case_seconds if is_detector else tier.function_seconds
    if seconds * cases <= allowed:
        return cases
    if is_detector or seconds <= tier.case_seconds:
        return max(1, int(allowed / seconds))
    return int(tier.sampled_functions > 0 and zlib.crc32(name.encode()) % tier.sampled_functions == 0)


def example_count(examples: int, seconds: float, tier: Tier) -> int:
    """Return how many of a property's examples a tier draws.

    `seconds` is the CPU time of all of them.
    """
    return ceil(examples * min(1.0, max(tier.drawn_part, tier.function_seconds / seconds)))


def limit_examples(items: Sequence[pytest.Item], seconds: Mapping[str, float], tier: Tier) -> dict[str, float]:
    """Limit the examples of properties, and return the seconds of cases.

    `seconds` has the CPU seconds of a case with all examples, by test function; the result those with the drawn ones.
    """
    limited = dict(seconds)
    functions = {function_name(item.nodeid): item.function for item in items if isinstance(item, pytest.Function)}
    for name, function in functions.items():
        if name in seconds and is_hypothesis_test(function):
            drawn = function._hypothesis_internal_use_settings or settings.default
            count = example_count(drawn.max_examples, seconds[name], tier)
            function._hypothesis_internal_use_settings = settings(drawn, max_examples=count)
            limited[name] *= count / drawn.max_examples
    return limited


def _is_skipped(item: pytest.Item) -> bool:
    """Return whether a mark skips a case here: it is no sample of a function."""
    return isinstance(item, pytest.Item) and any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif"))


def chosen_cases(items: Sequence[pytest.Item], seconds: Mapping[str, float], tier: Tier) -> list[pytest.Item]:
    """Return the items of a tier, in order.

    `seconds` has the CPU seconds of a case, by test function.
    """
    files: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        files[item.nodeid.partition("::")[0]][function_name(item.nodeid)].append(item)
    chosen = set()
    for functions in files.values():
        counts = {}
        for name, cases in functions.items():
            running = [case for case in cases if not _is_skipped(case)] or cases
            counts[name] = case_count(len(running), seconds[name], tier, name) if name in seconds else len(running)
            if counts[name] == len(running):
                counts[name] = len(cases)
            else:
                functions[name] = running
        if tier.sampled_functions and not any(counts.values()):
            counts[min(functions, key=lambda name: seconds[name])] = 1
        for name, cases in functions.items():
            chosen.update(cases[number * len(cases) // counts[name]] for number in range(counts[name]))
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
