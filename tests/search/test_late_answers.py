"""Late answers go to their requester, or are discarded.

None ends a search.
"""

from __future__ import annotations

from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.budget import Budget
from cuts.search.build import Done, Job
from cuts.search.launches import measure_launches
from cuts.search.problem import Problem
from cuts.search.resources import Asking, Resources
from cuts.search.trials import DispatchLoop

from .fakes import MACHINE, group_of
from .simulated import FakeClock, session

GPU = evolve(find_target("cuda:sm_90"), dialect="opencl")


def answered_late(*owners: object) -> Resources:
    """Return resources whose workers answer some earlier jobs first, one after another."""
    clock = FakeClock()
    resources = session(Budget.of(10.0, clock), clock)
    resources.start()
    done = [Done(Job(owner, "price", ()), value=number) for number, owner in enumerate(owners)]

    def collect(timeout: float) -> list[Done]:
        clock.pass_by(1.0)
        return [done.pop()] if done else []

    resources.collect = collect  # type: ignore[method-assign]
    return resources


def test_a_search_leaves_answers_to_those_who_asked() -> None:
    """Some evaluated groups are answered only during the search of kernels."""
    asking: Asking[int] = Asking([None], {0})
    loop = DispatchLoop(answered_late((asking, 0), ("a launch", {}), "nobody"))
    for _ in range(4):
        loop.take_in()
    assert asking.found == [0]
    assert not asking.waiting


def test_launches_leave_answers_to_those_who_asked() -> None:
    asking: Asking[int] = Asking([None], {0})
    resources = answered_late((asking, 0), "nobody")
    problem = Problem(group_of("matmul", ((8, 8), (8, 8))), {}, GPU, MACHINE)
    assert list(measure_launches(resources, {"both": (problem, ())})) == [], "time ends before either answer comes"
    assert asking.found == [0]
