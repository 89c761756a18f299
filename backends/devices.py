"""Targets by name, and opening of their devices."""

from __future__ import annotations

from ..ir import BackendError, Target
from .device import Device
from .launch_sequence import SequenceLauncher
from .targets import DEFAULT_CUDA, described_target
from .transfers import Transfers


def find_target(name: str) -> Target:
    """Return the target `name`: a dialect, `dialect:architecture`, or `dialect:alias`.

    Plain "cuda" is the device of this machine when there is one, otherwise the described H200; "cuda:device" is always
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
    """Return the transfers of a device, which run beside its kernels."""
    if device.target.dialect == "cuda":
        from .cuda import CudaTransfers

        return CudaTransfers()
    from .opencl import OpenCLTransfers

    return OpenCLTransfers(device)


def open_sequence_launcher(target: Target, ordinal: int = 0) -> SequenceLauncher | None:
    """Return the launcher of sequences in another library's memory.

    `ordinal` is the number of the GPU. None where the device has a memory that no other library can access.
    """
    if target.dialect == "cuda":
        from .cuda import CudaSequenceLauncher

        return CudaSequenceLauncher(target, ordinal)
    from .opencl import OpenCLDevice, OpenCLSequenceLauncher

    device = OpenCLDevice(target)
    return OpenCLSequenceLauncher(device) if device.shares_host_memory else None
