"""What a compilation by measured times found, and what reports say of it."""

from __future__ import annotations

from attrs import frozen

from ..passes import Decisions
from .audit import Audit
from .problem import Problem
from .settings import TunedChoice


@frozen
class Findings:
    """What a compilation found: the problems of its kernels, the choice for each, audits, and what it decided."""

    problems: tuple[Problem, ...]
    choices: tuple[TunedChoice, ...]
    audits: tuple[Audit, ...]
    made: Decisions | None


def facts_of(choice: TunedChoice, problem: Problem) -> dict[str, object]:
    """Return what a report says of a choice."""
    facts: dict[str, object] = {"tuning": problem.key, "origin": choice.origin}
    if choice.seconds is None:
        return facts | {"why": f"not measured: {choice.reason or 'the search was ended before'}"}
    share = choice.candidate.bound / choice.seconds if choice.seconds else 0.0
    facts |= {"measured": choice.seconds, "spread": choice.spread, "trials": choice.trials}
    bound = f"its bound is {share:.0%} of its time, limited by {choice.candidate.limit}"
    why = f"fastest of {choice.trials} measured; {bound}"
    if choice.proof is not None:
        exact = "" if choice.proof.exact else "about "
        why += f"; {exact}{choice.proof.share:.1%} of {choice.proof.points:,} points are proven slower"
    return facts | {"why": why}
