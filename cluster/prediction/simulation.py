"""Discrete-event simulation of a schedule, with a queue for each stream.

Compute goes in the order of the schedule. Storage and links take the ready task that is first in the schedule. Each
data-parallel group and each GPU of a layer does the same at the same time, so one of them stands for all.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Generator
from typing import Any

from attrs import frozen

from ...ir import UsageError
from ..plans import Machine, Transformer, Way
from .tasks import StreamTask, tasks

#: Tasks beyond which a simulation takes minutes.
MAX_TASKS = 3_000_000


@frozen
class Simulation:
    """Result of a simulation.

    It has the `seconds` in all, `moved` (stage, kind) -> bytes, `busy` (stage, stream) -> seconds, `passes` until the
    optimiser.
    """

    seconds: float
    passes: float
    moved: dict[tuple[int, str], float]
    busy: dict[tuple[int, str], float]
    tasks: int

    def sum(self, stage: int, *prefixes: str) -> float:
        """Return the bytes of a stage's tasks with some name prefixes."""
        return sum(
            nbytes for (where, what), nbytes in self.moved.items() if where == stage and what.startswith(prefixes)
        )

    @property
    def idle(self) -> float:
        """Return the idle part of the busiest compute stream's passes."""
        busiest = max((s for (_, stream), s in self.busy.items() if stream == "compute"), default=0.0)
        return 1 - busiest / self.passes if self.passes else 0.0


def simulate(model: Transformer, machine: Machine, way: Way, *, training: bool = True) -> Simulation:
    """Simulate one mini-batch of a way.

    Raises `UsageError` where its numbers do not divide or it has too many steps.
    """
    _check(model, way)
    return run_tasks(tasks(model, machine, way, training=training))


def _check(model: Transformer, way: Way) -> None:
    if model.layers % way.p or model.batch % (way.dp * way.micro) or model.groups % way.wp:
        raise UsageError(f"{model.name}: {way.text}: layers, heads or the mini-batch do not divide")
    steps = 2 * (model.layers + 2) * (model.batch // (way.dp * way.micro))
    if 6 * steps > MAX_TASKS:
        raise UsageError(
            f"{model.name}: {steps} steps are too many to simulate",
            hint="use a smaller mini-batch or larger micro-batches",
        )


def run_tasks(work: list[StreamTask]) -> Simulation:
    """Run tasks through SimPy's event loop."""
    from .simpy_loop import environment

    env = environment()
    done = [env.event() for _ in work]
    queues: dict[tuple[int, str], list[StreamTask]] = defaultdict(list)
    for task in work:
        queues[task.stage, task.stream].append(task)
    busy: dict[tuple[int, str], float] = {}
    ends = [0.0] * len(work)
    for key, queue in queues.items():
        env.process(_stream(env, queue, done, ends, in_order=key[1] == "compute"))
        busy[key] = sum((task.seconds for task in queue), 0.0)
    env.run()
    missing = next((task for task, event in zip(work, done, strict=True) if not event.triggered), None)
    assert missing is None, f"the schedule waits for itself at {missing}"
    moved: dict[tuple[int, str], float] = defaultdict(float)
    for task in work:
        moved[task.stage, task.term] += task.nbytes
    passes = max(
        (end for task, end in zip(work, ends, strict=True) if not task.term.startswith("optimiser")), default=0.0
    )
    return Simulation(float(env.now), passes, dict(moved), dict(busy), len(work))


def _stream(
    env: Any, queue: list[StreamTask], done: list[Any], ends: list[float], *, in_order: bool
) -> Generator[Any, Any, None]:
    """Take the tasks of one stream: in order, or of those that are ready the one that the schedule has first."""
    if in_order:
        for task in queue:
            for other in task.after:
                if not done[other].processed:
                    yield done[other]
            yield env.timeout(task.seconds)
            ends[task.number] = env.now
            done[task.number].succeed()
        return
    ready: list[tuple[float, int, StreamTask]] = []
    wake = [env.event()]

    def arm(task: StreamTask) -> None:
        waiting = [other for other in task.after if not done[other].processed]
        left = [len(waiting)]

        def on_done(_: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                push(task)

        for other in waiting:
            done[other].callbacks.append(on_done)
        if not waiting:
            push(task)

    def push(task: StreamTask) -> None:
        heapq.heappush(ready, (task.order, task.number, task))
        if not wake[0].triggered:
            wake[0].succeed()

    for task in queue:
        arm(task)
    for _ in queue:
        while not ready:
            wake[0] = env.event()
            if not ready:
                yield wake[0]
        _, _, task = heapq.heappop(ready)
        yield env.timeout(task.seconds)
        ends[task.number] = env.now
        done[task.number].succeed()
