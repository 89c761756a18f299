"""Sums over rows, divided so that less of rows goes to memory and comes back: totals, weights, squares about means;
and values that are computed again where long sums part their readers.
"""

from .compute_again import compute_again
from .divisors import divide_behind
from .moments import divide_moments
from .totals import sum_rows_first

__all__ = ["compute_again", "divide_behind", "divide_moments", "sum_rows_first"]
