"""OpenCL: device choice, shared programs, launches timed by events."""

from .device import OpenCLDevice
from .device_choice import choose_device
from .launch_sequence import OpenCLSequenceLauncher
from .transfers import OpenCLTransfers
