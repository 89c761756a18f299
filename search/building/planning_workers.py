"""Planning workers: processes that answer questions about a graph without measurements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ...ir import CutsError, Target, processor_count
from ...passes import (
    CandidateSubgraph,
    LocalExecutor,
    MemberRow,
    ModelQuery,
    PointsRequest,
    ScheduleRequest,
    Workload,
)
from ...passes.fusion import form_key
from .factory import COMPILE_LIMIT, Factory
from .workers import Job, Workers

A = TypeVar("A")
#: Smallest number of queries for which workers are started, and shared: each worker imports its modules for up to a
#: second, a fragment is partitioned in half a second, a candidate chosen in a tenth of one.
MIN_PLANNING_QUERIES = 4


#: Service of planning workers: they compile nothing.
PLANNING_SERVICE = "cuts.search.building.factory:Worker"


#: Methods of workers that answer questions without measurements.
PLANNING_METHODS: dict[type[ModelQuery[Any]], str] = {
    CandidateSubgraph: "plan",
    ScheduleRequest: "choose",
    MemberRow: "bundle_row",
    PointsRequest: "points",
}


#: Smallest number of nodes of a graph for which workers start while its groups are formed, the largest number of
#: workers, and the jobs of each that are queued or running.
MIN_PLANNING_NODES, MAX_PLANNING_WORKERS, JOBS_PER_WORKER = 24, 8, 2


class PlanningWorkers(LocalExecutor):
    """Workers that plan a graph without measurements.

    This process answers queries too, from the last one on. There is a worker for each further one of the `processors`.
    They start at once where a graph has many nodes, else with the first queries. Schedules of a likely plan, for a
    `target`, are chosen while the groups are formed.
    """

    def __init__(self, nodes: int = 0, processors: int | None = None, target: Target | None = None) -> None:
        self._count = min((processors or processor_count()) - 1, MAX_PLANNING_WORKERS)
        self._workers: Workers | None = None
        self._target = target
        self._factory = Factory()
        self._waiting = deque[Job]()
        self._answers = dict[Hashable, Any]()
        self._begun = dict[Hashable, ModelQuery[Any]]()
        if nodes >= MIN_PLANNING_NODES and self._count:
            self._workers = Workers(self._count, PLANNING_SERVICE)

    def __enter__(self) -> PlanningWorkers:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._workers is not None:
            self._workers.close()

    def prepare(self, kernels: Callable[[], Iterable[Workload]], further: bool = False) -> None:
        """Choose the schedules of a likely plan."""
        if self._workers is None or self._target is None:
            return
        for kernel in kernels():
            self._begin(ScheduleRequest(kernel.form, self._target))
        self.poll()

    def poll(self, timeout: float = 0.0) -> None:
        """Receive answers within `timeout` seconds, and give workers further questions."""
        if self._workers is None or len(self._answers) == len(self._begun):
            return
        for done in self._workers.collect(timeout):
            self._answers[done.job.owner] = None if done.error else done.value
        while self._waiting and self._workers.load < JOBS_PER_WORKER * self._workers.size:
            self._workers.submit(self._waiting.popleft())

    def submit(self, requests: Sequence[ModelQuery[A]]) -> Callable[[], Sequence[A | None]]:
        """Have workers answer questions; this process answers the others."""
        known = [request for request in requests if _key(request) in self._begun]
        if not self._count or (len(requests) < MIN_PLANNING_QUERIES and not known):
            return lambda: [request.answer_here() for request in requests]
        if self._workers is None:
            self._workers = Workers(min(self._count, len(requests)), PLANNING_SERVICE)
        self._drop_unwanted({_key(request) for request in requests})
        keys = [self._begin(request) for request in requests]
        self.poll()
        return lambda: self._receive(keys, requests)

    def _drop_unwanted(self, wanted: set[Hashable]) -> None:
        """Drop queued questions about schedules that the plan does not need."""
        for job in [job for job in self._waiting if job.method == "choose" and job.owner not in wanted]:
            self._waiting.remove(job)
            del self._begun[job.owner]

    def _begin(self, request: ModelQuery[Any]) -> Hashable:
        """Queue a question once, and return its key."""
        key = _key(request)
        if key not in self._begun:
            self._begun[key] = request
            self._waiting.append(Job(key, PLANNING_METHODS[type(request)], (request,), limit=COMPILE_LIMIT))
        return key

    def _receive(self, keys: Sequence[Hashable], requests: Sequence[ModelQuery[Any]]) -> list[Any]:
        """Return answers; meanwhile this process answers the last questions."""
        assert self._workers is not None, "they were asked"
        wanted = set(keys)
        while not wanted <= self._answers.keys():
            own = next((job for job in reversed(self._waiting) if job.owner in wanted), None)
            if own is not None:
                self._waiting.remove(own)
                self._answers[own.owner] = self._answer(own)
            self.poll(COMPILE_LIMIT if own is None else 0.0)
        found = [self._answers[key] for key in keys]
        return [r.answer_here() if value is None else value for r, value in zip(requests, found, strict=True)]

    def _answer(self, job: Job) -> Any:
        """Return this process's answer, without errors."""
        with suppress(CutsError):
            return getattr(self._factory, job.method)(*job.arguments)
        return None


def _key(request: ModelQuery[Any]) -> Hashable:
    """Return a key of equal questions."""
    return (
        (form_key(request.form), request.target, request.pruning)
        if isinstance(request, ScheduleRequest)
        else id(request)
    )
