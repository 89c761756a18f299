"""What is left of a budget, where searches have ended by themselves: those of the kernels that lose most go on.

A search ends behind as many candidates, and as many that were no better, whatever the kernel takes. Of a plan that a
few kernels decide, half of the budget was left then: 19 s of 40 for BERT-base, whose products took 905 us where 873 had
been found before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..passes import Roofline
from .problem import Problem
from .settings import Settings, TunedChoice
from .tuner import Tuner

#: The part of the whole time that a kernel must lose against its floor to be searched deeper.
LOSING = 0.02


def search_deeper(
    problems: Sequence[Problem], found: Mapping[int, TunedChoice], tuner: Tuner, settings: Settings, share: float
) -> dict[int, TunedChoice]:
    """Return choices, by the places of problems, in which those that lose most are the best of deeper searches.

    Nothing is done without a limit of time, where the search was cut short, and for a processor, which others use too.
    Whether the search was brought to its end is what it was before: it could have ended there.
    """
    resources, best = tuner.resources, dict(found)
    quiet = bool(problems) and not problems[0].target.on_host
    if not (quiet and settings.batch and resources.budget.limited and resources.complete) or tuner.frozen:
        return best
    for times in range(1, 1 + settings.deeper):
        worst = losing(problems, best)
        if not worst or resources.budget.over(share):
            break
        chosen = tuner.run([problems[n] for n in worst], settings.deepened(times), share, again=True)
        better = {n: c for n, c in zip(worst, chosen, strict=True) if _seconds(c) < _seconds(best[n])}
        best |= better
        if not better:
            break
    resources.expired = False
    return best


def losing(problems: Sequence[Problem], found: Mapping[int, TunedChoice]) -> list[int]:
    """Return the places of measured kernels that lose a good part of the whole time against their floors, those first
    that lose most.
    """
    taken = {n: problem.uses * (found[n].seconds or 0.0) for n, problem in enumerate(problems)}
    lost = {n: taken[n] - p.uses * Roofline(p.target).cost(p.form) for n, p in enumerate(problems)}
    return sorted((n for n in lost if lost[n] > LOSING * sum(taken.values())), key=lambda n: -lost[n])


def _seconds(choice: TunedChoice) -> float:
    return float("inf") if choice.seconds is None else choice.seconds
