"""How the tests run: Hypothesis profiles, and golden files.

`ci`, the default, draws the same examples every time. `CUTS_HYPOTHESIS_PROFILE=nightly` draws many more, new ones each
night.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cuts.tests.amounts import NIGHTLY
from hypothesis import HealthCheck, settings

_SLOW = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
)  # drawing a fusion group and building its kernel takes its time

_ANNOUNCED = "announced"

BUILD_FLAGS = "POCL_EXTRA_BUILD_FLAGS"

os.environ.setdefault("CUTS_VERIFY", "1")  # every seam of the pipeline is checked, in worker processes too
if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker for each processor: more threads would spin while they wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if not NIGHTLY:
    # A kernel of a test runs for less than a millisecond, and optimising it takes half of PoCL's time for it. What uses
    # `as_users_build` is optimised by day too.
    os.environ.setdefault(BUILD_FLAGS, "-cl-opt-disable")

settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, print_blob=True, suppress_health_check=_SLOW
)
settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("CUTS_HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files from what the code prints now; review the diff"
    )


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of further searches for garbage: it stays, and there is much of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def as_users_build() -> Iterator[None]:
    """Compile kernels as users have them, optimised: what runs long or is timed, and a sample of everything else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(BUILD_FLAGS, raising=False)
        yield


@pytest.fixture
def announce(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say a line at the end of the run, whatever became of the test and in whichever process it ran."""
    return lambda line: record_property(_ANNOUNCED, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    for line in dict.fromkeys(value for r in reports for name, value in r.user_properties if name == _ANNOUNCED):
        terminalreporter.write_line(str(line))


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
