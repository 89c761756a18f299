"""Builds of a plan's kernels by workers.

Kernels that workers built for timing are reused, and workers build the others in parallel; the time of that is
estimated from earlier builds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from ...ir import KernelFunction, Schedule, Target, processor_count
from ..building import BuildResult, Job, JobResult
from ..tasks import BundleMember, TuningTask, launch_name, schedule_text
from ..tuner import SearchExecutor

#: Seconds of a kernel for lowering and printing, for compilation by a core, and for this process after scheduling:
#: launch, record, buffers and place in a plan. The first two are used until workers have built some (163 kernels of a
#: training step of ResNet-50 took 6.2 s to lower, and 6.9 s to compile on 16 cores of an H200's host). The third took
#: 17 ms on a simulated host, nearly twice that with busy cores.
LOWERING_SECONDS, COMPILE_SECONDS, RECORD_SECONDS = 0.04, 0.7, 0.02
#: Number of missing kernels below which this process builds them itself.
MIN_WORKER_BUILDS = 3
#: Key of a kernel: a task and a schedule of it, or the name of a launch.
Place: TypeAlias = tuple[str, str]
#: Seconds between two checks of the budget, and the priority of kernels that are needed now.
POLL_SECONDS, URGENT_PRIORITY = 0.05, -3.0


def build_kernels(
    executor: SearchExecutor, wanted: Mapping[Hashable, Job], in_progress: Collection[Place] = ()
) -> dict[Hashable, KernelFunction]:
    """Return kernels of jobs, built by workers within the budget.

    The jobs come from `alone` or `bundle_job`. A kernel that fails is left out. Workers already build those that are
    `coming`, a set that shrinks.
    """
    missing = {job.owner: job for job in wanted.values() if job.owner not in executor.memory.kernels}
    if (
        len(missing) >= MIN_WORKER_BUILDS
        and executor.workers_answered
        and not _target(next(iter(missing.values()))).on_host
    ):
        _build_by_workers(executor, missing, in_progress)
    return {
        key: executor.memory.kernels[job.owner] for key, job in wanted.items() if job.owner in executor.memory.kernels
    }


def kernel_job(problem: TuningTask, schedule: Schedule) -> Job:
    """Return the job that builds the kernel of a task."""
    return Job(kernel_place(problem, schedule), "build", (problem, schedule), (URGENT_PRIORITY,))


def bundle_job(problem: TuningTask, members: Sequence[BundleMember]) -> Job:
    """Return the job that builds the kernel of a shared launch."""
    return Job((launch_name(problem, members), ""), "bundle", (problem, members), (URGENT_PRIORITY,))


def kernel_place(problem: TuningTask, schedule: Schedule) -> Place:
    """Return the key of the kernel of a task and a schedule."""
    return problem.key, schedule_text(schedule)


def job_place(job: Job) -> Place:
    """Return the key of the kernel that a job builds."""
    problem, schedule = job.arguments
    assert isinstance(problem, TuningTask) and isinstance(schedule, Schedule), "that is what is built"
    return kernel_place(problem, schedule)


def _target(job: Job) -> Target:
    problem = job.arguments[0]
    assert isinstance(problem, TuningTask)
    return problem.target


def _build_by_workers(executor: SearchExecutor, missing: Mapping[Place, Job], coming: Collection[Place]) -> None:
    """Build kernels by workers until the budget ends, or longer if this process would take longer."""
    budget, asked = executor.budget, set[Place]()
    waiting = set(missing)
    target = _target(next(iter(missing.values())))
    end = max(budget.seconds, budget.elapsed + building_seconds(executor, target, len(missing), len(missing)))

    def take(place: Place, done: JobResult) -> None:
        waiting.discard(place)
        if isinstance(done.value, BuildResult):
            executor.memory.keep_built(place, done.value, done.seconds)

    executor.drop_queries()
    with executor.interruptible():
        while waiting and not executor.interrupted and budget.elapsed < end:
            for place in waiting.difference(asked, coming if executor.builder.load else ()):
                job = missing[place]
                executor.submit(partial(take, place), job.method, *job.arguments, priority=job.priority)
                asked.add(place)
            executor.receive(POLL_SECONDS)
            waiting -= executor.memory.kernels.keys()
    if waiting:
        executor.drop()


def building_seconds(executor: SearchExecutor, target: Target, kernels: int, new: int) -> float:
    """Return the estimated seconds to build a plan with `new` unbuilt kernels.

    The estimate uses the build times of this compilation, all cores together, if there are any.
    """
    spent, count = executor.statistics.building
    each = spent / count if count else LOWERING_SECONDS + (COMPILE_SECONDS if target.dialect == "cuda" else 0.0)
    alone = target.on_host or not executor.started  # this process lowers them one after another
    return RECORD_SECONDS * kernels + each * new / processor_count() + (LOWERING_SECONDS * kernels if alone else 0.0)
