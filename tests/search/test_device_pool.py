"""Several devices of a host as one.

A kernel's points are measured on one of them, and other devices take over those of a lost one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
from attrs import define, evolve, field
from cuts.backends.devices import find_target
from cuts.ir import BOUND_PRUNING
from cuts.ir.compiled import Budget
from cuts.ir.errors import BackendError
from cuts.passes.schedule import RANKED_POINTS
from cuts.search.building.factory import BuildResult, Factory
from cuts.search.database import Database
from cuts.search.measurement.bench import DeviceBench, Timed
from cuts.search.measurement.device_pool import MAX_FAILURES_IN_A_ROW, SERVICE, DevicePool, NamedDevice
from cuts.search.measurement.verdicts import DeviceAnswer, TimingTurns, Verdict
from cuts.search.settings import Settings
from cuts.search.tasks.data import Reference
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.tuner import Tuner
from cuts.tests.needs import needs_opencl

from .fakes import OPENCL, FakeBench, Inline, by_threads, problem_of
from .hosts import PROBLEMS, SHORT_SEARCH, results
from .simulation import FakeClock, SimulatedWorkers

#: So many searches that three kernels of each keep the cores of two devices busy.
SIZES = tuple(range(8, 56, 2))
#: Searches that begin with several points, so that each problem has its device before any is measured to the end.
SEVERAL = evolve(SHORT_SEARCH, strategy="rank")


@define
class OneOfSeveral:
    """Bench that checks in the background: it answers the second request.

    From `until` candidates on nothing works on it.
    """

    inner: FakeBench = field(factory=lambda: FakeBench(by_threads))
    until: float = float("inf")
    checking: str = ""
    measured: DeviceAnswer = DeviceAnswer(Verdict("ok"))
    loaded: dict[tuple[str, str], BuildResult] = field(factory=dict)
    asked: int = 0
    begun: int = 0
    closed: bool = False
    problems: set[str] = field(factory=set)

    @property
    def works(self) -> bool:
        return self.begun <= self.until

    def start(self) -> None:
        pass

    def prepare(self, problem: TuningTask, reference: Reference) -> None:
        pass

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        self.problems.add(problem.key)
        self.begun += 1
        return self.inner.check(problem, built) if self.works else Verdict("failed", "the device fell off the bus")

    def is_free(self, problem: TuningTask) -> bool:
        return not self.checking

    def begin(self, problem: TuningTask, built: BuildResult | None, turns: TimingTurns | None = None) -> None:
        assert not self.checking, "it is asked where it is free"
        verdict = Verdict("ok") if built is None else self.check(problem, built)
        if built is not None and built.kernel is not None:
            self.loaded[problem.key, built.kernel.name] = built
        names = turns.kernels if turns is not None and verdict.outcome == "ok" else ()
        known = [self.loaded.get((problem.key, name)) for name in names]
        samples = [None if each is None else self.sample(problem, each, 3).samples for each in known]
        self.checking, self.asked, self.measured = problem.key, 0, DeviceAnswer(verdict, tuple(samples))

    def take_finished(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        self.asked += 1
        if not self.checking or self.asked < 2:
            return []
        checked, self.checking = self.checking, ""
        return [(checked, self.measured)]

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        assert problem.key in self.problems, "times are of the device that the candidate was checked on"
        return self.inner.sample(problem, built, repeats)

    def overhead(self) -> float:
        return 0.0

    def close(self) -> None:
        self.closed = True


class Missing(OneOfSeveral):
    """A device that is not there."""

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        raise BackendError("no CUDA device is visible")


def search_devices(benches: Mapping[str, OneOfSeveral], notes: list[str]) -> list[float]:
    """Return the winners' times of a search with some devices."""
    database, pool = Database(None), DevicePool(benches, notes.append)
    Tuner(SearchExecutor(database, Inline, lambda: pool)).run(PROBLEMS, SEVERAL)
    pool.close()
    return [seconds for _, seconds in results(database, PROBLEMS)]


@pytest.fixture(scope="module")
def expected_seconds() -> list[float]:
    return search_devices({"0": OneOfSeveral()}, [])


def test_two_devices_find_the_same_as_one(expected_seconds: list[float]) -> None:
    benches, notes = {"0": OneOfSeveral(), "1": OneOfSeveral()}, list[str]()
    assert search_devices(benches, notes) == expected_seconds
    one, other = (bench.problems for bench in benches.values())
    assert not one & other
    assert one | other == {p.key for p in PROBLEMS}
    assert len(one) == len(other), "they have equally many"
    assert not notes
    assert all(bench.closed for bench in benches.values())


def test_missing_device_is_reported_and_others_take_over(expected_seconds: list[float]) -> None:
    notes = list[str]()
    assert search_devices({"0": OneOfSeveral(), "7": Missing()}, notes) == expected_seconds
    assert notes == ["device 7 is not used any more: no CUDA device is visible"]


def test_without_any_device_the_error_says_so() -> None:
    with pytest.raises(BackendError, match="no CUDA device is visible"):
        search_devices({"6": Missing(), "7": Missing()}, [])


