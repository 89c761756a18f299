"""Partial compilation: graphs of PyTorch cut around calls that cannot be imported."""

from .cut_graph import CompiledStages, compile_stages
from .staged_function import StageCall, StagedFunction

__all__ = ["CompiledStages", "StageCall", "StagedFunction", "compile_stages"]
