"""Routines of vendors' libraries beside generated kernels: what they take (`routines.py`), and how they take the place
of kernels (`substitute.py`, which needs the selector that asks this package).
"""

from .routines import ROUTINES, seconds_for_routines

__all__ = ["ROUTINES", "seconds_for_routines"]
