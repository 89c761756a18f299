"""Training on local data: the user's tuning database and recorded spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...ir import Target
from ..database import open_database
from .judgement import Lesson, lesson_of
from .rank_points import of_database, of_spaces
from .recorded import read_spaces


def local_lesson(target: Target, recorded: Sequence[Path], notice: Callable[[str], None]) -> Lesson:
    """Train and evaluate an order for a target's machine."""
    spaces = [space for path in recorded for space in read_spaces(path)]
    database = open_database(notice)
    try:
        return lesson_of([*of_spaces(spaces), *of_database(database, target)])
    finally:
        database.close()
