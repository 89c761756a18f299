"""A tuning session: workers, the device's process, the database and progress, put together and taken down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve

from ..backends.cuda import find_toolchain
from ..ir import Budget, Target, UsageError
from .bench import DeviceBench
from .build import Workers
from .database import Database, open_database
from .exchange import PACKED, offer_packs
from .interrupts import first_interrupt_stops
from .library import LibraryCandidate
from .progress import make_monitor
from .remote import DaskWorkers, DeviceProcesses, SearchEngine, ShareOut
from .replay import ReplayBench
from .resources import Resources
from .selector import MeasuredSelector
from .settings import Settings
from .tuner import Tuner

#: How every file of SQLite begins.
_SQLITE = b"SQLite format 3\0"


@contextmanager
def tuning_session(
    target: Target,
    *,
    budget: Budget | float | None = None,
    frozen: bool = False,
    settings: Settings | None = None,
    workers: int | None = None,
    evaluate: bool = True,
    libraries: Sequence[LibraryCandidate] = (),
    audit: int = 0,
    replay: Path | None = None,
    further: bool = False,
    guesses: bool = False,
    fresh: bool = False,
    devices: Sequence[str] = (),
    scheduler: str = "",
    quiet: bool = True,
    notice: Callable[[str], None] = lambda text: None,
) -> Iterator[MeasuredSelector]:
    """Yield a selector for one compilation; everything it started ends with the block.

    The budget runs since it was made, or from now on where it is a number of seconds. The first interrupt from the
    keyboard ends it, so that the compilation goes on with the best so far. With `replay`, a recorded database takes the
    device's place, and nothing of this search is kept. Where the final plan of a graph is known, only `further`
    searches on. With `frozen` and `guesses`, the model's choice stands in for results that miss. A `fresh`
    session knows nothing of earlier ones nor of packs, and keeps nothing. Problems are shared out among several
    `devices` of this host, or among the workers of a Dask `scheduler`, where these are given.
    """
    if replay is None and target.dialect == "cuda":
        find_toolchain()  # without one every candidate would fail, which says less than its error
    budget = budget if isinstance(budget, Budget) else Budget.of(budget)
    monitor = make_monitor(quiet)
    database = Database(None) if fresh or replay is not None else open_database(notice)
    if database.path is not None and target.dialect == PACKED:
        offer_packs(database, notice)

    def builder() -> Workers:
        """Start the workers, and the device's process beside them: each takes seconds until it answers."""
        if isinstance(bench := resources.bench, DeviceBench):
            bench.start()
        return Workers(own, *(("cuts.search.replay:ReplayPrinter",) if replay else ()))

    # The devices' processes have workers of their own: what is asked of ours is done between their searches.
    own = (workers or _workers(target)) // (len(devices) + 1 if len(devices) > 1 else 1) or 1
    resources = Resources(
        database,
        builder,
        lambda: DeviceBench(target, over=budget.over) if replay is None else ReplayBench(_recording(replay)),
        budget=budget,
        monitor=monitor,
    )
    engine = None if frozen else _engine(target, devices, scheduler, workers or _workers(target), notice)
    tuner = Tuner(resources, frozen, guesses)
    if engine is not None:
        tuner = evolve(tuner, rounds=lambda resources, settings: ShareOut(engine, resources, settings, notice))
    try:
        with first_interrupt_stops(budget):
            yield MeasuredSelector(
                target, tuner, settings, evaluate=evaluate, libraries=libraries, audit=audit, further=further
            )
    finally:
        if engine is not None:
            engine.close()
        monitor.close()
        resources.close()
        database.close()


def _engine(
    target: Target, devices: Sequence[str], scheduler: str, workers: int, notice: Callable[[str], None]
) -> SearchEngine | None:
    """Return the places that search: a scheduler's workers, or several devices of this host; none where this process
    does it all.
    """
    if scheduler:
        return DaskWorkers(scheduler, target, notice)
    return DeviceProcesses(devices, workers, target) if len(devices) > 1 else None


def _recording(path: Path) -> Database:
    """Open a recorded database, which must be there; a file of another kind is left alone."""
    if not path.is_file():
        raise UsageError(
            f"cannot replay {path}: there is no such file", hint="'cuts cache info' says where the tuning database is"
        )
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            raise UsageError(
                f"cannot replay {path}: it is no tuning database",
                hint="'cuts cache info' says where the tuning database is",
            )
    return Database(path)


def _workers(target: Target) -> int:
    """Return how many processes build candidates: one per core, less where the device is the CPU itself and would be
    disturbed.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2) if target.on_host else cores
