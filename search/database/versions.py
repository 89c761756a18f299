"""Validity of stored results for this version of the compiler.

Times are tied to a digest of the measured kernel's text, and to nothing else: a change of the compiler that prints the
same kernel keeps them. Printing takes a while, so the database stores the digests that a version of the compiler
prints: the validity of most entries is then known at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path

from ...store import RowFile, compiler_digest, model_digest
from .records import TIME_KINDS, KernelTime, fits
from .schema import SCHEMA, UPGRADES, VERSION


class VersionedFile(RowFile):
    """Database file that stores this `version`'s sources and predictions."""

    def __init__(self, path: Path | None, notice: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(path, SCHEMA, VERSION, notice, UPGRADES)
        self.version = compiler_digest()

    @cached_property
    def model_version(self) -> str:
        """Version of the cost model, computed in a search only."""
        return model_digest()

    def current_sources(self, points: Collection[str]) -> dict[str, str]:
        """Return known digests of this version's sources, for points and launches."""
        query = "select source from written where point = ? and version = ?"
        rows = {point: self.row(query, point, self.version) for point in points}
        return {point: row[0] for point, row in rows.items() if row is not None and isinstance(row[0], str)}

    def note_sources(self, sources: Mapping[str, str]) -> None:
        """Store the digests of this version's sources, for points and launches."""
        rows = [(point, source, self.version) for point, source in sources.items()]
        self.write("insert or replace into written values (?, ?, ?)", *rows)

    # ---- times for decisions about groups and launches

    def time(self, name: str) -> KernelTime | None:
        """Return a stored time of any version."""
        row = self.row("select seconds, source, schedule from times where name = ?", name)
        return KernelTime(*row) if row and fits(row, TIME_KINDS) else None

    def keep_time(self, name: str, time: KernelTime) -> None:
        """Store a time."""
        self.write("insert or replace into times values (?, ?, ?, ?)", (name, time.seconds, time.source, time.schedule))

    # ---- predictions of the cost model, which are slow to compute

    def predicted_seconds(self, name: str) -> float | None:
        """Return this version's stored prediction."""
        query = "select seconds from expected where name = ? and version = ?"
        row = self.row(query, name, self.model_version)
        return float(row[0]) if row and isinstance(row[0], (int, float)) else None

    def keep_prediction(self, name: str, seconds: float) -> None:
        """Store a prediction."""
        self.write("insert or replace into expected values (?, ?, ?)", (name, seconds, self.model_version))
