"""Running kernels through OpenCL."""

from .device import OpenCLDevice, choose_device

__all__ = ["OpenCLDevice", "choose_device"]
