"""Tuning session: starts workers, device process, database and progress, and ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from attrs import evolve

from ..backends.compilers import find_toolchain
from ..ir import Budget, Target, UsageError, processor_count
from ..store import is_row_file
from .analysis import Monitor, make_monitor
from .building import Workers
from .database import PACK_DIALECT, Database, offer_packs, open_database
from .measurement import SERVICE, Bench, DeviceBench, DevicePool, ReplayBench
from .processes import first_interrupt_stops
from .remote import DaskWorkers, RemoteTuningLoop
from .session import TuningSession
from .settings import Settings
from .tuner import SearchExecutor, Tuner


@contextmanager
def tuning_session(
    target: Target,
    *,
    budget: Budget | float | None = None,
    frozen: bool = False,
    settings: Settings | None = None,
    workers: int | None = None,
    evaluate: bool = True,
    audit: int = 0,
    replay: Path | None = None,
    further: bool = False,
    anew: bool = False,
    guesses: bool = False,
    fresh: bool = False,
    devices: Sequence[str] = (),
    scheduler: str = "",
    monitor: Monitor | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> Iterator[TuningSession]:
    """Yield a session for one compilation, and close it with the block.

    The budget runs since it was made, or from now on where it is a number of seconds. The first keyboard interrupt ends
    it, so that the compilation goes on with the best so far. With `replay`, a recorded database replaces the device,
    and no result is stored. Where the final plan of a graph is known, only `further` continues the search,
    and only `anew` searches kernels with a finished result. With `frozen` and `guesses`, the cost model's choice
    replaces missing results. A `fresh` session ignores earlier sessions
    and packs, and stores nothing. Kernels are checked and timed on the given `devices` of this host, each on one of
    them. Tasks are distributed to the workers of a Dask `scheduler` where one is given. A `monitor` shows progress.
    """
    if replay is None and target.dialect == "cuda":
        find_toolchain(target.arch)  # without one every candidate would fail, which says less than its error
    budget = budget if isinstance(budget, Budget) else Budget.of(budget)
    workers = workers or _workers(target)
    with ExitStack() as opened:
        database = opened.enter_context(closing(_database(target, fresh or replay is not None, notice)))
        monitor = monitor or make_monitor(quiet=True)
        device = partial(_device, target, budget, replay, devices, notice)
        executor = opened.enter_context(closing(_executor(database, budget, monitor, workers, device, replay)))
        opened.callback(monitor.close)
        tuner = Tuner(executor, frozen, guesses, anew)
        if scheduler and not frozen:
            engine = DaskWorkers(scheduler, target, notice)
            opened.callback(engine.close)
            tuner = evolve(tuner, make_search=partial(RemoteTuningLoop, engine, notice=notice))
        with first_interrupt_stops(budget):
            yield TuningSession(target, tuner, settings or Settings(), evaluate=evaluate, audit=audit, further=further)


def _database(target: Target, alone: bool, notice: Callable[[str], None]) -> Database:
    """Return the user's database with the results of packs; an empty one with `alone`."""
    if alone:
        return Database(None)
    database = open_database(notice)
    if database.path is not None and target.dialect == PACK_DIALECT:
        offer_packs(database, notice)
    return database


def _executor(
    database: Database,
    budget: Budget,
    monitor: Monitor,
    workers: int,
    device: Callable[[], Bench],
    replay: Path | None,
) -> SearchExecutor:
    """Return the executor of a session."""

    def builder() -> Workers:
        """Start workers and device process concurrently: each takes seconds."""
        executor.bench.start()
        return Workers(workers, *(("cuts.search.measurement.replay:ReplayPrinter",) if replay else ()))

    executor = SearchExecutor(database, builder, device, budget=budget, monitor=monitor)
    return executor


def _device(
    target: Target, budget: Budget, replay: Path | None, devices: Sequence[str], notice: Callable[[str], None]
) -> Bench:
    """Return the bench: a recording, a device, or several devices of this host."""
    if replay is not None:
        return ReplayBench(_recording(replay))
    if not devices:
        return DeviceBench(target, over=budget.over)
    named = {name: DeviceBench(target, service=SERVICE, over=budget.over, device=name) for name in devices}
    return DevicePool(named, notice) if len(named) > 1 else named[devices[0]]


def _recording(path: Path) -> Database:
    """Open a recorded database, which must exist; a file of another kind is not changed."""
    if not path.is_file():
        raise UsageError(
            f"cannot replay {path}: there is no such file", hint="'cuts cache info' says where the tuning database is"
        )
    if not is_row_file(path):
        raise UsageError(
            f"cannot replay {path}: it is no tuning database",
            hint="'cuts cache info' says where the tuning database is",
        )
    return Database(path)


def _workers(target: Target) -> int:
    """Return the number of build processes: one per core, half where the device is the CPU itself."""
    return max(1, processor_count() // 2) if target.on_host else processor_count()
