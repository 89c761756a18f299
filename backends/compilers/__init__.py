"""Compilers of CUDA sources: NVRTC of two versions, nvcc, and their cubins."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .cubins import Cubin, begin_compiling, compile_kernel, compile_kernels, find_toolchain, toolchains

__getattr__ = lazy_exports(__name__)
