"""Services for child processes that misbehave."""

from __future__ import annotations

import os
import resource
import signal
import time

from cuts.ir.errors import BackendError


class Slow:
    """Sleeps, or ends the process."""

    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def crash(self) -> None:
        os._exit(3)

    def fault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def faults(self, times: int) -> int:
        """Return the number of new pages of repeated allocations.

        Twenty megabytes are allocated and freed.
        """
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(times):
            [b"x" * (1 << 16) for _ in range(320)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def process_ids(self) -> tuple[int, int]:
        """Return which process this is, and which made it."""
        return os.getpid(), os.getppid()


class Multiplying:
    """Multiplies matrices."""

    def product(self) -> tuple[float, int]:
        """Return an element of a product, and the library's thread count."""
        import numpy as np
        from threadpoolctl import threadpool_info

        square = np.ones((400, 400))
        found = float((square @ square)[0, 0])
        return found, max(each["num_threads"] for each in threadpool_info())


class Hanging:
    """Measures one system for ever, and fails on the others."""

    def measure(self, system: str) -> dict[str, object]:
        if system == "PyTorch":
            time.sleep(300)
        raise RuntimeError("out of memory")


class Broken:
    """Cannot be made."""

    def __init__(self, target: object = None) -> None:
        raise BackendError("no device of this kind")


class Counting:
    """Counter of the calls of one process."""

    def __init__(self) -> None:
        self.calls = 0

    def measure(self, system: str) -> dict[str, int]:
        """Return how often it was asked."""
        self.calls += 1
        return {"calls": self.calls}


class Unready(Slow):
    """Takes for ever to be made."""

    def __init__(self) -> None:
        time.sleep(300)
