"""Library routines as measured alternatives to generated kernels.

A routine is a step like any other (`backends.library.routine`), so the bench checks it against the same reference and
times it with a cold cache. Its time is stored by its computation, the machine and the library's version, so that
nothing is timed twice; a routine that fails or is wrong has an infinite time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import TypeAlias

from attrs import frozen

from ..backends.library import Request, installed_libraries, is_library_computation
from ..ir import Budget, KernelFunction
from .building import BuildResult
from .settings import Settings
from .tasks import TuningTask
from .tuner import SearchExecutor

#: Returns the routines for a requested computation.
Offers: TypeAlias = Callable[[Request], Sequence[KernelFunction]]
#: Required speedup of a routine over the generated kernel.
MIN_SPEEDUP = 1.02
#: Timed runs of each routine.
TIMED_RUNS = 10
#: Largest share of a budget, and seconds, that are reserved for routines, and the shortest budget that reserves any.
MAX_BUDGET_SHARE, MAX_ROUTINE_SECONDS, MIN_BUDGET_SECONDS = 0.05, 3.0, 15.0
#: Stage of a compilation in which routines are timed.
ROUTINES = "libraries"

#: Whether libraries compute a task, by its key: searches ask several times.
_IS_COMPUTED: dict[str, bool] = {}


@frozen(eq=False)
class ReplaceableKernel:
    """Generated kernel that a routine may replace.

    It has its number, tuning task and seconds, which are infinite without a measurement, and its constant arguments.
    """

    number: int
    problem: TuningTask
    seconds: float
    constants: Collection[str] = ()

    @property
    def total_seconds(self) -> float:
        """Time of all its launches."""
        return self.problem.uses * self.seconds


@frozen
class SubstituteRoutine:
    """Library step that computes a task, and its seconds."""

    kernel: KernelFunction
    seconds: float


def seconds_for_routines(problems: Sequence[TuningTask], settings: Settings, budget: Budget) -> float:
    """Return the budget seconds reserved for timing routines of tasks.

    Time that routines took so far is subtracted.
    """
    if not (settings.libraries and budget.is_limited and budget.seconds >= MIN_BUDGET_SECONDS):
        return 0.0
    if not any(problem.target.dialect == "cuda" and _is_computed(problem) for problem in problems):
        return 0.0
    taken = budget.spent.get(ROUTINES, 0.0)
    return (
        max(0.0, min(MAX_BUDGET_SHARE * budget.seconds, MAX_ROUTINE_SECONDS) - taken) if installed_libraries() else 0.0
    )


def faster_routines(
    executor: SearchExecutor, rivalled: Sequence[ReplaceableKernel], offers: Offers, over: Callable[[], bool]
) -> Iterator[tuple[int, SubstituteRoutine]]:
    """Yield the routines that beat generated kernels, by the kernel's number.

    The slowest kernels come first. New routines are timed until time is `over`. Raises `BackendError` where there is no
    device here.
    """
    for kernel in sorted(rivalled, key=lambda kernel: -kernel.total_seconds):
        routine = fastest_routine(executor, kernel.problem, kernel.constants, offers, over)
        if routine is not None and MIN_SPEEDUP * routine.seconds < kernel.seconds:
            yield kernel.number, routine


def fastest_routine(
    executor: SearchExecutor, problem: TuningTask, constants: Collection[str], offers: Offers, over: Callable[[], bool]
) -> SubstituteRoutine | None:
    """Return the fastest correct routine of a task, None without one."""
    request = Request(problem.form, problem.storages, constants)
    found = [SubstituteRoutine(kernel, _seconds(executor, problem, kernel, over)) for kernel in offers(request)]
    best = min(found, key=lambda routine: routine.seconds, default=None)
    return best if best is not None and best.seconds < inf else None


def _seconds(executor: SearchExecutor, problem: TuningTask, kernel: KernelFunction, over: Callable[[], bool]) -> float:
    """Return the time of a routine; infinity where it fails, is wrong, or cannot be timed now."""
    name = _name(problem, kernel)
    known = executor.database.cost(name)
    if known is None and not over():
        known = _measure(executor, problem, kernel)
        executor.database.keep_cost(name, known)
    return inf if known is None else known


def _measure(executor: SearchExecutor, problem: TuningTask, kernel: KernelFunction) -> float:
    built = BuildResult(kernel)
    with executor.statistics.phase("libraries"):
        if executor.bench.check(problem, built).outcome != "ok":
            return inf
        return executor.bench.sample(problem, built, TIMED_RUNS).seconds


def _name(problem: TuningTask, kernel: KernelFunction) -> str:
    """Return the database key of a routine's time.

    A kernel's name is a digest of its computation, and a task's key includes the machine.
    """
    return f"routine {kernel.info.get('library', '')} {kernel.name} {problem.key}"


def _is_computed(problem: TuningTask) -> bool:
    if problem.key not in _IS_COMPUTED:
        _IS_COMPUTED[problem.key] = is_library_computation(Request(problem.form, problem.storages))
    return _IS_COMPUTED[problem.key]
