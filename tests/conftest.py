"""How the tests run: Hypothesis profiles, and golden files.

`ci`, the default, draws the same examples every time. `CUTS_HYPOTHESIS_PROFILE=nightly` draws many more, new ones each night.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)  # drawing a fusion group and building its kernel takes its time

_ANNOUNCED: pytest.StashKey[list[str]] = pytest.StashKey()

settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True, suppress_health_check=_SLOW)
settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("CUTS_HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files from what the code prints now; review the diff")


@pytest.fixture
def announce(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say a line at the end of the run, whatever became of the test."""
    lines = request.config.stash[_ANNOUNCED]
    return lines.append


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ANNOUNCED] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[_ANNOUNCED]:
        terminalreporter.write_line(line)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with `golden/<test>.txt` beside the test's file, whole."""
    path = Path(request.path).parent / "golden" / (request.node.name.replace("[", "-").rstrip("]") + ".txt")

    def check(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; run with --update-golden, then read what it wrote"
        assert text == path.read_text(encoding="utf-8")

    return check
