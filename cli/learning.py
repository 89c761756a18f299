"""`cuts tune --learn`: what measurements on this machine say of the order of points."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ..backends import find_target
from ..search import Lesson, local_lesson
from . import console
from .options import refuse


def learned_order(arguments: Namespace) -> Lesson | None:
    """Learn from the tuning database and from recorded spaces where that was asked for, and say how well it did."""
    if not getattr(arguments, "learn", False):
        if getattr(arguments, "recorded", None):
            refuse(arguments, ["recorded"], "recorded spaces are read to learn from (--learn)")
        return None
    lesson = local_lesson(find_target(arguments.target), [Path(path) for path in arguments.recorded], console.note)
    for line in lesson.lines():
        console.note(line)
    return lesson
