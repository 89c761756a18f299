"""Rewrites of sums over rows, in order: totals of what rows compute, weights and their sums, squares about means."""

from __future__ import annotations

from .divisors import divide_behind
from .moments import divide_moments
from .programs import Programs
from .totals import sum_rows_first


def rewrite_rows(programs: Programs) -> Programs:
    """Return programs in which less of rows goes to memory and comes back."""
    return divide_moments(divide_behind(sum_rows_first(programs)))
