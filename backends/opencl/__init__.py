"""OpenCL: device choice, shared programs, launches timed by events."""

from .device import OpenCLDevice, build_options, choose_device
from .launch_sequence import OpenCLSequenceLauncher
from .programs import programs_of
from .transfers import OpenCLTransfers
