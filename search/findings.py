"""Findings of compilations by measured times, as other packages read them."""

from __future__ import annotations

from math import inf

from attrs import frozen

from ..passes import Decisions
from .analysis import Audit
from .settings import TunedChoice
from .tasks import TuningTask
from .tuner import ORIGIN_ELSEWHERE, ORIGIN_GUESSED


@frozen
class Findings:
    """Results of one compilation: tuning tasks, their choices, and the decisions.

    `unfused_seconds` are those of the unfused units, `scale` is the ratio of measured seconds to modelled ones. It is
    `complete` where neither the budget nor an interrupt ended a search.
    """

    problems: tuple[TuningTask, ...] = ()
    choices: tuple[TunedChoice, ...] = ()
    made: Decisions | None = None
    unfused_seconds: float = inf
    scale: float = 1.0
    complete: bool = True

    @property
    def pairs(self) -> tuple[tuple[TuningTask, TunedChoice], ...]:
        """Tuning tasks with their choices."""
        return tuple(zip(self.problems, self.choices, strict=True))

    @property
    def seconds(self) -> float:
        """Time of all kernels: measured, or the scaled cost model's."""
        return sum(p.uses * (self.scale * c.candidate.score if c.seconds is None else c.seconds) for p, c in self.pairs)

    @property
    def is_modelled(self) -> bool:
        """True if the cost model estimated some kernel times."""
        return any(choice.seconds is None for choice in self.choices)

    @property
    def has_unmeasured(self) -> bool:
        """True if a schedule comes from another version or the cost model."""
        return any(choice.origin in (ORIGIN_ELSEWHERE, ORIGIN_GUESSED) for choice in self.choices)


@frozen
class SearchOutcome:
    """SearchOutcome of a session for reports.

    The plan was `cached` and nothing was searched, or it has `findings`, audits of its kernels, and a sentence for each
    shipped plan that was not compared.
    """

    findings: Findings = Findings()
    cached: bool = False
    audits: tuple[Audit, ...] = ()
    uncompared: tuple[str, ...] = ()
