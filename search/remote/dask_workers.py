"""Places that are workers of a Dask scheduler (`distributed`).

Each does one task at a time. A worker is started with `dask worker ADDRESS --nthreads 1 --no-nanny` or with a nanny, in
an environment that has this package in the same version, and sees the device that it shall use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from ...ir import BackendError, Target, UsageError, install_command, quote
from .share_out import UnitAnswer
from .unit import SearchPlace, SearchUnit, place_here
from .unit_search import search_unit

#: Seconds in which a scheduler must answer.
PATIENCE = 10.0
#: Seconds between two checks of running units.
POLL_SECONDS = 0.02


class DaskWorkers:
    """Workers of a scheduler, later ones included.

    Raises `UsageError` where `distributed` is not installed, the address is none or a worker has another version,
    `BackendError` where the scheduler does not answer.
    """

    def __init__(
        self,
        address: str,
        target: Target,
        notice: Callable[[str], None] = lambda text: None,
        search: Callable[[SearchUnit], object] = search_unit,
        security: Any = None,
    ) -> None:
        self._dask = _import_distributed()
        self._search, self._notice, self._target = search, notice, target
        try:  # a client with an invalid address waits long before it fails
            if not address.startswith("inproc://"):  # within a process there are neither hosts nor ports
                self._dask.comm.get_address_host_port(address)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"scheduler {quote(address)}: expected tcp://HOST:PORT: {error}", hint="'dask scheduler' says its own"
            ) from error
        try:
            self._client = self._dask.Client(address, timeout=PATIENCE, security=security, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise BackendError(
                f"the scheduler {address} does not answer: {error}", hint="start one with 'dask scheduler'"
            ) from error
        self._known: dict[str, bool] = {}
        self._under_way: dict[int, tuple[Any, str, float]] = {}
        try:
            self._query_new_workers()
        except BaseException:
            self._client.close()
            raise

    @property
    def places(self) -> int:
        """Number of workers that may search."""
        return len(self._usable())

    @property
    def free(self) -> int:
        """Number of idle workers."""
        busy = {worker for _, worker, _ in self._under_way.values()}
        return len([w for w in self._usable() if w not in busy])

    def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
        """Send a unit to an idle worker, which must keep it."""
        busy = {worker for _, worker, _ in self._under_way.values()}
        worker = next(w for w in self._usable() if w not in busy)
        future = self._client.submit(
            self._search, unit, workers=[worker], allow_other_workers=False, pure=False, retries=0
        )
        self._under_way[number] = future, worker, time.monotonic() + limit

    def collect(self, timeout: float) -> list[UnitAnswer]:
        """Return finished and lost units."""
        self._wait(timeout)
        found = []
        usable = set(self._usable())
        for number, (future, worker, deadline) in list(self._under_way.items()):
            if future.status == "finished":
                found.append(self._result(number, future, worker))
            elif future.status in ("error", "lost", "cancelled"):
                found.append(UnitAnswer(number, worker, reason=f"worker {worker} was lost over it"))
            elif worker not in usable:
                found.append(UnitAnswer(number, worker, reason=f"worker {worker} is gone"))
            elif time.monotonic() > deadline:
                self.exclude(worker)
                found.append(UnitAnswer(number, worker, reason=f"worker {worker} hangs"))
            else:
                continue
            if future.status == "pending":
                future.cancel(force=True)
            del self._under_way[number]
        return found

    def exclude(self, place: Hashable) -> None:
        """Send no more units to a worker."""
        self._known[str(place)] = False

    def drop(self) -> None:
        """Cancel all running units."""
        for future, _, _ in self._under_way.values():
            future.cancel(force=True)
        self._under_way.clear()

    def close(self) -> None:
        """Leave the scheduler; its workers stay."""
        self.drop()
        self._client.close()

    def _result(self, number: int, future: Any, worker: str) -> UnitAnswer:
        try:
            return UnitAnswer(number, worker, future.result(timeout=PATIENCE))
        except Exception as error:  # Dask raises errors of many kinds where a result is lost in transfer
            return UnitAnswer(number, worker, reason=f"worker {worker}: {type(error).__name__}")

    def _wait(self, timeout: float) -> None:
        """Wait until a unit is finished, in short turns, as every future has a status of its own."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and all(f.status == "pending" for f, _, _ in self._under_way.values()):
            time.sleep(min(POLL_SECONDS, timeout))

    def _usable(self) -> list[str]:
        """Return the workers that may search, new ones included."""
        self._query_new_workers()
        return [w for w in self._addresses() if self._known.get(w, False)]

    def _addresses(self) -> list[str]:
        try:
            return sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        except (KeyError, OSError, TimeoutError):
            return []

    def _query_new_workers(self) -> None:
        """Query new workers; another version is an error with both versions."""
        new = [w for w in self._addresses() if w not in self._known]
        if not new:
            return
        here = place_here(self._target)
        answers = self._client.run(place_here, self._target, workers=new, on_error="ignore")
        for worker, there in answers.items():
            self._known[worker] = isinstance(there, SearchPlace) and self._fits(worker, here, there)

    def _fits(self, worker: str, here: SearchPlace, there: SearchPlace) -> bool:
        if (here.version, here.python) != (there.version, there.python):
            raise UsageError(
                f"worker {worker} has cuts {there.version} with Python {there.python}, "
                f"this is cuts {here.version} with Python {here.python}",
                hint="install the same version there",
            )
        if dict(here.machine) != dict(there.machine):
            self._notice(f"worker {worker} is another machine ({there.machine.get('target', '')}): left out")
            return False
        return True


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "searching with a scheduler needs Dask distributed", hint=install_command("distributed")
        ) from error
    return distributed
