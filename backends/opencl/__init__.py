"""OpenCL: device choice, shared programs, launches timed by events."""

from .chains import OpenCLChains
from .device import OpenCLDevice, choose_device
from .transfers import OpenCLTransfers

__all__ = ["OpenCLChains", "OpenCLDevice", "OpenCLTransfers", "choose_device"]
