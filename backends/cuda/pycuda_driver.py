"""The CUDA driver through PyCUDA, which launches kernel by kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from threading import get_ident
from typing import Any

from ...ir import BackendError, KernelFunction, install_command
from ..device import Array, Launch
from .bindings import has_large_shared, loading_error, pushed_context


class PycudaDriver:
    """PyCUDA's calls as a `Driver`.

    Raises `ImportError` where it is not installed.
    """

    def __init__(self, calls: Any = None) -> None:
        self._calls: Any = calls or import_module("pycuda.driver")
        self.Error: type[Exception] = self._calls.Error
        self.stream, self.event = self._calls.Stream, self._calls.Event

    def count(self) -> int:
        self._calls.init()
        return int(self._calls.Device.count())

    def open(self, ordinal: int) -> None:
        """Open the primary context; PyCUDA reads the ordinal from the environment."""
        self._context, self._home = import_module("pycuda.autoprimaryctx").context, get_ident()
        self._device = self._context.get_device()

    def current(self) -> AbstractContextManager[None]:
        """Make the context current in this thread.

        It stays so in the thread that opened it. PyCUDA aborts where another thread ends with a current context.
        """
        here = get_ident() == self._home
        return nullcontext() if here else pushed_context(self._context.push, self._context.pop)

    def name(self) -> str:
        return str(self._device.name())

    def capability(self) -> tuple[int, int]:
        major, minor = self._device.compute_capability()
        return major, minor

    def attribute(self, name: str, fallback: int = 0) -> int:
        code = getattr(self._calls.device_attribute, name, None)
        return fallback if code is None else int(self._device.get_attribute(code))

    def describe(self) -> dict[str, object]:
        free, total = self._calls.mem_get_info()
        return {"memory_bytes": total, "memory_free": free, "driver": self._calls.get_driver_version()}

    def synchronize(self) -> None:
        self._calls.Context.synchronize()

    def allocate(self, nbytes: int) -> Any:
        found = self._calls.mem_alloc(nbytes)
        self._calls.memset_d8(int(found), 0, nbytes)
        return found

    def pin(self, nbytes: int) -> Any:
        return self._calls.pagelocked_empty(nbytes, "uint8")

    def register(self, memory: Array) -> Any:
        return self._calls.register_host_memory(memory)

    def zero_words(self, address: int, count: int, stream: Any) -> None:
        self._calls.memset_d32_async(address, 0, count, stream)

    def upload(self, address: int, source: Array, stream: Any = None) -> None:
        if stream is None:
            self._calls.memcpy_htod(address, source)
        else:
            self._calls.memcpy_htod_async(address, source, stream)

    def download(self, target: Array, address: int, stream: Any = None) -> None:
        if stream is None:
            self._calls.memcpy_dtoh(target, address)
        else:
            self._calls.memcpy_dtoh_async(target, address, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._calls.memcpy_dtod_async(target, source, nbytes, stream)

    def load(self, kernel: KernelFunction, code: bytes) -> Any:
        """Load a cubin and return its function.

        Raises `BackendError` where it does not load, and for a kernel with bulk copies.
        """
        if any(argument.map is not None for argument in kernel.arguments):
            raise BackendError("a kernel with bulk copies needs cuda-bindings", hint=install_command("cuda"))
        try:
            function = self._calls.module_from_buffer(code).get_function(kernel.name)
            if has_large_shared(kernel):
                limit = self._calls.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.set_attribute(limit, kernel.dynamic_shared)
        except self.Error as error:
            raise loading_error(kernel, self.name(), str(error)) from error
        function.prepare("P" * len(kernel.arguments))
        return function

    def bind(self, loaded: Any, kernel: KernelFunction, addresses: tuple[int, ...], stream: Any) -> Launch:
        call = loaded.prepared_async_call
        return partial(call, kernel.grid, kernel.block, stream, *addresses, shared_size=kernel.dynamic_shared)
