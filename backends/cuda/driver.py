"""The CUDA driver of this process: NVIDIA's bindings, or PyCUDA."""

from __future__ import annotations

import os
from functools import cache
from typing import TypeAlias

from ...ir import BackendError, install_command
from .bindings import BindingsDriver, DriverError
from .pycuda_driver import PycudaDriver

#: Environment variable with the number of the device to open, as for PyCUDA.
ORDINAL_VARIABLE = "CUDA_DEVICE"
#: The two have the same methods: the calls of the driver that one device takes, in its primary context. Memory is an
#: object whose integer value is its address. Failed calls raise `Error`.
Driver: TypeAlias = BindingsDriver | PycudaDriver


@cache
def driver() -> Driver:
    """Return the opened driver, whose context is current once.

    Raises `BackendError` where both packages are missing, the driver does not start, or no device is visible.
    """
    try:
        found = import_driver()
        if found.count() == 0:
            raise BackendError("no CUDA device is visible", hint="check nvidia-smi and CUDA_VISIBLE_DEVICES")
        found.open(int(os.environ.get(ORDINAL_VARIABLE, "0")))
    except ImportError as error:
        raise BackendError(
            "running on CUDA needs cuda-bindings or PyCUDA, and a driver: neither package is installed",
            hint=install_command("cuda"),
        ) from error
    except Exception as error:  # the driver's own errors
        if isinstance(error, BackendError) and not isinstance(error, DriverError):
            raise
        raise BackendError(f"the CUDA driver refused to start: {error}", hint="check nvidia-smi") from error
    return found


@cache
def import_driver() -> Driver:
    """Import NVIDIA's bindings, else PyCUDA, which has no graphs and tensor maps.

    Raises `ImportError` where neither is installed.
    """
    try:
        return BindingsDriver()
    except ImportError:
        return PycudaDriver()


def check_architecture(arch: str, device: str, capability: tuple[int, int], hint: str) -> None:
    """Raise `BackendError` where an architecture's cubins do not run."""
    digits, (major, minor) = arch.removeprefix("sm_").rstrip("af"), capability
    if int(digits[:-1]) != major or int(digits[-1]) > minor:
        raise BackendError(f"the plan is for {arch}, {device} is sm_{major}{minor}", hint=hint)
