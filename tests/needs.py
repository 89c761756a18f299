"""Probes for what a test needs, and the marks that skip it with a reason in words where it is missing."""

from __future__ import annotations

import importlib.util
import shutil
from functools import cache

import pytest


@cache
def opencl_reason() -> str:
    """Why no OpenCL kernel can run here; empty when one can."""
    if importlib.util.find_spec("pyopencl") is None:
        return "PyOpenCL is not installed"
    import pyopencl as cl

    try:
        return "" if cl.get_platforms() else "no OpenCL platform is installed"
    except cl.Error as error:
        return f"no OpenCL platform: {error}"


@cache
def cuda_reason() -> str:
    """Why no CUDA kernel can run here; empty when one can."""
    if importlib.util.find_spec("pycuda") is None:
        return "PyCUDA is not installed"
    try:
        import pycuda.driver as driver

        driver.init()
        return "" if driver.Device.count() else "no CUDA device"
    except Exception as error:
        return f"no CUDA device: {error}"


@cache
def toolchain_reason() -> str:
    """Why no CUDA source can be compiled here; empty when it can."""
    from cuts.backends.cuda_compile import toolchains

    return "" if toolchains() else "neither nvcc nor NVRTC is installed"


def needs_opencl(test: pytest.MarkDecorator | object) -> object:
    """Mark a test that runs OpenCL kernels."""
    return pytest.mark.opencl(pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason() or "-")(test))  # type: ignore[arg-type]


def needs_cuda(test: pytest.MarkDecorator | object) -> object:
    """Mark a test that runs CUDA kernels."""
    return pytest.mark.cuda(pytest.mark.skipif(bool(cuda_reason()), reason=cuda_reason() or "-")(test))  # type: ignore[arg-type]


def needs_toolchain(test: pytest.MarkDecorator | object) -> object:
    """Mark a test that compiles CUDA sources without running them."""
    return pytest.mark.skipif(bool(toolchain_reason()), reason=toolchain_reason() or "-")(test)  # type: ignore[arg-type]


HAS_NVCC = shutil.which("nvcc") is not None
