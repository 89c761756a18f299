"""Routines of vendors' libraries as alternatives to generated kernels.

`routines.py` has their times; `substitute.py`, which needs the session that imports this package, replaces kernels.
"""

from .routines import ROUTINES, seconds_for_routines

__all__ = ["ROUTINES", "seconds_for_routines"]
