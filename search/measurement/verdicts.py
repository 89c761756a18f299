"""Requests to a measuring device, and its answers."""

from __future__ import annotations

from math import inf

from attrs import frozen


@frozen
class Verdict:
    """Result of a kernel's check, with the reason.

    The outcome is "ok", "wrong", "failed", or "refused" by a library that has no routine.
    """

    outcome: str
    message: str = ""


@frozen
class TimingTurns:
    """Kernels of a task to time in turns of `runs` runs.

    Where the first takes more than `most` seconds, the others are not timed.
    """

    kernels: tuple[str, ...]
    runs: int
    most: float = inf


@frozen
class DeviceAnswer:
    """Verdict on a candidate, and the timed kernels' runs.

    The samples are None for a kernel that is not loaded. A kernel that fails is the last, and the reason is `failure`.
    With `lost`, the device is lost: another one answers the same request.
    """

    verdict: Verdict
    samples: tuple[tuple[float, ...] | None, ...] = ()
    failure: str = ""
    lost: bool = False
