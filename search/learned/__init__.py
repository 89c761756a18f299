"""Learned cost models: recorded spaces, models of measurements, and their evaluation."""

from .correction import LearnedOrder
from .gaussian import GaussianProcess, Posterior, expected_improvement
from .layer_numbers import layer_numbers
from .rescoring import recalled_points, rescore
from .transfer import MIN_RECALLED
