"""Check of the turns of warpgroups.

None waits for ever, none is given two turns at once, and the turn is the first one's at the end. One warpgroup runs
until it waits, then the next one, in each order of the circle; loops, and the tiles of a persistent grid, run for each
small number of iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import VerifyError
from ..kernel import Item, Kernel, Loop, TurnPass, TurnWait, opening_items
from ..machine import LANES, WARPGROUP

#: Iterations of a loop that are run: an order repeats with each iteration of the circle.
MAX_ITERATIONS = 4
#: Named barriers beside that of all threads.
MAX_WARPGROUPS = 15


def check_turns(kernel: Kernel) -> Iterator[VerifyError]:
    """Warpgroups that take turns all end, with the turn where it began."""
    groups, once = kernel.threads // (WARPGROUP * LANES), _turns(kernel.items, 1)
    first, rest = opening_items(kernel)
    if kernel.teams > 1:
        if groups != 1 or [type(turn) for turn in once] != [TurnWait, TurnPass]:
            yield VerifyError(f"{kernel.teams} teams of {groups} warpgroups: expected one that waits and passes a turn")
        return
    if not once:
        return
    if not 2 <= groups <= MAX_WARPGROUPS:
        yield VerifyError(f"{groups} warpgroups take turns: expected 2 to {MAX_WARPGROUPS}")
        return
    for iterations in range(MAX_ITERATIONS):
        turns = _turns(first, iterations) + _turns(rest, iterations) * min(kernel.turn.extent, MAX_ITERATIONS)
        faults = (_fault(turns, [(n + first) % groups for n in range(groups)]) for first in range(groups))
        if fault := next(filter(None, faults), ""):
            yield VerifyError(f"turns in {iterations} iterations: {fault}")
            return


def _turns(items: Sequence[Item], iterations: int) -> list[TurnWait | TurnPass]:
    """Return the turns of a warpgroup in order."""
    found: list[TurnWait | TurnPass] = []
    for item in items:
        if isinstance(item, Loop):
            found += _turns(item.body, iterations) * min(iterations, item.var.extent)
        elif isinstance(item, (TurnWait, TurnPass)):
            found.append(item)
    return found


def _fault(turns: Sequence[TurnWait | TurnPass], order: Sequence[int]) -> str:
    """Return the fault of warpgroups that run until they wait, in this order, or nothing."""
    reached, given = dict.fromkeys(order, 0), dict.fromkeys(order, False)
    moved = True
    while moved:
        moved = False
        for group in order:
            for turn in turns[reached[group] :]:
                if isinstance(turn, TurnWait):
                    if not given[group]:
                        break
                    given[group] = False
                elif turn.first <= group < turn.last:
                    following = (group + 1) % len(order)
                    if given[following]:
                        return f"warpgroup {following} is given two turns at once"
                    given[following] = True
                reached[group] += 1
                moved = True
    waiting = [group for group in sorted(order) if reached[group] < len(turns)]
    if waiting:
        return f"warpgroup {waiting[0]} waits for ever"
    return (
        "" if [group for group in order if given[group]] == [0] else "the turn is not the first warpgroup's at the end"
    )
