"""Plans with concurrent launches: each waits only for its dependencies.

Buffers that share memory make launches wait for one another. In a plan with concurrent launches two buffers share it
only where all launches that touch the one have ended before any that touches the other begins, for every sharing of
memory: so no launch gets a further dependency, and the order of launches in the plan is one of the valid orders.
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from operator import and_

from attrs import evolve, frozen

from ..memory import place_buffers
from ..plan import Plan, check_plan
from .hazards import MAX_CONCURRENT_LAUNCHES, LaunchDependencies, launch_dependencies


@frozen
class ConcurrentLifetime:
    """Launches that touch a buffer, and launches that ended before.

    Both are numbers with a bit for each launch: `before` has the launches that ended before any of the `users` begins.
    The beginning of a run is the lowest bit, its end the highest.
    """

    first: int
    users: int
    before: int

    def overlaps(self, other: ConcurrentLifetime) -> bool:
        """Return whether two buffers may be live at the same time.

        Some user of each may run before all users of the other have ended.
        """
        return bool(self.users & ~other.before) and bool(other.users & ~self.before)


#: The lifetime of a buffer that shares its memory with nothing.
WHOLE_RUN = ConcurrentLifetime(0, 1 << MAX_CONCURRENT_LAUNCHES + 1, 0)


def make_concurrent(plan: Plan) -> Plan | None:
    """Return a plan with concurrent launches, whose buffers share less memory.

    None where each launch needs the one before it, or where there are too many.
    """
    if (
        plan.launch_count > MAX_CONCURRENT_LAUNCHES
        or (waits := launch_dependencies(plan, separate_buffers=True)).is_sequential
    ):
        return None
    sizes = {name: place.nbytes for name, place in plan.buffers.items()}
    placed, arena = place_buffers(sizes, concurrent_lifetimes(plan, waits))
    branched = evolve(
        plan,
        buffers={name: placed[name] for name in plan.buffers},
        arena=arena,
        branched=True,
    )
    check_plan(branched)
    return branched


def concurrent_lifetimes(plan: Plan, waits: LaunchDependencies) -> dict[str, ConcurrentLifetime]:
    """Return the lifetime of each buffer, under given dependencies."""
    begin, end = 0, len(waits.direct) + 1
    users: dict[str, set[int]] = defaultdict(set)
    for names, moments in ((plan.inputs, {begin}), (plan.outputs, {end}), (plan.constants, {begin, end})):
        for tensor in names:
            users[plan.storages[tensor].buffer] |= moments
    for check in plan.checks:
        for tensor in (check.place, check.found):
            users[plan.storages[tensor].buffer].add(end)
    for number, (step, _) in enumerate(plan.launches(), begin + 1):
        for tensor in plan.steps[step].tensors:
            users[plan.storages[tensor].buffer].add(number)
    ended = [0, *(before << 1 | 1 for before in waits.before), (1 << end) - 1]
    return {
        key: ConcurrentLifetime(min(each), sum(1 << n for n in each), reduce(and_, (ended[n] for n in each)))
        for key, each in users.items()
    }
