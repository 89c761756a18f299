"""Recurrent layers of PyTorch: core form (`layers`) and capture (`tracing`)."""

from .layers import RECURRENT, ForeignLayerError, compile_layers, layer_operator
from .tracing import allow_layers, decompose_layers

__all__ = ["RECURRENT", "ForeignLayerError", "allow_layers", "compile_layers", "decompose_layers", "layer_operator"]
