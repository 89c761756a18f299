"""Queries of a CUDA device through PyCUDA or NVIDIA's bindings.

They use the primary context, which PyTorch shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from importlib import import_module
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

from attrs import evolve

from ...ir import BackendError, Target, UsageError, install_command
from ..targets import DEFAULT_CUDA, described_device, described_target
from .bindings import BindingsDriver
from .calibrate import calibrate_target, load_ceilings
from .calls import PrimaryContext

Given = ParamSpec("Given")
Result = TypeVar("Result")
#: fp32 lanes of one SM by compute capability; the architectures of the CUDA C++ Programming Guide's throughput table.
_LANES = {"5": 128, "6.0": 64, "6": 128, "7": 64, "8.0": 64, "8": 128, "9": 128, "10": 128, "12": 128}


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
    except BackendError:
        raise
    except Exception as error:  # the driver's own errors
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


@cache
def query_target() -> Target:
    """Describe the current device.

    Queried attributes and measured ceilings replace those of its description, or of its architecture's.
    """
    device, attribute = current_device(), driver().device_attribute
    major, minor = device.compute_capability()
    arch = f"sm_{major}{minor}"
    try:
        base = described_device(device.name(), arch)
    except UsageError:
        base = evolve(described_target(DEFAULT_CUDA if major >= 9 else "cuda:v100"), arch=arch, async_copy=major >= 8)

    def ask(name: str, fallback: int) -> int:
        value = getattr(attribute, name, None)
        return int(device.get_attribute(value)) if value is not None else fallback

    clock = ask("CLOCK_RATE", int(base.clock / 1e3)) * 1e3
    sms = ask("MULTIPROCESSOR_COUNT", base.NUM_SM)
    lanes = _LANES.get(f"{major}.{minor}", _LANES.get(str(major), 128))
    # Two transfers per memory clock; where the driver no longer reports it, the described bandwidth stands.
    bandwidth = 2 * ask("MEMORY_CLOCK_RATE", 0) * 1e3 * ask("GLOBAL_MEMORY_BUS_WIDTH", 0) / 8
    warp = ask("WARP_SIZE", base.warp_size)
    described = evolve(
        base,
        name=device.name(),
        arch=arch,
        NUM_SM=sms,
        clock=clock,
        PERF_peak=sms * lanes * 2 * clock,
        BW_global=max(bandwidth, base.BW_global) if sms == base.NUM_SM else bandwidth or base.BW_global,
        MAX_shared=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", ask("MAX_SHARED_MEMORY_PER_BLOCK", base.MAX_shared)),
        MAX_thread=ask("MAX_THREADS_PER_BLOCK", base.MAX_thread),
        shared_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", base.shared_per_sm),
        registers_per_sm=ask("MAX_REGISTERS_PER_MULTIPROCESSOR", base.registers_per_sm),
        warps_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR", base.warps_per_sm * warp) // warp,
        warp_size=warp,
        l2_bytes=ask("L2_CACHE_SIZE", base.l2_bytes),
        # The ports of all SMs could take twice the bandwidth of a large chip's cache; the measured one counts. A chip
        # of as many SMs is the described one, with any memory.
        l2_bandwidth=base.l2_bandwidth if sms == base.NUM_SM else 64 * sms * clock,
    )
    return calibrate_target(described, load_ceilings(described.name))
