"""Records of the tuning database: measurements, winners, portable results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

#: Outcomes of a measurement.
OUTCOMES = ("ok", "spilled", "wrong", "failed", "timeout")


@frozen
class Measurement:
    """Measurement of one schedule: seconds of correct runs, else the error message.

    `source` is a digest of the kernel's text; a result is valid only for the measured code. It `holds` where this
    version of the compiler prints the same, and is None where that is unknown.
    """

    schedule: str
    outcome: str
    seconds: float | None = None
    spread: float = 0.0
    registers: int = 0
    source: str = ""
    message: str = ""
    bound: float = 0.0
    score: float = 0.0
    holds: bool | None = field(default=None, eq=False)

    @property
    def ok(self) -> bool:
        """True if it ran and was correct."""
        return self.outcome == "ok" and self.seconds is not None


@frozen
class KernelTime:
    """Time of a kernel for decisions about groups and launches.

    It has the digest of the measured text, and the schedule where there is one.
    """

    seconds: float
    source: str
    schedule: str = ""


@frozen
class Winner:
    """Chosen schedule of a finished search, with its time and spread.

    It includes the number of measured points and the share that is proven slower.
    """

    schedule: str
    seconds: float
    spread: float
    source: str = ""
    trials: int = 0
    points: float = 0.0
    proven: float = 0.0


@frozen
class Result:
    """Best result of a task, portable between databases.

    The search is `finished` or not.
    """

    key: str
    description: str
    label: str
    finished: bool
    winner: Winner


#: Types of the columns of records.
NUMBER, PERHAPS = (int, float), (int, float, type(None))
WINNER_KINDS = (str, NUMBER, NUMBER, str, NUMBER, NUMBER, NUMBER)
ANSWER_KINDS = (str, str, str, str, str, NUMBER, int)
TIME_KINDS = (NUMBER, str, str)
TRIAL_KINDS = (str, str, PERHAPS, NUMBER, int, str, str, NUMBER, NUMBER)


def fits(row: Sequence[object], kinds: Sequence[Any]) -> bool:
    """Return whether a row has the types that this code writes.

    SQLite stores values of any type.
    """
    return all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True))
