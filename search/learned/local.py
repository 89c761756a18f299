"""Training on local data: the user's tuning database and recorded spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...ir import Target
from ..database import open_database
from .evaluation import LearnedModel, train_order
from .rank_points import of_database, of_spaces
from .recorded_spaces import read_spaces


def train_locally(target: Target, recorded: Sequence[Path], notice: Callable[[str], None]) -> LearnedModel:
    """Train and evaluate an order for a target's machine."""
    spaces = [space for path in recorded for space in read_spaces(path)]
    database = open_database(notice)
    try:
        return train_order([*of_spaces(spaces), *of_database(database, target)])
    finally:
        database.close()
