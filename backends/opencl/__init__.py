"""Running kernels through OpenCL: a device chosen by rule, programs built once, launches timed by events."""

from .device import OpenCLDevice, choose_device
from .transfers import OpenCLTransfers

__all__ = ["OpenCLDevice", "OpenCLTransfers", "choose_device"]
