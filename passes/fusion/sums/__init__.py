"""Sums over rows, divided so that less of rows goes to memory and comes back: totals, weights, squares about means."""

from .moments import divide_moments

__all__ = ["divide_moments"]
