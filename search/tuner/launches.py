"""Measurement of launches of several groups.

Workers build them and compute their expected outputs; the device checks and times them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf

from attrs import evolve

from ...ir import Target, member_name
from ...passes import Member, join_forms
from ..building import BuildResult, JobResult
from ..database import KernelTime
from ..tasks import BundleMember, Reference, TuningTask
from .executor import SearchExecutor

#: Timed runs of each launch.
TIMED_RUNS = 10


def measure_launches(
    executor: SearchExecutor, launches: Mapping[str, tuple[TuningTask, Sequence[BundleMember]]]
) -> Iterator[tuple[str, KernelTime]]:
    """Yield the time of each launch, by its name, within the budget.

    The time is infinity where the launch fails.
    """
    references: dict[str, object] = {}
    kernels: dict[str, BuildResult] = {}
    missing = dict(launches)

    def take_reference(name: str, done: JobResult) -> None:
        references[name] = done.value

    def take_kernel(name: str, done: JobResult) -> None:
        kernels[name] = built = done.value or BuildResult(None, outcome="failed", message=done.error)
        if built.outcome == "ok":
            executor.memory.keep_built((name, ""), built, done.seconds)

    executor.drop_queries()
    for name, (problem, members) in launches.items() if not executor.over() else ():
        executor.submit(partial(take_reference, name), "refer", problem)
        executor.submit(partial(take_kernel, name), "bundle", problem, members)
    while missing and not executor.over():
        with executor.statistics.phase("wait for workers"):
            executor.receive(executor.pause())
        for name in [name for name in missing if name in references and name in kernels]:
            problem, _ = missing.pop(name)
            yield name, KernelTime(_seconds(executor, problem, references[name], kernels[name]), kernels[name].source)
    if missing:
        executor.drop()


def bundle_members(members: Sequence[Member]) -> list[BundleMember]:
    """Return the groups of a launch in the form that workers take."""
    return [(form, candidate.schedule, storages) for form, storages, candidate in members]


def joint_task(members: Sequence[Member], target: Target, machine: Mapping[str, str]) -> TuningTask:
    """Return the joint tuning task of the groups of a launch."""
    storages = {
        member_name(n, t): evolve(storage, buffer=member_name(n, storage.buffer))
        for n, (_, each, _) in enumerate(members)
        for t, storage in each.items()
    }
    form = join_forms([form for form, _, _ in members])
    return TuningTask(form, storages, target, machine, "groups side by side")


def is_faster(seconds: float | None, members: Sequence[Member], alone: Callable[[float], float], tie: float) -> bool:
    """Return whether a launch is faster than its groups one by one.

    `alone` converts a time measured in isolation to a time among other kernels. A group without a measured time counts
    with its cost by the model; a launch without one counts as faster.
    """
    if seconds is None:
        return True
    times = [candidate.measured.get("measured") for _, _, candidate in members]
    known = [alone(t) for t in times if isinstance(t, (int, float))]
    guessed = [c.score for (_, _, c), t in zip(members, times, strict=True) if not isinstance(t, (int, float))]
    return alone(seconds) < (1 - tie) * sum((*known, *guessed))


def _seconds(executor: SearchExecutor, problem: TuningTask, reference: object, built: BuildResult) -> float:
    """Return the time of a launch, infinity where it fails or is wrong."""
    if built.outcome != "ok":
        return inf
    if isinstance(reference, Reference):
        executor.bench.prepare(problem, reference)
    with executor.statistics.phase("check"):
        verdict = executor.bench.check(problem, built)
    if verdict.outcome != "ok":
        return inf
    with executor.statistics.phase("time"):
        return executor.bench.sample(problem, built, TIMED_RUNS).seconds
