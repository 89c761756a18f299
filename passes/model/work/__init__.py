"""What the reductions of a point take, added up: loads, fetches, multiplications of atoms, what lanes do together."""

from .reductions import add_reduction
from .totals import Totals

__all__ = ["Totals", "add_reduction"]
