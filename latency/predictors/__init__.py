"""Regression models of the times of kernels and of layers."""

from .features import selection_features
from .fitting import library
from .layer_model import LayerModel, Options
from .simple_model import OPERATIONS, POINTWISE, POOLS, SimpleModel, fit_all, moved_elements
from .trees import Trees
