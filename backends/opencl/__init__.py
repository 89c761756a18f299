"""OpenCL: device choice, shared programs, launches timed by events."""

from .device import OpenCLDevice, build_options
from .device_choice import choose_device, device_context, opencl_library
from .launch_sequence import OpenCLSequenceLauncher
from .programs import programs_of
from .transfers import OpenCLTransfers
