"""Late answers go to their requester, or are discarded.

None ends a search.
"""

from __future__ import annotations

from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.compiled import Budget
from cuts.search.building.workers import Job, JobResult
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import Receiver, SearchExecutor, WorkerQueries
from cuts.search.tuner.launches import measure_launches

from .fakes import MACHINE, group_of
from .simulation import FakeClock, SimulatedWorkers, session

GPU = evolve(find_target("cuda:sm_90"), dialect="opencl")


def answered_late(*receivers: Receiver) -> SearchExecutor:
    """Return an executor whose workers first answer some earlier jobs."""
    clock = FakeClock()
    executor = session(Budget.of(10.0, clock), clock)
    done = [JobResult(Job(receiver, "price", ()), value=number) for number, receiver in enumerate(receivers)]

    class Late(SimulatedWorkers):
        def collect(self, timeout: float) -> list[JobResult]:
            clock.pass_by(1.0)
            return [done.pop()] if done else []

    executor._builder = Late(clock)
    return executor


def test_a_search_leaves_answers_to_those_who_asked() -> None:
    """Some evaluated groups are answered only during the search of kernels."""
    asking: WorkerQueries[int] = WorkerQueries([None], {0})
    executor = answered_late(lambda done: asking.answer(0, done.value), lambda done: None)
    for _ in range(3):
        executor.receive()
    assert asking.found == [0]
    assert not asking.waiting


def test_launches_leave_answers_to_those_who_asked() -> None:
    asking: WorkerQueries[int] = WorkerQueries([None], {0})
    executor = answered_late(lambda done: asking.answer(0, done.value), lambda done: None)
    problem = TuningTask(group_of("matmul", ((8, 8), (8, 8))), {}, GPU, MACHINE)
    assert list(measure_launches(executor, {"both": (problem, ())})) == [], "time ends before either answer comes"
    assert asking.found == [0]
