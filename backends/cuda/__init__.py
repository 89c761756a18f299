"""NVIDIA GPUs: compiling and running kernels, querying and measuring a device."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .compile import Cubin, begin_compiling, compile_kernel, compile_kernels, find_toolchain, toolchains
    from .device import CudaDevice
    from .launch_sequence import CudaSequenceLauncher
    from .query import query_target
    from .transfers import CudaTransfers

__getattr__ = lazy_exports(__name__)
