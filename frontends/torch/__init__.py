"""PyTorch's modules and exported programs as graphs."""

from .archive import load_archive
from .dynamo import dynamo_backend
from .load import Captured

__all__ = ["Captured", "dynamo_backend", "load_archive"]
