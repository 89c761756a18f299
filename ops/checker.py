"""What must hold in a declaration before any shape is known."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.errors import CutsError
from . import syntax as s


def check_op(declaration: s.Declaration, families: Mapping[str, s.Declaration]) -> list[CutsError]:
    """Return every error of a declaration."""
    return []
