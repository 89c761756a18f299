"""OpenCL: device choice, shared programs, launches timed by events."""

from .device import OpenCLDevice, choose_device
from .launch_sequence import OpenCLSequenceLauncher
from .transfers import OpenCLTransfers
