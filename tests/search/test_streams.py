"""Units that come one by one share the workers and the device of a place: two places take half of the time of one, and
what ends one unit ends no other.
"""

from __future__ import annotations

import pytest
from attrs import define, evolve
from cuts.bench.lanes import Lane, Lanes
from cuts.ir.budget import Budget
from cuts.ir.launch import KernelFunction
from cuts.search.build import Done, Job
from cuts.search.database import Database
from cuts.search.remote import ShareOut
from cuts.search.remote.device_processes import TOGETHER, DeviceProcesses
from cuts.search.remote.share_out import UnitAnswer
from cuts.search.remote.stream import UnitStream
from cuts.search.remote.unit import SearchUnit
from cuts.search.resources import Resources
from cuts.search.settings import QUICK, Settings
from cuts.search.tuner import Tuner

from .fakes import OPENCL, FakeBench, Inline, by_threads, problem_of
from .hosts import PROBLEMS, SHORT, results, tuned
from .simulated import FakeClock, SimulatedGPU, SimulatedWorkers

#: When simulated devices are ready.
READY = 3.0
#: So many searches that three kernels of each keep the cores of two devices busy.
SIZES = tuple(range(8, 56, 2))


def short(kernel: KernelFunction) -> float:
    """A cost that compiling takes longer than."""
    return 0.01 * by_threads(kernel)


def lane(name: str, cores: int) -> Lane:
    """Return a simulated device with workers and a clock of its own."""
    clock = FakeClock()
    return Lane(name, clock, SimulatedWorkers(clock, size=cores), SimulatedGPU(clock, short))


def seconds_with(devices: int, settings: Settings) -> tuple[float, list[tuple[str, float]]]:
    """Return what a search takes with some devices that have eight cores each, and the winners."""
    clock, database = FakeClock(), Database(None)
    lanes = Lanes(clock, [lane(f"device {k}", 8) for k in range(devices)])
    resources = Resources(database, Inline, lambda: FakeBench(by_threads), Budget.of(None, clock))
    tuner = Tuner(resources, rounds=lambda resources, settings: ShareOut(lanes, resources, settings))
    problems = [problem_of(size) for size in SIZES]
    tuner.run(problems, settings)
    return max(each.clock.now for each in lanes.lanes), results(database, problems)


def alone(settings: Settings) -> tuple[float, list[tuple[str, float]]]:
    """Return what a search in one process takes with one device that has eight cores, and the winners."""
    clock, database = FakeClock(), Database(None)
    workers, gpu = SimulatedWorkers(clock, size=8), SimulatedGPU(clock, short)
    problems = [problem_of(size) for size in SIZES]
    Tuner(Resources(database, lambda: workers, lambda: gpu, Budget.of(None, clock))).run(problems, settings)
    return clock.now, results(database, problems)


def test_two_devices_take_little_more_than_half_of_the_time_of_one() -> None:
    settings = Settings(prove=False)
    one, winners = alone(settings)
    two, same = seconds_with(2, settings)
    assert same == winners
    assert two <= 0.6 * one
    assert seconds_with(1, settings)[0] <= 1.02 * one


def test_a_space_that_one_place_ranked_is_ranked_no_more() -> None:
    """Comparing groups ranks spaces that the search behind it needs, maybe at another place."""
    ranked: list[str] = []

    @define
    class Noting(SimulatedWorkers):
        def submit(self, job: Job) -> None:
            ranked.extend([job.arguments[0].key] if job.method == "rank" else [])  # type: ignore[attr-defined]
            super().submit(job)

    clock, clocks = FakeClock(), [FakeClock() for _ in range(2)]
    lanes = Lanes(clock, [Lane(str(k), c, Noting(c), SimulatedGPU(c, short)) for k, c in enumerate(clocks)])
    resources = Resources(Database(None), Inline, lambda: FakeBench(by_threads), Budget.of(None, clock))
    tuner = Tuner(resources, rounds=lambda resources, settings: ShareOut(lanes, resources, settings))
    problems = [problem_of(size) for size in SIZES[:5]]
    tuner.estimate(problems, QUICK)
    tuner.run(problems, Settings(prove=False))
    assert sorted(ranked) == sorted(p.key for p in problems)


