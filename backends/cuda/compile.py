"""Compilation of CUDA kernels to cubins with NVRTC or nvcc.

It needs no GPU and no include path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from ...ir import BackendError, KernelFunction, UsageError, install_command, processor_count
from ...store import EntryStore, Key, digest, digest_parts, take_earlier
from ..compiler_diagnostics import compile_error
from ..library import DIALECT

_TIMEOUT = 120.0
#: Report of ptxas, and macros of math.h, which nvcc includes and NVRTC does not.
_NVRTC_OPTIONS = (
    b"--ptxas-options=-v",
    b"--no-source-include",
    b"-DINFINITY=__int_as_float(0x7f800000)",
    b"-DNAN=__int_as_float(0x7fffffff)",
)
#: Leaves out declarations that generated kernels do not need, which take 6 of 24 ms of an empty kernel.
_MINIMAL = b"--minimal"
#: Architectures with instructions that only kernels compiled for exactly them may use (`wgmma`).
_EXACT_ARCHITECTURES = {"sm_90": "sm_90a"}
#: Codes of ptxas where it makes asynchronous products wait for each other, or inserts waits and fences of its own.
_PRODUCT_CODES = re.compile(r"\(C75\d\d\)")
#: Architecture that every supported NVRTC compiles for.
_PLAIN_ARCH = "sm_80"
_HINT = f"{install_command('cuda')} brings NVRTC; or put nvcc on PATH"


@frozen
class Cubin:
    """Compiled kernel and its report by ptxas.

    It has registers per thread, bytes of static shared memory and of spills.
    """

    code: bytes
    registers: int = 0
    shared_bytes: int = 0
    spill_bytes: int = 0
    stack_bytes: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def serialised(self) -> str:
        """Remark of ptxas on products that wait for each other."""
        return next((line for line in self.warnings if _PRODUCT_CODES.search(line)), "")

    @property
    def report(self) -> dict[str, object]:
        """Figures without the code."""
        figures = asdict(self)
        del figures["code"]
        return figures


@frozen
class Toolchain:
    """Compiler: name, version (part of every cache key), and its call.

    The call compiles (source, arch, timeout) to (code, log).
    """

    name: str
    version: str
    compile: Callable[[str, str, float], tuple[bytes, str]]


class _Rejected(Exception):
    """A compiler refused the source; the message is its log."""


def toolchains() -> tuple[Toolchain, ...]:
    """Find the compilers of this machine, the preferred one first."""
    return tuple(_find_toolchains())


def _find_toolchains() -> Iterator[Toolchain]:
    """Yield the compilers of this machine lazily: the search for nvcc starts a program."""
    for find in (_find_nvrtc, _find_nvcc):
        if (tool := find()) is not None:
            yield tool


def find_toolchain() -> Toolchain:
    """Return the compiler to use; `CUTS_CUDA_COMPILER=nvrtc|nvcc` selects one.

    Raises `BackendError` where none is found, or not the selected one, `UsageError` where the variable names
    no compiler.
    """
    wanted = os.environ.get("CUTS_CUDA_COMPILER", "")
    if wanted not in ("", "nvrtc", "nvcc"):
        raise UsageError(f"CUTS_CUDA_COMPILER is '{wanted}'", hint="expected nvrtc or nvcc")
    for tool in _find_toolchains():
        if wanted in ("", tool.name):
            return tool
    raise BackendError(f"no CUDA compiler: {wanted or 'neither NVRTC nor nvcc'} was found", hint=_HINT)


def compile_kernel(kernel: KernelFunction, arch: str, timeout: float = _TIMEOUT) -> Cubin:
    """Compile one kernel to a cubin for `arch`, through the cache.

    nvcc is stopped after `timeout` seconds; NVRTC runs in this process and cannot be stopped.

    Raises `BackendError` with the compiler's log and the numbered source where the kernel does not compile.
    """
    wanted, arch = arch, _EXACT_ARCHITECTURES.get(arch, arch)
    tool = find_toolchain()
    store = EntryStore.open()
    key = Key("cubin", {"source": digest(kernel.source)}, {"arch": arch}, {tool.name: tool.version}, kernel.name)
    if (entry := store.get(key)) is not None:
        return _unpack(entry)
    earlier = digest_parts(["cubin 2", tool.name, tool.version, wanted, kernel.source])
    if (content := take_earlier(store, "cubin", earlier)) is not None:
        report, _, code = content.partition(b"\n")
        store.put(key, entry := {"report": report, "code": code})
        return _unpack(entry)
    try:
        code, log = tool.compile(kernel.source, arch, timeout)
    except _Rejected as error:
        raise compile_error(kernel, f"{arch} with {tool.name} {tool.version}", kernel.source, str(error)) from None
    cubin = _read_log(code, log)
    store.put(key, {"report": json.dumps(cubin.report).encode(), "code": code})
    return cubin


def begin_compiling() -> None:
    """Initialise NVRTC with an empty kernel, where it is the compiler.

    With its first kernel it opens the driver and every visible GPU, which processes do one after another: on a host of
    four H100 this takes 4.1 s for 32 processes, later kernels 1.0 s.
    """
    tool = find_toolchain()
    if tool.name == "nvrtc":
        tool.compile("__global__ void nothing() {}", _PLAIN_ARCH, _TIMEOUT)


def compile_kernels(kernels: Sequence[KernelFunction], arch: str, timeout: float = _TIMEOUT) -> tuple[Cubin, ...]:
    """Compile kernels in parallel, equal sources once.

    Library steps have no generated code. The longest source is first: no processor ends with it alone.
    """
    longest_first = sorted(kernels, key=lambda kernel: len(kernel.source), reverse=True)
    unique = {kernel.source: kernel for kernel in longest_first if kernel.dialect != DIALECT}
    with ThreadPoolExecutor(max_workers=processor_count()) as pool:
        cubins = dict(
            zip(unique, pool.map(lambda kernel: compile_kernel(kernel, arch, timeout), unique.values()), strict=True)
        )
    return tuple(cubins.get(kernel.source, Cubin(b"")) for kernel in kernels)


def _unpack(entry: Mapping[str, bytes]) -> Cubin:
    figures = json.loads(entry["report"])
    return Cubin(entry["code"], **{**figures, "warnings": tuple(figures["warnings"])})


def _read_log(code: bytes, log: str) -> Cubin:
    def most(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    lines = (line.strip() for line in log.splitlines() if "warning" in line.lower() or _PRODUCT_CODES.search(line))
    warnings = [line for line in lines if not line.startswith("Remark")]
    return Cubin(
        code,
        registers=most(r"Used (\d+) registers"),
        shared_bytes=most(r"(\d+) bytes smem"),
        spill_bytes=most(r"(\d+) bytes spill stores") + most(r"(\d+) bytes spill loads"),
        stack_bytes=most(r"(\d+) bytes stack frame"),
        warnings=tuple(dict.fromkeys(warnings)),
    )


@cache
def _find_nvcc() -> Toolchain | None:
    folders = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    path = shutil.which("nvcc") or next(
        (hit for folder in folders if (hit := shutil.which("nvcc", path=f"{folder}/bin"))), None
    )
    if path is None:
        return None
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"V(\d[\d.]*)", text)
    return Toolchain(
        "nvcc",
        match.group(1) if match else "unknown",
        lambda source, arch, timeout: _run_nvcc(path, source, arch, timeout),
    )


def _run_nvcc(path: str, source: str, arch: str, timeout: float) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="cuts-") as folder:
        (Path(folder) / "kernel.cu").write_text(source, encoding="utf-8")
        command = [path, "-cubin", f"-arch={arch}", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
        # A session of its own, because nvcc starts further programs that must end with it.
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            log, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise _Rejected(f"nvcc was stopped after {timeout:g} seconds") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if process.returncode:
            raise _Rejected(log.strip())
        return (Path(folder) / "kernel.cubin").read_bytes(), log


@cache
def _find_nvrtc() -> Toolchain | None:
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # the bindings raise errors of their own where the library is missing
        return None
    if int(status) != 0:
        return None
    return Toolchain("nvrtc", f"{major}.{minor}", lambda source, arch, timeout: _run_nvrtc(nvrtc, source, arch))


@cache
def _nvrtc_options(nvrtc: Any) -> tuple[bytes, ...]:
    """Return the options of every kernel, without those that an old NVRTC refuses."""
    status, program = nvrtc.nvrtcCreateProgram(b"", b"nothing.cu", 0, [], [])
    if int(status) != 0:
        return _NVRTC_OPTIONS
    try:
        known = int(nvrtc.nvrtcCompileProgram(program, 1, [_MINIMAL])[0]) == 0
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return (*_NVRTC_OPTIONS, *([_MINIMAL] if known else []))


def _run_nvrtc(nvrtc: Any, source: str, arch: str) -> tuple[bytes, str]:
    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise _Rejected(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        options = [f"--gpu-architecture={arch}".encode(), *_nvrtc_options(nvrtc)]
        failed = int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0
        log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        text = bytes(log).rstrip(b"\0").decode(errors="replace")
        if failed:
            raise _Rejected(text.strip())
        code = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
        check(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code), text
    finally:
        nvrtc.nvrtcDestroyProgram(program)
