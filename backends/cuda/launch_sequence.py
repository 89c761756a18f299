"""Launchers of sequences in PyTorch's memory.

All calls go through NVIDIA's bindings and the primary context of a device, which PyTorch uses too.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...ir import BackendError, KernelFunction, Target, install_command
from ..device import Array
from ..launch_sequence import LaunchSequence, SequenceLauncher, SequencePlan
from ..library import DIALECT, Routine
from .device import CudaDevice, complete_binaries
from .graph_nodes import GraphDriver
from .handles import DriverCalls
from .launch_graph import CudaLaunchSequence

_DEFAULT_SHARED = 48 * 1024  # of a block, without an attribute of the kernel
#: Modules of deleted sequences, by driver and device; they are unloaded when the device is idle.
_UNUSED_MODULES: defaultdict[tuple[Any, int], deque[Any]] = defaultdict(deque)


class CudaSequenceLauncher(SequenceLauncher):
    """Launcher of sequences on one GPU, by its number."""

    is_blocking = False

    def __init__(self, target: Target, ordinal: int, cu: Any = None) -> None:
        calls = _calls(cu)
        self.cu, self.check = calls.cu, calls.check
        self.target, self.ordinal = target, ordinal
        self._foreign: CudaDevice | None = None
        self.check(self.cu.cuInit(0))
        device = self.check(self.cu.cuDeviceGet(ordinal))
        major, minor = (self.check(self.cu.cuDeviceGetAttribute(a, device)) for a in self._capability())
        digits = target.arch.removeprefix("sm_").rstrip("af")
        if int(digits[:-1]) != major or int(digits[-1]) > minor:
            raise BackendError(
                f"the plan is for {target.arch}, device {ordinal} is sm_{major}{minor}",
                hint="models are compiled for the first device: use GPUs of one kind",
            )
        context = self.check(self.cu.cuDevicePrimaryCtxRetain(device))
        self.graphs = GraphDriver(self.cu, self.check, context, target.arch, lambda: self.foreign)
        self.in_context = self.graphs.in_context

    def _capability(self) -> tuple[Any, Any]:
        names = self.cu.CUdevice_attribute
        return (
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )

    def upload(self, address: int, source: Array) -> None:
        """Copy from the host."""
        if source.nbytes:
            self.in_context(lambda: self.check(self.cu.cuMemcpyHtoD(address, source.ctypes.data, source.nbytes)))

    def settle(self) -> None:
        """Wait for the device, and unload modules of deleted sequences."""
        unused = _UNUSED_MODULES[self.cu, self.ordinal]
        gone = [unused.popleft() for _ in range(len(unused))]
        self.in_context(lambda: self.check(self.cu.cuCtxSynchronize()))
        self.in_context(lambda: [self.cu.cuModuleUnload(module) for module in gone])

    def load(
        self, plan: SequencePlan, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None]
    ) -> LaunchSequence:
        """Load cubins, compiling missing ones.

        Raises `BackendError` where one does not load.
        """
        codes = complete_binaries(kernels, binaries, self.target.arch)
        modules: list[Any] = []
        load = partial(self._load, modules)
        loaded = self.in_context(lambda: [load(k, code) for k, code in zip(kernels, codes, strict=True)])
        made = CudaLaunchSequence(self.graphs, plan, kernels, loaded)
        weakref.finalize(made, _UNUSED_MODULES[self.cu, self.ordinal].extend, modules).atexit = False
        return made

    def _load(self, modules: list[Any], kernel: KernelFunction, code: bytes) -> Any:
        if kernel.dialect == DIALECT:
            return Routine(kernel)
        try:
            module = self.check(self.cu.cuModuleLoadData(code))
            modules.append(module)
            function = self.check(self.cu.cuModuleGetFunction(module, kernel.name.encode()))
            if kernel.shared_bytes + kernel.dynamic_shared > _DEFAULT_SHARED:
                limit = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.check(self.cu.cuFuncSetAttribute(function, limit, kernel.dynamic_shared))
        except BackendError as error:
            raise BackendError(
                f"kernel {kernel.name} does not load on device {self.ordinal}: {error.message}",
                hint="compile the model for this machine",
            ) from error
        return function

    @property
    def foreign(self) -> CudaDevice:
        """Device to which routines of libraries are bound.

        Raises `BackendError` where it is not the first one.
        """
        if self.ordinal != 0:
            raise BackendError(
                f"routines of libraries run on device 0, not on {self.ordinal}", hint="leave out option 'libraries'"
            )
        if self._foreign is None:
            self._foreign = CudaDevice(self.target)
        return self._foreign


def _calls(cu: Any) -> DriverCalls:
    try:
        return DriverCalls(cu)
    except ImportError as error:
        raise BackendError(
            f"running PyTorch's models on CUDA needs NVIDIA's bindings: {error}", hint=install_command("cuda")
        ) from error
