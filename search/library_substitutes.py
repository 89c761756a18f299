"""Substitution of library routines for slower generated kernels.

One routine replaces one kernel; groups stay as they are, and so do launches that several groups share. (A member of
such a launch keeps its kernel even if a routine is much faster: the launch without it is not measured.) The plan keeps
the generated kernels, for machines without the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf

from attrs import evolve

from ..backends.library import library_kernels
from ..ir import FALLBACK_KEY, BackendError, CompiledGraph, KernelFunction, Step
from .findings import Findings
from .library_routines import MAX_ROUTINE_SECONDS, Offers, ReplaceableKernel, SubstituteRoutine, faster_routines
from .session import TuningSession
from .settings import TunedChoice
from .tasks import TuningTask


def with_libraries(
    compiled: CompiledGraph,
    findings: Findings,
    session: TuningSession,
    last: bool = True,
    offers: Offers = library_kernels,
) -> CompiledGraph:
    """Return a tuned compilation whose kernels compete with library routines.

    Routines are timed in the reserved time. The `last` time, when the search has ended, they may take the rest of the
    budget, but no longer than all stages before.
    """
    if not session.settings.libraries or session.target.dialect != "cuda":
        return compiled
    tuned = {p.key: (p, c) for p, c in findings.pairs}
    rivalled = [
        ReplaceableKernel(number, problem, _seconds(choice), constant_arguments(compiled, number))
        for number, (problem, choice) in _launched_alone(compiled, tuned).items()
    ]
    found: dict[int, SubstituteRoutine] = {}
    executor = session.tuner.executor
    # After an interrupt, or where another process has the device, the routines found so far count.
    with _time_for_routines(session, last) as over, executor.interruptible(), suppress(BackendError):
        found.update(faster_routines(executor, rivalled, offers, over))
    return substitute(compiled, found)


@contextmanager
def _time_for_routines(session: TuningSession, last: bool) -> Iterator[Callable[[], bool]]:
    """Yield a predicate for the end of timing; an early end here leaves searches complete."""
    budget, executor = session.budget, session.tuner.executor
    with budget.final_measurements() as kept, executor.ending_early():
        most = min(budget.remaining(), max(budget.elapsed, MAX_ROUTINE_SECONDS)) if last else kept
        end = budget.elapsed + most
        yield lambda: session.tuner.frozen or budget.over() or budget.elapsed >= end


def _seconds(choice: TunedChoice) -> float:
    return inf if choice.seconds is None else choice.seconds


def _launched_alone(
    compiled: CompiledGraph, tuned: Mapping[str, tuple[TuningTask, TunedChoice]]
) -> dict[int, tuple[TuningTask, TunedChoice]]:
    """Return the tuned kernels with a launch of their own, by number, as records of launches name their task."""
    found = {}
    for step, record in zip(compiled.steps, compiled.groups, strict=True):
        key = str(record.get("tuning", ""))
        if key in tuned and "members" not in record:
            found[step.kernel] = tuned[key]
    return found


def substitute(compiled: CompiledGraph, routines: Mapping[int, SubstituteRoutine]) -> CompiledGraph:
    """Return a compiled graph that launches routines instead of some kernels.

    The replaced kernels are stored after all others.
    """
    if not routines:
        return compiled
    kernels = [_calling(routines[n], k) if n in routines else k for n, k in enumerate(compiled.kernels)]
    kernels += [compiled.kernels[number] for number in sorted(routines)]
    steps = tuple(_rebind(step, compiled.kernels, routines) for step in compiled.steps)
    records = [
        {**record, **_facts(routines[step.kernel], record)} if step.kernel in routines else record
        for step, record in zip(compiled.steps, compiled.groups, strict=True)
    ]
    return evolve(compiled, kernels=tuple(kernels), steps=steps, groups=tuple(records))


def constant_arguments(compiled: CompiledGraph, number: int) -> frozenset[str]:
    """Return the arguments of a kernel that are constants in every launch."""
    arguments = compiled.kernels[number].arguments
    varying = {
        a.tensor
        for step in compiled.steps
        if step.kernel == number
        for a, tensor in zip(arguments, step.tensors, strict=True)
        if tensor not in compiled.graph.constants
    }
    return frozenset(a.tensor for a in arguments) - varying


def _calling(routine: SubstituteRoutine, generated: KernelFunction) -> KernelFunction:
    """Return a routine's step that names the kernel it replaces."""
    return evolve(routine.kernel, info={**routine.kernel.info, FALLBACK_KEY: generated.name})


def _rebind(step: Step, kernels: Sequence[KernelFunction], routines: Mapping[int, SubstituteRoutine]) -> Step:
    """Bind the tensors of a step to the arguments of a routine, which are reordered."""
    if step.kernel not in routines:
        return step
    bound = {a.tensor: t for a, t in zip(kernels[step.kernel].arguments, step.tensors, strict=True)}
    return Step(step.kernel, tuple(bound[a.tensor] for a in routines[step.kernel].kernel.arguments))


def _facts(routine: SubstituteRoutine, record: Mapping[str, object]) -> dict[str, object]:
    """Return the facts of a routine for reports; its parameters are internal to the library."""
    library = routine.kernel.info.get("library", routine.kernel.name)
    before = record.get("measured")
    compared = f", the fastest generated kernel took {float(str(before)) * 1e6:.2f} us" if before is not None else ""
    return {
        "library": library,
        "measured": routine.seconds,
        "parameters": {},
        "schedule": "",
        "why": f"{library} took {routine.seconds * 1e6:.2f} us{compared}",
    }
