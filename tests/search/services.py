"""Services for child processes that misbehave."""

from __future__ import annotations

import os
import time

from cuts.ir.errors import BackendError


class Slow:
    """Sleeps, or ends the process."""

    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def crash(self) -> None:
        os._exit(3)


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


class Leaving:
    """Ends its process over every unit."""

    def __init__(self, device: str, workers: int) -> None:
        pass

    def search(self, unit: object) -> None:
        os._exit(3)
