"""Compilation of CUDA kernels to cubins with NVRTC or nvcc.

It needs no GPU and no include path.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from attrs import asdict, frozen

from ...ir import KernelFunction, UsageError, processor_count
from ...store import EntryStore, Key, digest, digest_parts, take_earlier
from ..compiler_diagnostics import compile_error
from ..library import DIALECT
from .nvcc import find_nvcc
from .nvrtc import find_nvrtc, find_second_nvrtc
from .toolchain import RejectedSourceError, Toolchain, missing_compiler

_TIMEOUT = 120.0
#: Architectures with instructions that only kernels compiled for exactly them may use (`wgmma`).
_EXACT_ARCHITECTURES = {"sm_90": "sm_90a"}
#: Codes of ptxas where it makes asynchronous products wait for each other, or inserts waits and fences of its own.
_PRODUCT_CODES = re.compile(r"\(C75\d\d\)")
#: Architecture that every supported NVRTC compiles for.
_PLAIN_ARCH = "sm_80"


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


def toolchains() -> tuple[Toolchain, ...]:
    """Find the compilers of this machine, the preferred one first."""
    return tuple(_find_toolchains())


def _find_toolchains() -> Iterator[Toolchain]:
    """Yield the compilers of this machine lazily: the search for nvcc starts a program."""
    for find in (find_nvrtc, find_nvcc, find_second_nvrtc):
        if (tool := find()) is not None:
            yield tool


def find_toolchain(arch: str = "") -> Toolchain:
    """Return the first compiler that compiles for an architecture.

    `CUTS_CUDA_COMPILER=nvrtc|nvcc` selects one.

    Raises `BackendError` where none is found, or not the selected one, `UsageError` where the variable names
    no compiler.
    """
    wanted = os.environ.get("CUTS_CUDA_COMPILER", "")
    if wanted not in ("", "nvrtc", "nvcc"):
        raise UsageError(f"CUTS_CUDA_COMPILER is '{wanted}'", hint="expected nvrtc or nvcc")
    others: list[Toolchain] = []
    for tool in _find_toolchains():
        if wanted in ("", tool.name):
            if tool.supports(arch):
                return tool
            others.append(tool)
    raise missing_compiler(wanted, arch, others)


def compile_kernel(kernel: KernelFunction, arch: str, timeout: float = _TIMEOUT) -> Cubin:
    """Compile one kernel to a cubin for `arch`, through the cache.

    nvcc is stopped after `timeout` seconds; NVRTC runs in this process and cannot be stopped.

    Raises `BackendError` with the compiler's log and the numbered source where the kernel does not compile.
    """
    wanted, arch = arch, _EXACT_ARCHITECTURES.get(arch, arch)
    tool = find_toolchain(arch)
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
    except RejectedSourceError as error:
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
    def greatest_match(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    lines = (line.strip() for line in log.splitlines() if "warning" in line.lower() or _PRODUCT_CODES.search(line))
    warnings = [line for line in lines if not line.startswith("Remark")]
    return Cubin(
        code,
        registers=greatest_match(r"Used (\d+) registers"),
        shared_bytes=greatest_match(r"(\d+) bytes smem"),
        spill_bytes=greatest_match(r"(\d+) bytes spill stores") + greatest_match(r"(\d+) bytes spill loads"),
        stack_bytes=greatest_match(r"(\d+) bytes stack frame"),
        warnings=tuple(dict.fromkeys(warnings)),
    )
