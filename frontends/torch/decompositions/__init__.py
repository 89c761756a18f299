"""Decompositions of PyTorch's operations: their table, and recurrent layers with their capture."""

from .layer_capture import allow_layers, decompose_layers
from .recurrent_layers import ForeignLayerError, compile_layers, layer_operator
from .table import REWRITES, CoreCall, decompositions, is_decomposed, training_decompositions
from .view_strides import trace_eager_views
