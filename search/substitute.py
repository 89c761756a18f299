"""Library routines in the place of generated kernels, where they are faster: checked and timed on the same bench, on
the same data.

A routine is a step like any other (`backends.library.routine`), so the tuner's bench checks it against the same
reference and times it with a cold cache. What is replaced is one kernel by one routine; groups stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from statistics import median

from attrs import evolve, frozen

from ..backends.library import Request, library_kernels
from ..ir import CompiledGraph, KernelFunction, Step
from .bench import Bench
from .build import Built
from .problem import Problem
from .selector import MeasuredSelector
from .settings import TunedChoice

#: Returns the routines that compute what is asked for.
Offers = Callable[[Request], Sequence[KernelFunction]]
#: A routine must be this much faster than the generated kernel.
GAIN = 1.02
_RUNS = 10


@frozen
class SubstituteRoutine:
    """A library step that computes a problem, and its seconds."""

    kernel: KernelFunction
    seconds: float


def fastest_routine(
    bench: Bench, problem: Problem, constants: Collection[str] = (), offers: Offers = library_kernels
) -> SubstituteRoutine | None:
    """Return the fastest routine that computes a problem rightly, nothing where there is none."""
    found = []
    for kernel in offers(Request(problem.form, problem.storages, constants)):
        built = Built(kernel)
        if bench.check(problem, built).outcome != "ok":
            continue
        timed = bench.sample(problem, built, _RUNS)
        if timed.verdict.outcome == "ok" and timed.samples:
            found.append(SubstituteRoutine(kernel, median(timed.samples)))
    return min(found, key=lambda routine: routine.seconds, default=None)


def faster_routines(
    bench: Bench,
    problems: Sequence[Problem],
    choices: Sequence[TunedChoice],
    constants: Sequence[Collection[str]],
    offers: Offers = library_kernels,
    over: Callable[[], bool] = lambda: False,
) -> dict[int, SubstituteRoutine]:
    """Return the routines that beat the chosen schedules, by the number of the problem, as far as there is time."""
    found = {}
    for number, (problem, choice, known) in enumerate(zip(problems, choices, constants, strict=True)):
        if over():
            break
        routine = fastest_routine(bench, problem, known, offers)
        if routine is not None and GAIN * routine.seconds < (inf if choice.seconds is None else choice.seconds):
            found[number] = routine
    return found


def substitute(compiled: CompiledGraph, routines: Mapping[int, SubstituteRoutine]) -> CompiledGraph:
    """Return a compiled graph that launches routines in the place of the kernels with these numbers."""
    if not routines:
        return compiled
    kernels = tuple(routines[n].kernel if n in routines else kernel for n, kernel in enumerate(compiled.kernels))
    steps = tuple(_rebound(step, compiled.kernels, routines) for step in compiled.steps)
    records = [
        {**record, **_facts(routines[step.kernel], record)} if step.kernel in routines else record
        for step, record in zip(compiled.steps, compiled.groups, strict=True)
    ]
    return evolve(compiled, kernels=kernels, steps=steps, groups=tuple(records))


def with_libraries(
    compiled: CompiledGraph, selector: MeasuredSelector, offers: Offers = library_kernels
) -> CompiledGraph:
    """Return what a tuned compilation gives when libraries compete with the generated kernels of the selector's
    problems.

    Kernels and problems are in the same order: the pipeline makes one of each per distinct group.
    """
    comparable = (
        selector.target.dialect == "cuda" and selector.complete and len(selector.problems) == len(compiled.kernels)
    )
    if not selector.settings.libraries or not comparable:
        return compiled
    constants = [constant_arguments(compiled, number) for number in range(len(compiled.kernels))]
    resources, over = selector.tuner.resources, selector.budget.over
    found: Mapping[int, SubstituteRoutine] = {}
    with resources.interruptible():
        found = faster_routines(resources.bench, selector.problems, selector.choices, constants, offers, over)
    return substitute(compiled, found)


def constant_arguments(compiled: CompiledGraph, number: int) -> frozenset[str]:
    """Return the arguments of a kernel that are bound to constants wherever it is launched."""
    arguments = compiled.kernels[number].arguments
    varying = {
        a.tensor
        for step in compiled.steps
        if step.kernel == number
        for a, tensor in zip(arguments, step.tensors, strict=True)
        if tensor not in compiled.graph.constants
    }
    return frozenset(a.tensor for a in arguments) - varying


def _rebound(step: Step, kernels: Sequence[KernelFunction], routines: Mapping[int, SubstituteRoutine]) -> Step:
    """Bind the tensors of a step to the arguments of a routine, which has the same ones in an order of its own and no
    tables.
    """
    if step.kernel not in routines:
        return step
    bound = {a.tensor: t for a, t in zip(kernels[step.kernel].arguments, step.tensors, strict=True) if not a.table}
    return Step(step.kernel, tuple(bound[a.tensor] for a in routines[step.kernel].kernel.arguments))


def _facts(routine: SubstituteRoutine, record: Mapping[str, object]) -> dict[str, object]:
    """Return what a report says of a routine; its parameters are the library's own business."""
    library = routine.kernel.info.get("library", routine.kernel.name)
    before = record.get("measured")
    compared = f", the fastest generated kernel took {float(str(before)) * 1e6:.2f} us" if before is not None else ""
    return {
        "library": library,
        "measured": routine.seconds,
        "parameters": {},
        "why": f"{library} took {routine.seconds * 1e6:.2f} us{compared}",
    }
