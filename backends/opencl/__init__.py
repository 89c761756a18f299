"""Running kernels through OpenCL: a device chosen by rule, programs built once, launches timed by events."""

from .device import OpenCLDevice, choose_device

__all__ = ["OpenCLDevice", "choose_device"]
