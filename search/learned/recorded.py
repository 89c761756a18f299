"""Recorded spaces as a file: JSON lines, packed; the first line of a file says its format, each further one is a space.

A point is kept as the text of its schedule, and as where it lay in the space of the version that recorded it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from ...ir import Target, UsageError

#: What is written, and what is read besides: until format 2 nothing said which version recorded a space.
FORMAT, EARLIER = 2, (1,)


@frozen
class RecordedPoint:
    """What became of a point; `seconds` is what `runs` runs took where it ran and was right."""

    schedule: str
    structure: int
    places: tuple[int, ...]
    outcome: str
    seconds: float | None = None
    spread: float = 0.0
    registers: int = 0
    runs: int = 0


@frozen
class RecordedSpace:
    """The pool of one problem on one machine, of which `target` has the figures; it is not `whole` where time ended the
    recording. `version` says what recorded it: the commit, and a digest of what makes kernels.
    """

    label: str
    key: str
    work: str
    machine: Mapping[str, str]
    target: Mapping[str, Any]
    points: tuple[RecordedPoint, ...]
    whole: bool = True
    version: Mapping[str, str] = field(factory=dict)

    @property
    def described(self) -> Target:
        """The target whose device it was recorded on."""
        atoms = tuple((name, clocks) for name, clocks in self.target["atoms"])
        return Target(**{**self.target, "atoms": atoms})

    @property
    def timed(self) -> int:
        """Points that ran and were right."""
        return sum(p.seconds is not None for p in self.points)

    @property
    def best(self) -> float:
        """The least time met."""
        return min(p.seconds for p in self.points if p.seconds is not None)


def write_spaces(path: Path, spaces: Iterable[RecordedSpace]) -> None:
    """Write a file of recorded spaces."""
    lines = [json.dumps({"recorded spaces": FORMAT})]
    for space in spaces:
        values: dict[str, Any] = {**asdict(space), "points": [list(asdict(p).values()) for p in space.points]}
        lines.append(json.dumps(values))
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 9, mtime=0))


def read_spaces(path: Path) -> list[RecordedSpace]:
    """Read a file of recorded spaces.

    Raises `UsageError` where it is none, or of a newer format.
    """
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        head = json.loads(lines[0])
        found = head["recorded spaces"]
    except (OSError, EOFError, ValueError, IndexError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no recorded spaces: {error}") from error
    if found not in (FORMAT, *EARLIER):
        raise UsageError(f"{path} has format {found} of recorded spaces, this version reads {FORMAT}")
    return [_space(json.loads(line)) for line in lines[1:]]


def _space(values: dict[str, Any]) -> RecordedSpace:
    points = (RecordedPoint(text, structure, tuple(places), *rest) for text, structure, places, *rest
              in values.pop("points"))  # fmt: skip
    return RecordedSpace(points=tuple(points), **values)
