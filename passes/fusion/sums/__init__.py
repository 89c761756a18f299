"""Rewrites of sums over rows that reduce memory traffic.

They cover totals, weights, squares about means, and values that are rematerialised where long sums separate their
readers.
"""

from .centre import centre_means
from .check_units import UngroupableUnit, find_ungroupable
from .compute_again import compute_again
from .divisors import divide_behind
from .moments import divide_moments
from .products_again import Family, Way, products_again
from .share_sums import share_sums
from .totals import sum_rows_first

__all__ = [
    "Family",
    "UngroupableUnit",
    "Way",
    "centre_means",
    "compute_again",
    "divide_behind",
    "divide_moments",
    "find_ungroupable",
    "products_again",
    "share_sums",
    "sum_rows_first",
]
