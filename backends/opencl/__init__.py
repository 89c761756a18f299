"""OpenCL: device choice, shared programs, launches timed by events."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .device import OpenCLDevice, build_options
    from .device_choice import choose_device, device_context, opencl_library
    from .launch_sequence import OpenCLSequenceLauncher
    from .programs import programs_of
    from .transfers import OpenCLTransfers

__getattr__ = lazy_exports(__name__)
