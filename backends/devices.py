"""Finding a target by its name and opening its device: the one place that knows all kinds of devices."""

from __future__ import annotations

from ..ir import BackendError, Target
from .chains import Chains
from .device import Device
from .targets import DEFAULT_CUDA, described_target
from .transfers import Transfers


def find_target(name: str) -> Target:
    """Return the target called `name`: a dialect, or `dialect:architecture`, or `dialect:alias`.

    Plain "cuda" is the device of this machine when there is one, otherwise the described H200; "cuda:device" insists on
    the device. Raises `UsageError` for an unknown name and `BackendError` where "cuda:device" finds none.
    """
    dialect, _, key = name.strip().lower().partition(":")
    if dialect == "cuda" and key in ("", "device"):
        return _cuda_device(required=key == "device")
    return described_target(name)


def _cuda_device(required: bool) -> Target:
    from .cuda import query_target

    try:
        return query_target()
    except BackendError:
        if required:
            raise
        return described_target(DEFAULT_CUDA)


def open_device(target: Target) -> Device:
    """Open the device that runs kernels for a target."""
    if target.dialect == "cuda":
        from .cuda import CudaDevice

        return CudaDevice(target)
    from .opencl import OpenCLDevice

    return OpenCLDevice(target)


def open_transfers(device: Device) -> Transfers:
    """Return what copies to and from a device beside its kernels."""
    if device.target.dialect == "cuda":
        from .cuda import CudaTransfers

        return CudaTransfers()
    from .opencl import OpenCLTransfers

    return OpenCLTransfers(device)


def open_chains(target: Target, ordinal: int = 0) -> Chains | None:
    """Return what runs kernels for a target in memory of another library, on the GPU of that number; None where the
    device has a memory of its own that no other library knows.
    """
    if target.dialect == "cuda":
        from .cuda import CudaChains

        return CudaChains(target, ordinal)
    from .opencl import OpenCLChains, OpenCLDevice

    device = OpenCLDevice(target)
    return OpenCLChains(device) if device.shares_host_memory else None
