"""File format of recorded spaces: compressed JSON lines.

The first line has the format, each further one a space. A point is stored as the text of its schedule, and as its
position in the space of the version that recorded it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, field, frozen

from ...backends import described_device, described_target
from ...ir import Target, UsageError, renew_keywords

#: Written format, and further readable ones: format 1 has no version of its recorder, and both have former keywords in
#: schedules.
FORMAT, EARLIER_FORMATS = 3, (1, 2)


@frozen
class RecordedPoint:
    """Result of a point; `seconds` is the time of `runs` correct runs."""

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
    """Pool of one task on one machine, whose figures are in `target`.

    It is not `whole` where time ended the recording. `version` is that of the recorder: the commit, and a digest of the
    kernel generator.
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
    def recorded_target(self) -> Target:
        """Target of the recorded device, with today's coefficients of the cost model."""
        atoms = tuple((name, clocks) for name, clocks in self.target["atoms"])
        name, arch = self.target["name"], self.target["arch"]
        described = described_device(name, arch) if arch else described_target(self.target["dialect"])
        recorded = {name: value for name, value in self.target.items() if not isinstance(value, Mapping)}
        return evolve(described, **{**recorded, "atoms": atoms})

    @property
    def timed(self) -> int:
        """Number of points that ran correctly."""
        return sum(p.seconds is not None for p in self.points)

    @property
    def best(self) -> float:
        """Shortest time of all."""
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
    if found not in (FORMAT, *EARLIER_FORMATS):
        raise UsageError(f"{path} has format {found} of recorded spaces, this version reads {FORMAT}")
    return [_space(json.loads(line)) for line in lines[1:]]


def _space(values: dict[str, Any]) -> RecordedSpace:
    points = (RecordedPoint(renew_keywords(text), structure, tuple(places), *rest) for text, structure, places, *rest
              in values.pop("points"))  # fmt: skip
    return RecordedSpace(points=tuple(points), **values)
