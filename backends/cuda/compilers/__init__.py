"""Compilers of CUDA sources: their architectures, and NVRTC of two versions."""

from .nvcc import find_nvcc
from .nvrtc import find_nvrtc, find_second_nvrtc
from .toolchain import RejectedSourceError, Toolchain, missing_compiler

__all__ = ["RejectedSourceError", "Toolchain", "find_nvcc", "find_nvrtc", "find_second_nvrtc", "missing_compiler"]
