"""Regression models of the times of kernels and of layers."""

from .features import selection_features
from .fitting import library
from .layer_model import LayerModel, Options
from .simple_model import OPERATIONS, POINTWISE, POOLS, SimpleModel, fit_all, fit_simple, moved_elements
from .trees import Trees

__all__ = [
    "OPERATIONS",
    "POINTWISE",
    "POOLS",
    "LayerModel",
    "Options",
    "SimpleModel",
    "Trees",
    "fit_all",
    "fit_simple",
    "library",
    "moved_elements",
    "selection_features",
]
