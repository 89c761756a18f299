"""Library kernels beside generated ones: routines that may take the place of kernels, measured.

A routine is a step like any other (`backends.library.routine`), so the bench checks it against the same reference and
times it with a cold cache. What a routine takes is kept by what it computes, on which machine, and by the library's
version, so that nothing is timed twice; one that fails or is wrong takes forever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import TypeAlias

from attrs import frozen

from ...backends.library import Request, computed_by_some, installed_libraries
from ...ir import Budget, KernelFunction
from ..build import Built
from ..problem import Problem
from ..resources import Resources
from ..settings import Settings

#: Returns the routines that compute what is asked for.
Offers: TypeAlias = Callable[[Request], Sequence[KernelFunction]]
#: A routine must be this much faster than the generated kernel.
GAIN = 1.02
#: Runs of each routine that are timed.
RUNS = 10
#: Part of a budget, and seconds, that are kept back for routines at most; none of a budget that is shorter than the
#: least.
SHARE, MOST, LEAST_BUDGET = 0.05, 3.0, 15.0
#: The stage of a compilation in which routines are timed.
ROUTINES = "libraries"

#: Whether libraries compute a problem, by its key: searches ask several times.
_COMPUTED: dict[str, bool] = {}


@frozen(eq=False)
class Rivalled:
    """A generated kernel that routines may take the place of: its number, its problem, its seconds, which are infinite
    where no clock has seen it, and which arguments are constants.
    """

    number: int
    problem: Problem
    seconds: float
    constants: Collection[str] = ()

    @property
    def whole(self) -> float:
        """What all launches of it take."""
        return self.problem.uses * self.seconds


@frozen
class SubstituteRoutine:
    """A library step that computes a problem, and its seconds."""

    kernel: KernelFunction
    seconds: float


def seconds_for_routines(problems: Sequence[Problem], settings: Settings, budget: Budget) -> float:
    """Return the seconds that are kept back of a budget to time routines for some problems, less what that took so
    far.
    """
    if not (settings.libraries and budget.limited and budget.seconds >= LEAST_BUDGET):
        return 0.0
    if not any(problem.target.dialect == "cuda" and _is_computed(problem) for problem in problems):
        return 0.0
    taken = budget.spent.get(ROUTINES, 0.0)
    return max(0.0, min(SHARE * budget.seconds, MOST) - taken) if installed_libraries() else 0.0


def faster_routines(
    resources: Resources, rivalled: Sequence[Rivalled], offers: Offers, over: Callable[[], bool]
) -> Iterator[tuple[int, SubstituteRoutine]]:
    """Yield the routines that beat generated kernels, by the kernel's number, for those first that take longest. What
    was not timed before is timed until time is `over`.

    Raises `BackendError` where there is no device here.
    """
    for kernel in sorted(rivalled, key=lambda kernel: -kernel.whole):
        routine = fastest_routine(resources, kernel.problem, kernel.constants, offers, over)
        if routine is not None and GAIN * routine.seconds < kernel.seconds:
            yield kernel.number, routine


def fastest_routine(
    resources: Resources, problem: Problem, constants: Collection[str], offers: Offers, over: Callable[[], bool]
) -> SubstituteRoutine | None:
    """Return the fastest routine that is known, or found in time, to compute a problem rightly; nothing where there is
    none.
    """
    request = Request(problem.form, problem.storages, constants)
    found = [SubstituteRoutine(kernel, _seconds(resources, problem, kernel, over)) for kernel in offers(request)]
    best = min(found, key=lambda routine: routine.seconds, default=None)
    return best if best is not None and best.seconds < inf else None


def _seconds(resources: Resources, problem: Problem, kernel: KernelFunction, over: Callable[[], bool]) -> float:
    """Return what a routine takes, infinity where it fails, is wrong, or was not timed before and cannot be now."""
    name = _name(problem, kernel)
    known = resources.database.cost(name)
    if known is None and not over():
        known = _measured(resources, problem, kernel)
        resources.database.keep_cost(name, known)
    return inf if known is None else known


def _measured(resources: Resources, problem: Problem, kernel: KernelFunction) -> float:
    built = Built(kernel)
    with resources.statistics.phase("libraries"):
        if resources.bench.check(problem, built).outcome != "ok":
            return inf
        return resources.bench.sample(problem, built, RUNS).seconds


def _name(problem: Problem, kernel: KernelFunction) -> str:
    """Return under which name the time of a routine is kept: a kernel's name is a digest of what it computes, and a
    problem's key says on which machine.
    """
    return f"routine {kernel.info.get('library', '')} {kernel.name} {problem.key}"


def _is_computed(problem: Problem) -> bool:
    if problem.key not in _COMPUTED:
        _COMPUTED[problem.key] = computed_by_some(Request(problem.form, problem.storages))
    return _COMPUTED[problem.key]
