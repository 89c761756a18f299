"""Measurement of launches of several groups.

Workers build them and compute their expected outputs; the device checks and times them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from attrs import evolve

from ...ir import Target, member_name
from ...passes import Member, join_forms
from ..building import BuildResult, Job, JobResult
from ..database import KernelTime
from ..tasks import BundleMember, Reference, TuningTask
from .resources import Resources

#: Timed runs of each launch.
TIMED_RUNS = 10


def measure_launches(
    resources: Resources, launches: Mapping[str, tuple[TuningTask, Sequence[BundleMember]]]
) -> Iterator[tuple[str, KernelTime]]:
    """Yield the time of each launch, by its name, within the budget.

    The time is infinity where the launch fails.
    """
    references: dict[str, object] = {}
    kernels: dict[str, BuildResult] = {}
    waiting = 2 * len(launches)
    resources.drop_queries()
    for name, (problem, members) in launches.items() if not resources.over() else ():
        resources.builder.submit(Job((name, references), "refer", (problem,)))
        resources.builder.submit(Job((name, kernels), "bundle", (problem, members)))
    while waiting and not resources.over():
        with resources.statistics.phase("wait for workers"):
            answers = resources.collect(resources.pause)
        for done in answers:
            name, found = done.job.owner if isinstance(done.job.owner, tuple) else ("", None)
            if not any(found is mine for mine in (references, kernels)):
                resources.receive(done)
                continue
            waiting -= 1
            found[name] = _value(done, found is kernels)
            if isinstance(built := found[name], BuildResult) and built.outcome == "ok":
                resources.keep_built((name, ""), built, done.seconds)
            if name in references and name in kernels:
                built = kernels[name]
                seconds = _seconds(resources, launches[name][0], references[name], built)
                yield name, KernelTime(seconds, built.source)
    if waiting:
        resources.drop()


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


def _value(done: JobResult, kernel: bool) -> object:
    return done.value or (BuildResult(None, outcome="failed", message=done.error) if kernel else None)


def _seconds(resources: Resources, problem: TuningTask, reference: object, built: BuildResult) -> float:
    """Return the time of a launch, infinity where it fails or is wrong."""
    if built.outcome != "ok":
        return inf
    if isinstance(reference, Reference):
        resources.bench.prepare(problem, reference)
    with resources.statistics.phase("check"):
        verdict = resources.bench.check(problem, built)
    if verdict.outcome != "ok":
        return inf
    with resources.statistics.phase("time"):
        return resources.bench.sample(problem, built, TIMED_RUNS).seconds
