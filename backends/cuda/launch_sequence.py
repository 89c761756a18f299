"""Launchers of sequences in PyTorch's memory.

All calls go through NVIDIA's bindings and the primary context of a device, which PyTorch uses too.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ...ir import BackendError, KernelFunction, Target, install_command
from ..compilers import complete_binaries
from ..device import Array
from ..launch_sequence import LaunchSequence, SequenceLauncher, SequencePlan
from ..library import DIALECT, Routine
from .bindings import BindingsDriver, ModuleFunction
from .device import CudaDevice
from .driver import check_architecture
from .launch_graph import CudaLaunchSequence

#: Modules of deleted sequences, by bindings and device; they are unloaded when the device is idle.
_UNUSED_MODULES: defaultdict[tuple[Any, int], deque[Any]] = defaultdict(deque)


class CudaSequenceLauncher(SequenceLauncher):
    """Launcher of sequences on one GPU, by its number."""

    is_blocking = False

    def __init__(self, target: Target, ordinal: int, bindings: Any = None) -> None:
        self.target, self.ordinal = target, ordinal
        self._driver = _open(ordinal, bindings)
        self._unused = _UNUSED_MODULES[self._driver.cu.bindings, ordinal]
        hint = "models are compiled for the first device: use GPUs of one kind"
        check_architecture(target.arch, f"device {ordinal}", self._driver.capability(), hint)

    def upload(self, address: int, source: Array) -> None:
        """Copy from the host."""
        if source.nbytes:
            with self._driver.push_context():
                self._driver.upload(address, source)

    def settle(self) -> None:
        """Wait for the device, and unload modules of deleted sequences."""
        gone = [self._unused.popleft() for _ in range(len(self._unused))]
        with self._driver.push_context():
            self._driver.synchronize()
            for module in gone:
                self._driver.cu.cuModuleUnload(module)

    def load(
        self, plan: SequencePlan, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None]
    ) -> LaunchSequence:
        """Load cubins, compiling missing ones.

        Raises `BackendError` where one does not load.
        """
        codes = complete_binaries(kernels, binaries, self.target.arch)
        with self._driver.push_context():
            loaded = [
                Routine(kernel) if kernel.dialect == DIALECT else self._driver.load_module(kernel, code)
                for kernel, code in zip(kernels, codes, strict=True)
            ]
            made = CudaLaunchSequence(self._driver, self.target.arch, plan, kernels, loaded, lambda: self.foreign)
        modules = [each.module for each in loaded if isinstance(each, ModuleFunction)]
        weakref.finalize(made, self._unused.extend, modules).atexit = False
        return made

    @cached_property
    def foreign(self) -> CudaDevice:
        """Device to which routines of libraries are bound.

        Raises `BackendError` where it is not the first one.
        """
        if self.ordinal != 0:
            raise BackendError(
                f"routines of libraries run on device 0, not on {self.ordinal}", hint="leave out option 'libraries'"
            )
        return CudaDevice(self.target)


def _open(ordinal: int, bindings: Any) -> BindingsDriver:
    try:
        driver = BindingsDriver(bindings)
    except ImportError as error:
        raise BackendError(
            f"running PyTorch's models on CUDA needs NVIDIA's bindings: {error}", hint=install_command("cuda")
        ) from error
    driver.cu.cuInit(0)
    driver.retain(ordinal)
    return driver
