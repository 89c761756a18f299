"""Ceilings of a CUDA device, measured by kernels that use one resource."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .kernels import empty_kernel
    from .measurement import measure_ceilings
    from .records import calibrate_target, load_ceilings, save_ceilings

__getattr__ = lazy_exports(__name__)