@pytest.mark.parametrize("until", [0, 1, 5])
def test_broken_device_costs_few_candidates_and_no_task(expected_seconds: list[float], until: int) -> None:
    broken, notes = OneOfSeveral(until=until), list[str]()
    assert len(search_devices({"0": broken, "1": OneOfSeveral()}, notes)) == len(expected_seconds)
    assert broken.begun <= until + MAX_FAILURES_IN_A_ROW
    assert [note.partition(":")[0] for note in notes] == ["device 0 is not used any more"]


def test_failing_kernels_do_not_exclude_a_device() -> None:
    """They fail on any device.

    The device is tested, and works.
    """
    fails = Verdict("failed", "an illegal address")
    benches = {
        str(number): OneOfSeveral(FakeBench(by_threads, lambda k: fails if k.block[0] > 64 else Verdict("ok")))
        for number in range(2)
    }
    notes = list[str]()
    assert len(search_devices(benches, notes)) == len(PROBLEMS)
    assert not notes


def test_check_of_an_earlier_search_delays_none(expected_seconds: list[float]) -> None:
    bench, database, problem = OneOfSeveral(), Database(None), problem_of(48)
    built = Factory().build(problem, Factory().rank(problem, BOUND_PRUNING, 1)[0].candidate.schedule)
    bench.begin(problem, built)
    Tuner(SearchExecutor(database, Inline, lambda: bench)).run(PROBLEMS, SEVERAL)
    assert [seconds for _, seconds in results(database, PROBLEMS)] == expected_seconds


@define
class SimulatedSide(OneOfSeveral):
    """Bench that takes simulated time, and checks beside this process's work."""

    clock: FakeClock = field(factory=FakeClock)
    ready: float = 3.0

    def begin(self, problem: TuningTask, built: BuildResult | None, turns: TimingTurns | None = None) -> None:
        OneOfSeveral.begin(self, problem, built, turns)
        taken = sum(1e-3 + sum(samples or ()) for samples in self.measured.samples)
        self.ready = max(self.ready, self.clock()) + taken + (0.0 if built is None else 0.02)

    def take_finished(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        if not self.checking or self.clock() + timeout < self.ready:
            self.clock.until(self.clock() + timeout)
            return []
        self.clock.until(self.ready)
        checked, self.checking = self.checking, ""
        return [(checked, self.measured)]


def seconds_with(devices: int, cores: int) -> tuple[float, list[float]]:
    """Return the seconds of a search, and its winners' times.

    It tries the same points in any order.
    """
    clock, database = FakeClock(), Database(None)
    pool = DevicePool(
        {
            str(number): SimulatedSide(FakeBench(lambda kernel: 0.01 * by_threads(kernel)), clock=clock)
            for number in range(devices)
        }
    )
    workers, problems = SimulatedWorkers(clock, size=cores), [problem_of(size) for size in SIZES]
    executor = SearchExecutor(database, lambda: workers, lambda: pool, Budget.of(None, clock))
    Tuner(executor).run(problems, Settings(strategy="rank", batch=0, most=RANKED_POINTS, prove=False))
    return clock.now, [seconds for _, seconds in results(database, problems)]


def test_two_devices_and_double_cores_halve_the_time() -> None:
    one, winners = seconds_with(1, 8)
    two, same = seconds_with(2, 16)
    assert same == winners
    assert two <= 0.6 * one


@needs_opencl
@pytest.mark.long
def test_devices_in_processes_of_their_own_search_together() -> None:
    benches = {name: DeviceBench(OPENCL, limit=60.0, service=SERVICE, device=name) for name in ("0", "1")}
    pool, notes = DevicePool(benches), list[str]()
    pool.start()
    found = Tuner(SearchExecutor(Database(None), Inline, lambda: pool)).run(
        PROBLEMS[:2], evolve(SHORT_SEARCH, first=2, most=2)
    )
    assert all(bench.works for bench in benches.values())
    pool.close()
    assert all(choice.seconds for choice in found)
    assert not notes


@pytest.mark.parametrize(
    ("visible", "device", "used"), [("", "1", "1"), ("2,5", "1", "5"), ("GPU-a, GPU-b", "0", "GPU-a")]
)
def test_device_is_one_of_the_visible_ones(
    monkeypatch: pytest.MonkeyPatch, visible: str, device: str, used: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    target = find_target("cuda:h100")
    monkeypatch.setattr("cuts.search.measurement.device_pool.find_target", lambda name: target)
    monkeypatch.setattr("cuts.search.measurement.device_pool.MeasuringDevice.__init__", lambda self, target: None)
    NamedDevice(target, device)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == used


@pytest.mark.parametrize(
    ("visible", "device", "there", "said"),
    [
        ("3", "1", "cuda:h100", "device 1 is not visible: CUDA_VISIBLE_DEVICES names 1"),
        ("", "1", "cuda:a100", "device 1 is another machine: .*, expected "),
    ],
)
def test_other_or_invisible_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, visible: str, device: str, there: str, said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("cuts.search.measurement.device_pool.find_target", lambda name: find_target(there))
    with pytest.raises(BackendError, match=said):
        NamedDevice(find_target("cuda:h100"), device)
