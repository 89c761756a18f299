"""Hazards of launches: exactly the launches on the same bytes.

Any order that respects them computes the same.
"""

from __future__ import annotations

from itertools import permutations
from random import Random

from attrs import evolve
from cuts.backends.library import DIALECT
from cuts.runtime.placement.concurrent_launches import ConcurrentLifetime, concurrent_lifetimes, make_concurrent
from cuts.runtime.placement.hazards import LaunchDependencies, launch_dependencies
from cuts.runtime.plan import Plan
from hypothesis import given
from hypothesis import strategies as st

from .drawn_plans import known_bytes, outcome, plans, touched_bytes
from .handmade import example_plan


def conflicting(plan: Plan, *, separate_buffers: bool) -> list[int]:
    """Return which launches end before each, byte by byte."""
    begins = {name: (name if separate_buffers else place.offset) for name, place in plan.buffers.items()}
    each = []
    for launch in plan.launches():
        bytes_ = [
            (w, {(begins[b], n) if separate_buffers else begins[b] + n for b, n in ns})
            for w, ns in touched_bytes(plan, *launch)
        ]
        each.append((set().union(*(ns for _, ns in bytes_)), set().union(*(ns for w, ns in bytes_ if w))))
    before: list[int] = []
    for number, (all_, written) in enumerate(each):
        found = 0
        for other, (others, changed) in enumerate(each[:number]):
            if all_ & changed or written & others:
                found |= before[other] | 1 << other
        before.append(found)
    return before


@given(plans(), st.booleans())
def test_launches_wait_for_same_byte_launches_only(plan: Plan, separate_buffers: bool) -> None:
    assert list(launch_dependencies(plan, separate_buffers).before) == conflicting(
        plan, separate_buffers=separate_buffers
    )


@given(plans())
def test_what_is_waited_for_is_said_once(plan: Plan) -> None:
    waits = launch_dependencies(plan)
    for each, before in zip(waits.direct, waits.before, strict=True):
        assert before == sum(1 << n for n in range(plan.launch_count) if before >> n & 1)
        for number in each:
            others = [waits.before[other] for other in each if other != number]
            assert not any(other >> number & 1 for other in others), "another that is waited for waits for it"


@given(plans(), st.integers(0, 2**16))
def test_any_legal_order_computes_the_same(plan: Plan, seed: int) -> None:
    known = known_bytes(plan)
    alone = {name: number << 12 for number, name in enumerate(plan.buffers)}
    wanted = outcome(plan, range(plan.launch_count), alone, known)
    for form in (plan, make_concurrent(plan)):
        if form is not None:
            begins = {name: place.offset for name, place in form.buffers.items()}
            order = some_order(launch_dependencies(form), Random(seed))
            assert outcome(form, order, begins, known) == wanted


@given(plans())
def test_branches_share_no_memory_that_makes_launches_wait(plan: Plan) -> None:
    branched = make_concurrent(plan)
    if branched is None:
        assert launch_dependencies(plan).is_sequential
        return
    assert launch_dependencies(branched) == launch_dependencies(plan, separate_buffers=True)
    assert branched.branched and not plan.branched
    assert max((place.end for place in branched.buffers.values()), default=0) == branched.arena


def some_order(waits: LaunchDependencies, chance: Random) -> list[int]:
    """Return some order that respects all dependencies."""
    left, order, done = list(range(len(waits.direct))), list[int](), set[int]()
    while left:
        ready = [number for number in left if done.issuperset(waits.direct[number])]
        number = chance.choice(ready)
        left.remove(number)
        done.add(number)
        order.append(number)
    return order


def test_writers_of_concatenation_parts_do_not_wait() -> None:
    assert launch_dependencies(example_plan()).direct == ((), (0,), ())


def test_routines_of_libraries_follow_one_another() -> None:
    plan = example_plan()
    kernels = tuple(evolve(kernel, dialect=DIALECT) for kernel in plan.kernels)
    assert launch_dependencies(evolve(plan, kernels=kernels)).direct == ((), (0,), (1,))


def test_an_order_without_an_edge_computes_something_else() -> None:
    """Every edge is needed to keep orders equal."""
    plan = example_plan()
    known, begins = known_bytes(plan), {name: number << 12 for number, name in enumerate(plan.buffers)}
    results = {order: outcome(plan, order, begins, known) for order in permutations(range(3))}
    right = [order for order in results if order.index(0) < order.index(1)]
    assert len({tuple(results[order]) for order in right}) == 1
    assert all(results[order] != results[right[0]] for order in set(results) - set(right))


def test_longest_path_is_the_time_of_concurrent_launches() -> None:
    waits = LaunchDependencies(((), (0,), (), (2,)), (0, 1, 0, 4))
    assert waits.critical_path([1.0, 2.0, 4.0, 1.0]) == 5.0
    assert not waits.is_sequential
    assert LaunchDependencies(((), (0,)), (0, 1)).is_sequential


def test_buffers_of_two_branches_do_not_share_memory() -> None:
    plan = example_plan()
    lives = concurrent_lifetimes(plan, launch_dependencies(plan, separate_buffers=True))
    assert set(lives) == set(plan.buffers)
    early, late = ConcurrentLifetime(1, 0b0010, 0b0001), ConcurrentLifetime(2, 0b0100, 0b0011)
    assert not early.overlaps(late) and not late.overlaps(early)
    assert early.overlaps(ConcurrentLifetime(2, 0b0100, 0b0001)), "neither waits for the other"
