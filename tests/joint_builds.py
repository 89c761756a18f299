"""Joint builds of many plans' kernels.

PoCL takes longer to begin a program than to compile a kernel of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cuts.backends.devices import find_target
from cuts.backends.opencl import OpenCLDevice
from cuts.ir.compiled import KernelFunction
from cuts.runtime.plan import Plan


@contextmanager
def built_together(plans: Iterable[Plan]) -> Iterator[None]:
    """Build the OpenCL kernels of plans for later builds in the block."""
    kernels = {kernel.source: kernel for plan in plans for kernel in plan.kernels}
    programs = dict(zip(kernels, OpenCLDevice(find_target("opencl")).build(list(kernels.values())), strict=True))
    build = OpenCLDevice.build

    def ready(self: OpenCLDevice, wanted: Sequence[KernelFunction], *binaries: Any) -> tuple[object, ...]:
        known = [programs.get(kernel.source) for kernel in wanted]
        return build(self, wanted, *binaries) if None in known else tuple(known)

    with patch.object(OpenCLDevice, "build", ready):
        yield