def unit(size: int, settings: Settings = SHORT, seconds: float | None = None) -> SearchUnit:
    return SearchUnit(problem_of(size), settings, seconds=seconds)


def test_a_unit_whose_space_is_empty_costs_no_other() -> None:
    class Empty(Inline):
        def collect(self, timeout: float) -> list[Done]:
            found = super().collect(timeout)
            empty = [d.job.method == "rank" and d.job.arguments[0].label == "matmul 16" for d in found]
            return [evolve(d, value=None) if e else d for d, e in zip(found, empty, strict=True)]

    builder = Empty()
    stream = UnitStream(lambda: builder, lambda: FakeBench(by_threads))
    for number, size in enumerate((8, 16, 24)):
        stream.add(number, unit(size))
    found = {}
    while len(found) < 3:
        found |= dict(stream.step(1.0))
    assert "no schedule fits" in found[1].error
    assert found[0].choice is not None
    assert found[2].choice is not None


def test_where_time_is_over_a_unit_is_handed_over_as_it_is() -> None:
    device = lane("device 0", 2)
    stream = device.stream
    stream.add(0, unit(32, Settings(), 4.0))
    found = []
    while not found:
        found = stream.step(0.25)
    ((_, result),) = found
    assert not result.complete
    assert result.choice is not None
    assert result.choice.seconds is not None
    assert result.winner is None
    assert device.clock.now < READY + 4.5


def test_a_search_that_is_cut_short_leaves_what_was_measured_and_no_estimate_to_keep() -> None:
    clock, database = FakeClock(READY), Database(None)
    lanes = Lanes(clock, [lane("device 0", 1)])
    budget = Budget.of(9.0, clock)
    resources = Resources(database, Inline, lambda: FakeBench(by_threads), budget)
    tuner = Tuner(resources, rounds=lambda resources, settings: ShareOut(lanes, resources, settings))
    problems = [problem_of(size) for size in SIZES]
    found = tuner.estimate(problems, evolve(QUICK, most=40, first=40))
    assert any(seconds is not None for seconds in found)
    assert not tuner.complete
    cut = [p for p, seconds in zip(problems, found, strict=True) if seconds is not None]
    assert all(database.time(f"estimate of 40 {p.key}") is None for p in cut)


def test_units_that_are_forgotten_are_not_answered_and_their_process_stays() -> None:
    engine = DeviceProcesses(["0"], 1, OPENCL, "cuts.tests.search.services:Patient")
    try:
        engine.submit(0, unit(8), 60.0)
        assert engine.collect(0.0) == []
        engine.drop()
        assert engine.free == TOGETHER
        engine.submit(0, unit(16), 60.0)
        found = []
        while not found:
            found = engine.collect(1.0)
        assert [(a.number, a.result) for a in found] == [(0, ("second search", ["matmul 16"]))]
    finally:
        engine.close()


@pytest.mark.parametrize("lies", [[0], [1]])
def test_what_a_place_did_beside_a_lie_is_not_taken_either(lies: list[int]) -> None:
    from .hosts import Hosts

    class Several(Hosts):
        def collect(self, timeout: float) -> list[UnitAnswer]:
            return [answer for _ in range(len(self.queue)) for answer in super(Several, self).collect(timeout)]

        def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
            self.queue.append((number, self.names[number % len(self.names)], unit))

        @property
        def free(self) -> int:
            return 4 - len(self.queue)

    database, hosts, notes, undisturbed = Database(None), Several(2, lies=lies), list[str](), Database(None)
    tuned(hosts, PROBLEMS, database, notes).run(PROBLEMS, SHORT)
    tuned(None, PROBLEMS, undisturbed, []).run(PROBLEMS, SHORT)
    assert results(database, PROBLEMS) == results(undisturbed, PROBLEMS)
    assert sum("below its bound" in note for note in notes) == 1
