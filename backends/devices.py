"""Targets by name, and opening of their devices."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from attrs import frozen

from ..ir import BackendError, Target
from .device import Device
from .launch_sequence import SequenceLauncher
from .transfers import Transfers

_LOG = logging.getLogger(__name__)
#: Name of the target that `choose_target` chooses.
AUTOMATIC = "auto"
#: Folder in which NVIDIA's driver lists the GPUs of a Linux machine.
_LISTED_GPUS = Path("/proc/driver/nvidia/gpus")


@frozen
class TargetChoice:
    """Target of this machine, and a sentence about its GPU."""

    name: str
    note: str = ""


def choose_target() -> TargetChoice:
    """Return the target of this machine: its GPU, or OpenCL.

    The GPU needs a driver, bindings and a compiler of kernels. Where one is missing, the note says which."""
    from .compilers import find_toolchain
    from .cuda import query_target

    try:
        device = query_target()
        find_toolchain(device.arch)
    except BackendError as error:
        return TargetChoice("opencl", f"target opencl; the GPU of this machine is left out: {error}" * has_listed_gpu())
    return TargetChoice("cuda:device", f"target cuda: {device.name}; --target opencl takes the processor")


def has_listed_gpu() -> bool:
    """Return whether the driver lists a GPU that CUDA_VISIBLE_DEVICES does not hide."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return not hidden and _LISTED_GPUS.is_dir() and any(_LISTED_GPUS.iterdir())


def find_target(name: str) -> Target:
    """Return the target `name`: a dialect, `dialect:architecture`, or `dialect:alias`.

    "auto" is the GPU of this machine where there is one, otherwise OpenCL (`choose_target`). Plain "cuda" is the device
    of this machine when there is one, otherwise the described H200; "cuda:device" is always the device.

    Raises `UsageError` for an unknown name and `BackendError` where "cuda:device" finds none.
    """
    if name.strip().lower() == AUTOMATIC:
        choice = choose_target()
        _LOG.info("%s", choice.note or f"target {choice.name}")
        return find_target(choice.name)
    dialect, _, key = name.strip().lower().partition(":")
    if dialect == "cuda" and key in ("", "device"):
        return _cuda_device(required=key == "device")
    from .targets import described_target

    return described_target(name)


def _cuda_device(required: bool) -> Target:
    from .cuda import query_target
    from .targets import DEFAULT_CUDA, described_target

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
