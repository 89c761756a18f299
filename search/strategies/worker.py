"""Proposals by workers: a process that searches for many kernels at once is asked for one every few milliseconds, and
takes longer over it than the device over a candidate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from math import inf

from attrs import frozen

from ...backends.cuda import begin_compiling
from ...ir import Schedule
from ...passes.schedule import make_space
from ..build import Built, Factory, Scored, Worker, longest_of, wishes_of
from ..copies import one_thread
from ..learned import LearnedOrder
from ..problem import Problem, schedule_text
from ..settings import COMPARED, Settings
from .bayes import Bayes
from .catalogue import STRATEGIES, make_strategy
from .ground import Place, place_of
from .proposer import Known, Strategy, in_turns

#: Strategies that a worker keeps, the least recently asked is forgotten: what is counted of points need not be counted
#: again.
KEPT = 64
_STRATEGIES: OrderedDict[Hashable, Bayes] = OrderedDict()


def before_copies() -> None:
    """Do what workers that are copies of one process need not do one after another.

    Raises `BackendError` where there is no compiler.
    """
    begin_compiling()


@frozen
class ProposalRequest:
    """What proposals depend on: the name of a strategy and what it is made of, the points that it has proposed, and
    what was measured; how many are wanted.
    """

    name: str
    model: str
    seed: int
    aided: bool
    correction: LearnedOrder | None
    first: tuple[Scored, ...]
    seen: frozenset[Place]
    known: tuple[Known, ...]
    best: float
    count: int


class ProposingFactory(Factory):
    """A factory that proposes points too."""

    def propose(self, problem: Problem, asked: ProposalRequest) -> tuple[list[Scored], frozenset[Place]]:
        """Return what a strategy proposes, and all that it has proposed or passed over now."""
        strategy = _strategy(problem, asked)
        strategy.seen = set(asked.seen)
        with one_thread():
            found = strategy.propose(asked.known, asked.best, asked.count)
        return found, frozenset(strategy.seen)

    def go_on(self, problem: Problem, asked: ProposalRequest, hasty: bool) -> list[tuple[Schedule, Built]]:
        """Return what a strategy proposes, built."""
        candidates = [scored.candidate for scored in self.propose(problem, asked)[0]]
        return [(c.schedule, self.build(problem, *wishes_of(c, hasty, longest_of(c)))) for c in candidates]


def _strategy(problem: Problem, asked: ProposalRequest) -> Bayes:
    """Return a strategy that was asked before, or a new one."""
    key = problem.key, asked.name, asked.model, asked.seed, asked.aided, asked.correction
    kept = _STRATEGIES.pop(key, None)
    if kept is None:
        space = make_space(problem.form, problem.target)
        made = make_strategy(asked.name, space, asked.first, asked.model, asked.seed, asked.aided, asked.correction)
        assert isinstance(made, Bayes), "others propose where they are"
        kept = made
    _STRATEGIES[key] = kept
    if len(_STRATEGIES) > KEPT:
        _STRATEGIES.popitem(last=False)
    kept.first = asked.first
    return kept


class SearchWorker(ProposingFactory, Worker):
    """What a worker process of a search hosts."""


def request_of(
    settings: Settings,
    strategy: Strategy,
    known: Sequence[Known],
    best: float,
    count: int,
    order: LearnedOrder | None = None,
) -> ProposalRequest | None:
    """Return what a worker is asked so that it proposes what a strategy would; nothing where that depends on more."""
    if not isinstance(strategy, Bayes):
        return None
    return ProposalRequest(
        settings.strategy, settings.model, strategy.seed, strategy.aided, order,
        tuple(strategy.first), frozenset(strategy.seen), tuple(known), best, count,
    )  # fmt: skip


def request_behind(
    settings: Settings,
    ranked: Sequence[Scored],
    times: Mapping[str, float],
    count: int,
    order: LearnedOrder | None = None,
) -> ProposalRequest | None:
    """Return what a worker is asked where the first points of a search were tried and nothing else, as their times are
    known by schedules; nothing where that depends on more, as others were tried, or none of them ran.
    """
    kind = STRATEGIES.get(settings.strategy)
    if not (isinstance(kind, type) and issubclass(kind, Bayes) and settings.aided):
        return None
    begun = [(s.point, s.candidate.schedule) for s in in_turns(ranked)[: min(settings.first, COMPARED)]]
    points = {schedule_text(schedule): point for point, schedule in reversed(begun) if point is not None}
    texts = dict.fromkeys(schedule_text(schedule) for _, schedule in begun)  # several points may be one schedule
    known = tuple(Known(points[text], times.get(text, inf)) for text in texts)
    best = min((k.seconds for k in known), default=inf)
    if best == inf or len(ranked) < settings.first or not times.keys() <= texts.keys():
        return None
    seen = frozenset(place_of(point) for point, _ in begun if point is not None)
    return ProposalRequest(
        settings.strategy, settings.model, settings.seed, settings.aided, order,
        tuple(ranked), seen, known, best, count,
    )  # fmt: skip
