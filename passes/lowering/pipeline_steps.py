"""Reductions that atoms compute, with fragments loaded one step ahead.

A chunk is multiplied in steps, as deep as an atom. With `ReductionSchedule.ahead`, the fragments of the next step are
loaded, into registers of their own, before those at hand are multiplied, so that loads hide behind products. The step
behind the last one is the first of the next chunk: threads wait for that chunk before they multiply the last step of
this one, and the time of the barrier is hidden too. Before -> after, for two steps a chunk:

    wait; barrier; fetch chunk c + 2; multiply chunk c
        ->  keep b0 = step 1 of c; fetch c + 2; multiply a0; wait; barrier; keep a0 = step 0 of c + 1; multiply b0

A buffer is filled again behind the barrier that all loads from it precede. Behind the last chunk there is nothing to
wait for: its own first fragments are loaded once more, and copies that nobody needs bring zeros, so that the loop has
no branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve

from ...ir import Barrier, Clamp, Commit, Guard, Index, Item, Load, Loop, Phase, Store, Var, Wait, as_index, clamp

#: Sets of registers that the fragments of an operand alternate between: as many steps must divide those of a chunk.
SETS = 2


def alternating(
    step: Var,
    stages: int,
    steps: int,
    behind: bool,
    fetch: Callable[[Index], Sequence[Item]],
    keep: Callable[[int, Index], Phase],
    multiply: Callable[[int], Phase],
) -> list[Item]:
    """Return the loop over chunks `step` of a ring of `stages` buffers, `steps` a chunk.

    `fetch` fills the buffer of a chunk, `keep` loads the fragments of a step of a chunk, `multiply` multiplies those of
    a step; `behind` says whether fetches are asynchronous.
    """
    ahead = stages - 1
    commit: tuple[Item, ...] = (Commit(),) if behind else ()
    arrived: tuple[Item, ...] = (Wait(ahead - 1), Barrier()) if behind else (Barrier(),)
    items: list[Item] = []
    for early in range(ahead):
        items += [*(fetch(Index(early)) if early < step.extent else ()), *commit]
    items += [*arrived, keep(0, Index())]
    body: list[Item] = []
    following = clamp(as_index(step) + 1, 0, step.extent - 1)
    for number in range(steps):
        last = number == steps - 1
        body += [*(arrived if last else ()), keep((number + 1) % steps, following if last else as_index(step))]
        if number == 0:
            body += [*fetch(as_index(step) + ahead), *commit]
        body.append(multiply(number))
    items.append(Loop(step, tuple(body)) if step.extent > 1 else body)
    return items


def filled_with_zeros(phase: Phase, at: Index, chunks: int) -> Phase:
    """Return a fetch of chunk `at` that brings zeros where there is no such chunk, where copies can; else one that is
    left out.
    """
    guard = Guard(at, 0, chunks)
    if guard.always:
        return phase
    plain = all(isinstance(r, Store) and isinstance(r.value, Load) and r.value.fill == 0 for r in phase.roots)
    if not (phase.asynchronous and plain):
        return evolve(phase, when=(*phase.when, guard))
    roots = tuple(
        evolve(r, value=evolve(r.value, guards=(*r.value.guards, guard)))
        for r in phase.roots
        if isinstance(r, Store) and isinstance(r.value, Load)
    )
    return evolve(phase, roots=roots)
