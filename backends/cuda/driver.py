"""The CUDA driver and its primary context.

PyTorch shares the primary context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from importlib import import_module
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

from ...ir import BackendError, install_command
from .bindings import BindingsDriver
from .handles import DriverError, PrimaryContext

Given = ParamSpec("Given")
Result = TypeVar("Result")


@cache
def driver() -> Any:
    """Return PyCUDA's driver, or the bindings', with a current primary context.

    The context is made current once.

    Raises `BackendError` where both are missing, the driver does not start, or no device is visible.
    """
    try:
        module = import_driver()
        module.init()
        if module.Device.count() == 0:
            raise BackendError("no CUDA device is visible", hint="check nvidia-smi and CUDA_VISIBLE_DEVICES")
        open_context()
    except ImportError as error:
        raise BackendError(
            f"running on CUDA needs cuda-bindings or PyCUDA, and a driver: {error}", hint=install_command("cuda")
        ) from error
    except Exception as error:  # the driver's own errors
        if isinstance(error, BackendError) and not isinstance(error, DriverError):
            raise
        raise BackendError(f"the CUDA driver refused to start: {error}", hint="check nvidia-smi") from error
    return module


@cache
def import_driver() -> Any:
    """Import NVIDIA's bindings, else PyCUDA, which cannot launch kernels with tensor maps.

    Raises `ImportError` where neither is installed.
    """
    try:
        return BindingsDriver()
    except ImportError:
        return import_module("pycuda.driver")


@cache
def open_context() -> tuple[Any, int]:
    """Return the primary context, and the thread where PyCUDA keeps it current."""
    found = import_driver()
    context = found.open() if isinstance(found, BindingsDriver) else import_module("pycuda.autoprimaryctx").context
    return context, get_ident()


def primary_context() -> AbstractContextManager[None]:
    """Context manager that makes the primary context current in this thread.

    A context of PyCUDA is current in one thread at a time.
    """
    context, home = open_context()
    current = context.is_current() if isinstance(context, PrimaryContext) else get_ident() == home
    return nullcontext() if current else _push_context(context)


def in_primary_context(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function that runs in the primary context."""

    @wraps(function)
    def run(*arguments: Given.args, **options: Given.kwargs) -> Result:
        with primary_context():
            return function(*arguments, **options)

    return run


@contextmanager
def _push_context(context: Any) -> Iterator[None]:
    context.push()
    try:
        yield
    finally:
        context.pop()


def current_device() -> Any:
    """Return the PyCUDA device of the primary context."""
    cuda = driver()
    with primary_context():
        return cuda.Context.get_device()
