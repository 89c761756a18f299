"""Planning workers: processes that answer questions about a graph without measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir import processor_count
from ...passes import CandidateSubgraph, LocalExecutor, MemberRow, ModelQuery, ScheduleRequest
from .factory import COMPILE_LIMIT
from .workers import Job, JobResult, Workers

#: Smallest number of queries, and of cores, for which workers are started: each imports its modules for a second, a
#: fragment is partitioned in half a second, a candidate chosen in a sixth of one.
MIN_PLANNING_QUERIES = 4


#: Service of planning workers: they compile nothing.
PLANNING_SERVICE = "cuts.search.building.factory:Worker"


#: Methods of workers that answer questions without measurements.
PLANNING_METHODS: dict[type[ModelQuery[Any]], str] = {
    CandidateSubgraph: "plan",
    ScheduleRequest: "choose",
    MemberRow: "bundle_row",
}


#: Smallest number of nodes of a graph for which workers start while its groups are formed, and the largest number of
#: workers.
MIN_PLANNING_NODES, MAX_PLANNING_WORKERS = 24, 8


class PlanningWorkers(LocalExecutor):
    """Workers that plan a graph without measurements.

    This process answers queries that workers do not. The workers start at once where a graph has many nodes, else with
    the first query, and not on few `processors`.
    """

    def __init__(self, nodes: int = 0, processors: int | None = None) -> None:
        self._count = min(processors or processor_count(), MAX_PLANNING_WORKERS)
        self._workers: Workers | None = None
        if nodes >= MIN_PLANNING_NODES and self._count >= MIN_PLANNING_QUERIES:
            self._workers = Workers(self._count, PLANNING_SERVICE)

    def __enter__(self) -> PlanningWorkers:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._workers is not None:
            self._workers.close()

    def submit(self, requests: Sequence[ModelQuery[Any]]) -> Callable[[], Sequence[Any]]:
        """Have workers answer questions; this process answers the others."""
        found = self._answers(PLANNING_METHODS[type(requests[0])], requests) if requests else {}
        return lambda: [found[n] if n in found else request.answer_here() for n, request in enumerate(requests)]

    def _answers(self, method: str, asked: Sequence[ModelQuery[Any]]) -> dict[int, Any]:
        """Return the workers' answers to queries, by number, without errors."""
        if min(len(asked), self._count) < MIN_PLANNING_QUERIES:
            return {}
        if self._workers is None:
            self._workers = Workers(min(self._count, len(asked)), PLANNING_SERVICE)
        for number, request in enumerate(asked):
            self._workers.submit(Job(number, method, (request,)))
        done: list[JobResult] = []
        while len(done) < len(asked):
            done += self._workers.collect(COMPILE_LIMIT)
        return {each.job.owner: each.value for each in done if not each.error}
