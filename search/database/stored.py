"""What the tuning database keeps: trials, winners, and results that travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

#: What may become of a trial.
OUTCOMES = ("ok", "spilled", "wrong", "failed", "timeout")


@frozen
class Trial:
    """What became of one schedule: times in seconds where it ran right, else the reason in `message`.

    `source` is a digest of the kernel's text; a result counts only for the code that it was measured with. It `holds`
    where this version of the compiler writes the same; nothing where nobody looked yet.
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
        """Whether it ran and computed what it must."""
        return self.outcome == "ok" and self.seconds is not None


@frozen
class KernelTime:
    """What a kernel takes, by which it was decided about a group or a launch, and the code that was measured: the
    digest of its text, and its schedule where it has one.
    """

    seconds: float
    source: str
    schedule: str = ""


@frozen
class Winner:
    """The schedule that a finished search chose, its time and spread,
    and how much of the space was looked at or proven slower.
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
    """The best that is known of a problem, whose search is `finished` or not, in a form that any database takes."""

    key: str
    description: str
    label: str
    finished: bool
    winner: Winner


#: What the columns of a winner and of a trial hold.
NUMBER, PERHAPS = (int, float), (int, float, type(None))
WINNER_KINDS = (str, NUMBER, NUMBER, str, NUMBER, NUMBER, NUMBER)
ANSWER_KINDS = (str, str, str, str, str, NUMBER, int)
TIME_KINDS = (NUMBER, str, str)
TRIAL_KINDS = (str, str, PERHAPS, NUMBER, int, str, str, NUMBER, NUMBER)


def fits(row: Sequence[object], kinds: Sequence[Any]) -> bool:
    """Whether a row's values are of the kinds that we write: SQLite keeps whatever it is given."""
    return all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True))
