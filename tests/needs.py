"""Probes for requirements of tests, and marks that skip with a reason."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


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
    from cuts.backends.cuda.driver import import_driver

    try:
        driver = import_driver()
    except ImportError:
        return "neither PyCUDA nor cuda-bindings is installed"
    try:
        return "" if driver.count() else "no CUDA device"
    except Exception as error:
        return f"no CUDA device: {error}"


@cache
def toolchain_reason() -> str:
    """Why no CUDA source can be compiled here; empty when it can."""
    from cuts.backends.compilers.cubins import toolchains

    return "" if toolchains() else "neither nvcc nor NVRTC is installed"


def needs_opencl(test: Test) -> Test:
    """Mark a test, or a class of tests, that runs OpenCL kernels."""
    return cast(Test, pytest.mark.opencl(_skip(opencl_reason())(test)))


def needs_cuda(test: Test) -> Test:
    """Mark a test, or a class of tests, that runs CUDA kernels."""
    return cast(Test, pytest.mark.cuda(_skip(cuda_reason())(test)))


def needs_toolchain(test: Test) -> Test:
    """Mark a test or class that compiles CUDA sources without running them."""
    return cast(Test, _skip(toolchain_reason())(test))


def require_architecture(arch: str) -> None:
    """Skip a test without a compiler for an architecture."""
    from cuts.backends.compilers.cubins import find_toolchain
    from cuts.ir import BackendError

    try:
        find_toolchain(arch)
    except BackendError as error:
        pytest.skip(str(error))


def needs_c_compiler() -> pytest.MarkDecorator:
    """Return a mark of tests that build the runner of plans."""
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return _skip("" if any(map(shutil.which, filter(None, names))) else "no C compiler is installed")


@cache
def _disassembler() -> Path | None:
    """Find nvdisasm, which comes as a wheel of its own."""
    found = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvdisasm"))
    return found[-1] if found else None


def needs_disassembler(test: Test) -> Test:
    """Mark a test or class that reads the instructions of a machine."""
    missing = "" if _disassembler() else "nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)"
    return cast(Test, _skip(missing)(test))


def disassemble(code: bytes, folder: Path) -> str:
    """Return the instructions of a cubin as text."""
    path = folder / "one.cubin"
    path.write_bytes(code)
    command = [str(_disassembler()), "-c", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _skip(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(reason), reason=reason or "it is here")


#: The devices that kernels run on, for `parametrize`: OpenCL wherever it is, CUDA where a test run asks for it and has
#: it.
DEVICES = [
    pytest.param("opencl", marks=(pytest.mark.opencl, _skip(opencl_reason()))),
    pytest.param("cuda", marks=(pytest.mark.cuda, _skip(cuda_reason()))),
]


def optional_module(name: str) -> Any:
    """Return a module, or None where it is missing or incompatible."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError):  # torchvision raises the latter where PyTorch is another one
        return None
