"""What of a database is of this version of the compiler.

Times are tied to a digest of the text of the kernel that was measured, and to nothing else: an edit of the compiler
that writes this kernel as before leaves them as they are. To write a kernel takes a while, so the database remembers
what a version of the compiler writes: of most entries it is then known at once whether they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path

from ...backends import compiler_digest, model_digest
from .file import DatabaseFile
from .stored import TIME_KINDS, KernelTime, fits


class VersionedFile(DatabaseFile):
    """Knows what this `version` of the compiler writes, and what its model expects."""

    def __init__(self, path: Path | None, notice: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(path, notice)
        self.version = compiler_digest()

    @cached_property
    def model_version(self) -> str:
        """The version of the model, which is asked for in a search only."""
        return model_digest()

    def sources_today(self, points: Collection[str]) -> dict[str, str]:
        """Return the digests of what is written for points, and for launches, as far as somebody looked."""
        query = "select source from written where point = ? and version = ?"
        with self.errors() as db:
            rows = {point: db.execute(query, (point, self.version)).fetchone() for point in points}
        return {point: row[0] for point, row in rows.items() if row is not None and isinstance(row[0], str)}

    def note_sources(self, sources: Mapping[str, str]) -> None:
        """Remember the digests of what is written for points, and for launches."""
        rows = [(point, source, self.version) for point, source in sources.items()]
        with self.errors() as db:
            db.executemany("insert or replace into written values (?, ?, ?)", rows)

    # ---- times by which it is decided about groups and launches

    def time(self, name: str) -> KernelTime | None:
        """Return a kept time, of whatever version it is."""
        with self.errors() as db:
            row = db.execute("select seconds, source, schedule from times where name = ?", (name,)).fetchone()
        return KernelTime(*row) if row and fits(row, TIME_KINDS) else None

    def keep_time(self, name: str, time: KernelTime) -> None:
        """Keep a time."""
        with self.errors() as db:
            db.execute(
                "insert or replace into times values (?, ?, ?, ?)", (name, time.seconds, time.source, time.schedule)
            )

    # ---- what the model expects, which is slow to compute again

    def expected(self, name: str) -> float | None:
        """Return what the model of this version expects."""
        query = "select seconds from expected where name = ? and version = ?"
        with self.errors() as db:
            row = db.execute(query, (name, self.model_version)).fetchone()
        return float(row[0]) if row and isinstance(row[0], (int, float)) else None

    def keep_expected(self, name: str, seconds: float) -> None:
        """Keep what the model expects."""
        with self.errors() as db:
            db.execute("insert or replace into expected values (?, ?, ?)", (name, seconds, self.model_version))
