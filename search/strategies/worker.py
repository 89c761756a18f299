"""Proposals by workers, for searches over many kernels.

The searching process has a few milliseconds for a proposal, which takes longer than the device takes for a candidate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from math import inf

from attrs import frozen

from ...backends.compilers import begin_compiling
from ...ir import Pruning, Schedule
from ...passes.schedule import make_space
from ..building import BuildResult, Factory, ScoredCandidate, Worker, build_arguments, max_statements_of
from ..learned import LearnedOrder
from ..processes import one_thread
from ..settings import QUICK_CANDIDATES, Settings
from ..tasks import TuningTask, schedule_text
from .bayes import Bayes
from .catalogue import STRATEGIES, make_strategy
from .proposer import Observation, Strategy, interleave_structures
from .search_domain import Place, place_of

#: Largest number of strategies in a worker; the least recently used is dropped. A strategy caches the features of
#: points.
MAX_STRATEGIES = 64
_STRATEGIES: OrderedDict[Hashable, Bayes] = OrderedDict()


def before_forks() -> None:
    """Prepare a process for forks: do common work once.

    Raises `BackendError` where there is no compiler.
    """
    begin_compiling()


@frozen
class ProposalRequest:
    """Input of a proposal: the strategy, its state, and the measurements.

    `count` is the number of requested points.
    """

    name: str
    pruning: Pruning
    seed: int
    aided: bool
    correction: LearnedOrder | None
    first: tuple[ScoredCandidate, ...]
    seen: frozenset[Place]
    known: tuple[Observation, ...]
    best: float
    count: int


class ProposingFactory(Factory):
    """Factory that also makes proposals."""

    def propose(self, problem: TuningTask, request: ProposalRequest) -> tuple[list[ScoredCandidate], frozenset[Place]]:
        """Return a strategy's proposals, and all points proposed or skipped."""
        strategy = _strategy(problem, request)
        strategy.seen = set(request.seen)
        with one_thread():
            found = strategy.propose(request.known, request.best, request.count)
        return found, frozenset(strategy.seen)

    def go_on(self, problem: TuningTask, request: ProposalRequest, hasty: bool) -> list[tuple[Schedule, BuildResult]]:
        """Return a strategy's proposals, built."""
        candidates = [scored.candidate for scored in self.propose(problem, request)[0]]
        return [(c.schedule, self.build(problem, *build_arguments(c, hasty, max_statements_of(c)))) for c in candidates]


def _strategy(problem: TuningTask, request: ProposalRequest) -> Bayes:
    """Return the cached strategy of a request, or a new one."""
    key = problem.key, request.name, request.pruning, request.seed, request.aided, request.correction
    kept = _STRATEGIES.pop(key, None)
    if kept is None:
        space = make_space(problem.form, problem.target)
        made = make_strategy(
            request.name, space, request.first, request.pruning, request.seed, request.aided, request.correction
        )
        assert isinstance(made, Bayes), "others propose where they are"
        kept = made
    _STRATEGIES[key] = kept
    if len(_STRATEGIES) > MAX_STRATEGIES:
        _STRATEGIES.popitem(last=False)
    kept.first = request.first
    return kept


class SearchWorker(ProposingFactory, Worker):
    """Service of a search's worker processes."""


def request_of(
    settings: Settings,
    strategy: Strategy,
    known: Sequence[Observation],
    best: float,
    count: int,
    order: LearnedOrder | None = None,
) -> ProposalRequest | None:
    """Return the request for a strategy's proposals, None for other strategies.

    Only proposals of Bayesian strategies depend on nothing else.
    """
    if not isinstance(strategy, Bayes):
        return None
    return ProposalRequest(
        settings.strategy, settings.pruning, strategy.seed, strategy.aided, order,
        tuple(strategy.first), frozenset(strategy.seen), tuple(known), best, count,
    )  # fmt: skip


def next_request(
    settings: Settings,
    ranked: Sequence[ScoredCandidate],
    times: Mapping[str, float],
    count: int,
    order: LearnedOrder | None = None,
) -> ProposalRequest | None:
    """Return the request for proposals after a search's first points.

    `times` are the results of these points by schedule. The result is None for other strategies, where other points
    were measured, or where none ran.
    """
    kind = STRATEGIES.get(settings.strategy)
    if not (isinstance(kind, type) and issubclass(kind, Bayes) and settings.aided):
        return None
    begun = [
        (s.point, s.candidate.schedule) for s in interleave_structures(ranked)[: min(settings.first, QUICK_CANDIDATES)]
    ]
    points = {schedule_text(schedule): point for point, schedule in reversed(begun) if point is not None}
    texts = dict.fromkeys(schedule_text(schedule) for _, schedule in begun)  # several points may have one schedule
    known = tuple(Observation(points[text], times.get(text, inf)) for text in texts)
    best = min((k.seconds for k in known), default=inf)
    if best == inf or len(ranked) < settings.first or not times.keys() <= texts.keys():
        return None
    seen = frozenset(place_of(point) for point, _ in begun if point is not None)
    return ProposalRequest(
        settings.strategy, settings.pruning, settings.seed, settings.aided, order,
        tuple(ranked), seen, known, best, count,
    )  # fmt: skip
