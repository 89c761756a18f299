"""PyTorch's modules, exported programs and captured graphs as graphs of ours; only this package imports `torch`.

Programs are decomposed to PyTorch's core operations. What each of them means is in `operators`.
"""

from .dynamo import dynamo_backend, matmul_precision
from .load import Captured
from .read import read_torch

__all__ = ["Captured", "dynamo_backend", "matmul_precision", "read_torch"]
