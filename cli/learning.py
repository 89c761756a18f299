"""`cuts tune --learn`: fits the order of candidate schedules to measurements."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ..backends import find_target
from ..search import LearnedModel, train_locally
from .options import refuse
from .output import console


def learned_order(arguments: Namespace) -> LearnedModel | None:
    """Learn from measurements on request, and print the accuracy.

    They are those of the tuning database and recorded spaces.
    """
    if not getattr(arguments, "learn", False):
        if getattr(arguments, "recorded", None):
            refuse(arguments, ["recorded"], "recorded spaces are read to learn from (--learn)")
        return None
    lesson = train_locally(find_target(arguments.target), [Path(path) for path in arguments.recorded], console.note)
    for line in lesson.lines():
        console.note(line)
    return lesson
