"""NVIDIA GPUs through the driver: running kernels, querying and measuring a device."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .device import CudaDevice
    from .launch_sequence import CudaSequenceLauncher
    from .query import query_target
    from .transfers import CudaTransfers

__getattr__ = lazy_exports(__name__)
