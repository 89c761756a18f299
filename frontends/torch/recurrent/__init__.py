"""Recurrent layers of PyTorch: core form (`layers`) and capture (`tracing`)."""

from .layers import RECURRENT, ForeignLayerError, compile_layers
from .tracing import allow_layers, layers_apart

__all__ = ["RECURRENT", "ForeignLayerError", "allow_layers", "compile_layers", "layers_apart"]
