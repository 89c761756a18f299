"""Compilers of CUDA sources: NVRTC of two versions, nvcc, and their cubins."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .binaries import complete_binaries
    from .cubins import (
        Cubin,
        begin_compiling,
        compile_kernel,
        compile_kernels,
        find_toolchain,
        toolchains,
    )
    from .toolchain import architecture_number

__getattr__ = lazy_exports(__name__)
