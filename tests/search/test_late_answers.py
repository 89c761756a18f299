"""Late answers go to their requester, or are discarded.

None ends a search.
"""

from __future__ import annotations

from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.compiled import Budget
from cuts.search.building.workers import Job, JobResult
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.build_queue import DispatchLoop
from cuts.search.tuner.launches import measure_launches
from cuts.search.tuner.resources import Resources, WorkerQueries

from .fakes import MACHINE, group_of
from .simulation import FakeClock, session

GPU = evolve(find_target("cuda:sm_90"), dialect="opencl")


def answered_late(*owners: object) -> Resources:
    """Return resources whose workers answer some earlier jobs first, one after another."""
    clock = FakeClock()
    resources = session(Budget.of(10.0, clock), clock)
    resources.start()
    done = [JobResult(Job(owner, "price", ()), value=number) for number, owner in enumerate(owners)]

    def collect(timeout: float) -> list[JobResult]:
        clock.pass_by(1.0)
        return [done.pop()] if done else []

    resources.collect = collect  # type: ignore[method-assign]
    return resources


def test_a_search_leaves_answers_to_those_who_asked() -> None:
    """Some evaluated groups are answered only during the search of kernels."""
    asking: WorkerQueries[int] = WorkerQueries([None], {0})
    loop = DispatchLoop(answered_late((asking, 0), ("a launch", {}), "nobody"))
    for _ in range(4):
        loop.receive()
    assert asking.found == [0]
    assert not asking.waiting


def test_launches_leave_answers_to_those_who_asked() -> None:
    asking: WorkerQueries[int] = WorkerQueries([None], {0})
    resources = answered_late((asking, 0), "nobody")
    problem = TuningTask(group_of("matmul", ((8, 8), (8, 8))), {}, GPU, MACHINE)
    assert list(measure_launches(resources, {"both": (problem, ())})) == [], "time ends before either answer comes"
    assert asking.found == [0]
