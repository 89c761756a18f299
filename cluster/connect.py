"""Engine of a plan's processes, with a check that all processes run."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..backends import Device
from ..ir import UsageError
from .engine import Engine, SingleProcess
from .plans import Way


def connect(way: Way) -> Callable[[Device], Engine]:
    """Return a function that makes this process's engine for its device.

    Raises `UsageError` where other processes are missing.
    """
    if way.gpus == 1:
        return lambda device: SingleProcess()
    if "RANK" not in os.environ:
        hint = f"torchrun --nproc-per-node {way.gpus} -m cuts plan run PLAN.json"
        raise UsageError(f"the plan takes {way.gpus} processes, one runs", hint=hint)
    rank = os.environ.get("LOCAL_RANK", os.environ["RANK"])
    os.environ.setdefault("CUDA_DEVICE", rank)  # the device that PyCUDA opens

    def make_engine(device: Device) -> Engine:
        from .torch_engine import TorchEngine

        return TorchEngine(device, way.p, way.wp)

    return make_engine
