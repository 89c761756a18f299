"""Deeper searches of the kernels that lose most against their roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from ...ir import FULL_SHARE
from ...passes import Roofline
from ..settings import Settings, TunedChoice
from ..tasks import TuningTask
from .tuner import Tuner

#: Share of the whole time that a kernel must lose against its roofline to be searched deeper.
MIN_LOST_SHARE = 0.02


def tune_each(problems: Sequence[TuningTask], tuner: Tuner, settings: Settings) -> list[TunedChoice]:
    """Return a choice for every task, each a program of its own.

    All are tuned together as one is alone, so that the rest of their budget goes to deeper searches.
    """
    found = dict(enumerate(tuner.run(problems, settings)))
    found = search_deeper(problems, found, tuner, settings, FULL_SHARE, separate_programs=True)
    return [found[number] for number in range(len(problems))]


def search_deeper(
    problems: Sequence[TuningTask],
    found: Mapping[int, TunedChoice],
    tuner: Tuner,
    settings: Settings,
    share: float,
    separate_programs: bool = False,
) -> dict[int, TunedChoice]:
    """Return choices, by index, improved by deeper searches of the slowest kernels.

    A search ends after a fixed number of candidates and of unsuccessful ones, for any kernel's time. Where a few
    kernels dominate a plan, a large part of the budget is left at that point. Kernels of one program are ranked by
    their loss against the whole program's time. With `separate_programs`, each kernel is a program of its own, and
    one that a deeper search does not improve is left.

    Nothing is done without a time limit, where the search was cut short, or on a CPU that other processes use too.
    Whether the search ran to its end does not change: it could have ended there.
    """
    executor, best = tuner.executor, dict(found)
    quiet = bool(problems) and not problems[0].target.on_host
    if not (quiet and settings.batch and executor.budget.is_limited and executor.complete) or tuner.frozen:
        return best
    going = set(best)
    with executor.ending_early(False):
        for times in range(1, 1 + settings.deeper):
            worst = [n for n in slowest_kernels(problems, best, separate_programs) if n in going]
            if not worst or executor.budget.over(share):
                break
            chosen = tuner.run([problems[n] for n in worst], settings.deeper_settings(times), share, search_again=True)
            better = {n: c for n, c in zip(worst, chosen, strict=True) if _seconds(c) < _seconds(best[n])}
            best |= better
            if not better:
                break
            going = set(better) if separate_programs else going
    return best


def slowest_kernels(
    problems: Sequence[TuningTask], found: Mapping[int, TunedChoice], separate_programs: bool = False
) -> list[int]:
    """Return indices of measured kernels far above their roofline, largest loss first.

    The loss is compared with the whole time, or with `separate_programs` with the kernel's own time.
    """
    taken = {n: problem.uses * (found[n].seconds or 0.0) for n, problem in enumerate(problems)}
    lost = {n: taken[n] - p.uses * Roofline(p.target).cost(p.form) for n, p in enumerate(problems)}
    whole = sum(taken.values())
    return sorted(
        (n for n in lost if lost[n] > MIN_LOST_SHARE * (taken[n] if separate_programs else whole)),
        key=lambda n: -lost[n],
    )


def _seconds(choice: TunedChoice) -> float:
    return inf if choice.seconds is None else choice.seconds
