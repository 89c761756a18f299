"""Jobs of an executor: priorities, deadline and interrupts, on a virtual clock."""

from __future__ import annotations

import pytest
from cuts.ir import BOUND_PRUNING
from cuts.ir.compiled import Budget
from cuts.search.building.workers import JobResult
from cuts.search.tuner.executor import SearchExecutor

from .fakes import problem_of
from .simulation import FakeClock, session

#: Seconds that simulated workers take to start.
START = 2.0


def executor_of(clock: FakeClock, seconds: float | None = 60.0, **slow: float) -> SearchExecutor:
    """Return an executor of four simulated workers."""
    return session(Budget.of(seconds, clock), clock, **slow)


def finish(executor: SearchExecutor, clock: FakeClock, until: float) -> None:
    """Receive answers until a moment."""
    while clock() < until:
        executor.receive(until - clock())


def test_answers_reach_their_receivers_by_priority() -> None:
    clock, found = FakeClock(), list[int]()
    executor = executor_of(clock, rank=1.0)
    for number in range(8):
        executor.submit(
            lambda done, n=number: found.append(n), "rank", problem_of(8), BOUND_PRUNING, 1, priority=(-number,)
        )
    finish(executor, clock, START + 1.0)
    assert sorted(found) == [4, 5, 6, 7]
    finish(executor, clock, START + 2.0)
    assert sorted(found) == list(range(8))


@pytest.mark.parametrize(("everything", "left"), [(False, ["lasting"]), (True, [])])
def test_dropped_jobs_have_no_answer(everything: bool, left: list[str]) -> None:
    clock, found = FakeClock(), list[str]()
    executor = executor_of(clock)
    for name in ("usual", "lasting"):
        receiver = lambda done, name=name: found.append(name)  # noqa: E731
        executor.submit(receiver, "soon", problem_of(8), lasting=name == "lasting")
    dropped = executor.drop(lasting=everything)
    assert len(dropped) == everything
    finish(executor, clock, START + 1.0)
    assert found == left


def test_queries_end_with_their_share_of_the_budget() -> None:
    clock, here = FakeClock(), list[int]()
    executor = executor_of(clock, 10.0, soon=6.0)
    executor.has_answered = True  # workers are awaited, and this process computes nothing
    wait = executor.ask("soon", [problem_of(8), problem_of(16)], lambda problem: here.append(1), 0.5)
    assert wait() == [None, None]
    assert clock() <= 0.5 * 10.0 + 0.1
    assert not here
    assert executor.expired and not executor.queries


def test_this_process_answers_while_workers_start() -> None:
    clock = FakeClock()
    executor = executor_of(clock)

    def evaluate(number: int) -> int:
        clock.pass_by(0.5)
        return number

    wait = executor.ask("soon", [1, 2, 3], evaluate, 1.0)
    executor.drop()  # no worker answers
    assert wait() == [None] * 3, "a later search dropped the queries"
    assert executor.ask("rank", [4, 5], evaluate, 1.0)() == [4, 5]
    assert clock() == 1.0


def test_interrupt_ends_workers_and_device() -> None:
    clock = FakeClock()
    executor = executor_of(clock)
    executor.start()

    def stop(done: JobResult) -> None:
        raise KeyboardInterrupt

    executor.submit(stop, "soon", problem_of(8))
    with executor.interruptible():
        finish(executor, clock, START + 1.0)
    assert executor.interrupted and not executor.started and not executor.complete
