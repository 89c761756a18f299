"""Learned cost models: recorded spaces, models of measurements, and their evaluation."""

from .correction import LearnedOrder
from .elsewhere import FEWEST_RECALLED
from .gaussian import Beliefs, GaussianProcess, expected_gain
from .rescoring import recalled_points, rescored

__all__ = [
    "FEWEST_RECALLED",
    "Beliefs",
    "GaussianProcess",
    "LearnedOrder",
    "expected_gain",
    "recalled_points",
    "rescored",
]
