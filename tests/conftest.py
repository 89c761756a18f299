"""Configuration of the tests.

Hypothesis profiles, compilation of kernels, time limits and golden files.

`ci`, the default, draws the same examples every time. `CUTS_HYPOTHESIS_PROFILE=nightly` draws many more, new ones each
night.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker for each processor: more threads would spin while they wait for one another. NumPy asks when it
    # is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from cuts.backends.opencl import device, device_choice
from cuts.tests.amounts import NIGHTLY
from cuts.tests.opencl_declarations import HEADER_GUARD_OPTION, declare_functions
from cuts.tests.tiers import TIERS, chosen_cases, limit_examples, read_durations, write_durations
from hypothesis import HealthCheck, seed, settings

_SLOW_CHECKS = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
)  # drawing a fusion group and building its kernel takes its time

_ANNOUNCEMENT = "announced"
_CPU_SECONDS = "CPU seconds"

#: CPU seconds of a test, with its processes and with the fixtures that it is the first to need, beyond which the run
#: reports it: the daily profile draws less (`amounts.py`).
DEAR = 20.0
_BEGAN = pytest.StashKey[float]()

os.environ.setdefault("CUTS_VERIFY", "1")  # every seam of the pipeline is checked, in worker processes too

settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, print_blob=True, suppress_health_check=_SLOW_CHECKS
)
settings.register_profile(
    "nightly", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_SLOW_CHECKS
)
settings.load_profile(os.environ.get("CUTS_HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=list(TIERS), help="cases to run (tiers.py); all where files or tests are named")
    parser.addoption("--complete", action="store_const", dest="tier", const="complete", help="take that tier")
    parser.addoption("--update-durations", action="store_true", help="run all cases and write their CPU seconds")
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files from what the code prints now; review the diff"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # files are shared out in the order of `pytest_collection_modifyitems`


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the cases of the tier, in an order of duration.

    Files with few long tests come first, then those with many tests: the last ones are short. Without `--tier`, tests
    that the command line names by file or node run whole; those of a GPU always do.
    """
    tier = TIERS[config.getoption("tier") or ("all" if names_tests(config) else "default")]
    if tier and not (NIGHTLY or config.getoption("--update-durations") or config.option.markexpr):
        chosen = chosen_cases(items, limit_examples(items, read_durations(), tier), tier)
        kept = {*chosen}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen
    many = Counter(item.path for item in items)
    items.sort(key=lambda item: (not item.get_closest_marker("long"), -many[item.path], item.path))


def names_tests(config: pytest.Config) -> bool:
    """Return whether the command line names files or tests, not only folders."""
    return any("::" in name or name.endswith(".py") for name in config.args)


def pytest_collection_finish() -> None:
    gc.set_threshold(5000, 10, 100)  # few searches for it, and between these few whole ones
    _keep()


def _keep() -> None:
    """Exempt all present objects from garbage collection: modules, tests and caches stay, and there are many of them.
    Repeated collections of these take a tenth of the tests' time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def planning_here() -> Iterator[None]:
    """Plan graphs without planning workers.

    Tests run on all processors, and this process caches its choices for later graphs. Tests of planning workers say how
    many they want; programs that tests start plan as a user's do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cuts.search.building.planning_workers.processor_count", lambda: 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def kept_caches() -> Iterator[None]:
    """Keep the cache entries of a file of tests."""
    yield
    _keep()


def _cpu_seconds() -> float:
    """Seconds of the processor that this process and those it waited for have taken."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _cpu_seconds()
    # Shares of a property that takes long are tests of their own, which several processes run: each draws its own.
    if isinstance(item, pytest.Function) and "share" in getattr(getattr(item, "callspec", None), "params", {}):
        seed(item.callspec.params["share"])(item.function)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    found = yield
    spent = _cpu_seconds() - item.stash[_BEGAN]
    if item.config.getoption("--update-durations"):
        item.user_properties.append((_CPU_SECONDS, spent))
    if spent > DEAR and not NIGHTLY:
        item.user_properties.append(
            (_ANNOUNCEMENT, f"{item.nodeid} took {spent:.0f} CPU seconds, {DEAR:.0f} are plenty")
        )
    return found


@pytest.fixture(scope="module", autouse=True)
def quick_builds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile PoCL kernels without optimisation in the daily profile.

    It takes half of the compilation time, and kernels run for a moment only. Declarations of the used functions alone
    save most of the rest.

    Files of tests that say `as_users_build` have the kernels of users: tests that run long or are timed, and a sample
    of everything else. Processes that tests start do so too.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not (NIGHTLY or request.node.get_closest_marker("as_users_build")):
            patch.setattr(device, "_OPTIONS", [*device._OPTIONS, "-cl-opt-disable"])
            patch.setattr(device.OpenCLDevice, "_program", partialmethod(_build_declared, device.OpenCLDevice._program))
        yield


def _build_declared(self: device.OpenCLDevice, build: Callable[[device.OpenCLDevice, str], Any], source: str) -> Any:
    """Build a program without PoCL's header, where the PoCL that comes as a package is its compiler."""
    platform = self.choice.platform
    packaged = platform.name == device_choice.POCL and device_choice._version(platform) == (3, 0)
    program = declare_functions(source) if packaged else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_OPTIONS", [*device._OPTIONS, *([HEADER_GUARD_OPTION] if program else [])])
        return build(self, program or source)


@pytest.fixture
def announce(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a line at the end of the run.

    It appears for any outcome and process.
    """
    return lambda line: record_property(_ANNOUNCEMENT, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    if terminalreporter.config.getoption("--update-durations"):
        cases = [(r.nodeid, value) for r in reports for name, value in r.user_properties if name == _CPU_SECONDS]
        write_durations([*dict(cases).items()])
    for line in dict.fromkeys(value for r in reports for name, value in r.user_properties if name == _ANNOUNCEMENT):
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
