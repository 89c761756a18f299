"""Compiler of CUDA sources: name, version, architectures, call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from attrs import field, frozen

from ...ir import BackendError, install_command

_WHEELS = f"the wheels nvidia-cuda-nvrtc and cuda-bindings ({install_command('cuda')})"
_EARLIER_WHEEL = f"the wheel of NVRTC 12 beside the present compiler ({install_command('cuda12')})"


class RejectedSourceError(Exception):
    """A compiler refused the source; the message is its log."""


@frozen
class Toolchain:
    """Compiler: name, version (part of every cache key), and its call.

    The call compiles (source, arch, timeout) to (code, log). `architectures` returns the numbers of compute
    capabilities that it compiles for, such as 90; none where it does not say.
    """

    name: str
    version: str
    compile: Callable[[str, str, float], tuple[bytes, str]]
    architectures: Callable[[], tuple[int, ...]] = field(default=tuple, eq=False, repr=False)

    def supports(self, arch: str) -> bool:
        """Return whether it compiles for an architecture, such as `sm_70`."""
        known = self.architectures()
        return not known or not arch or architecture_number(arch) in known


def architecture_number(arch: str) -> int:
    """Return the number of an architecture: 90 for `sm_90a`."""
    found = re.search(r"\d+", arch)
    return int(found[0]) if found else 0


def missing_compiler(wanted: str, arch: str, tools: Sequence[Toolchain]) -> BackendError:
    """Return the error of a missing compiler, or of an architecture."""
    if not tools:
        hint = f"install {_WHEELS}, or put nvcc on PATH"
        return BackendError(f"no CUDA compiler: {wanted or 'neither NVRTC nor nvcc'} was found", hint=hint)
    ranges = [(tool, sorted(tool.architectures())) for tool in tools]
    able = ", ".join(
        f"{tool.name} {tool.version} compiles for sm_{known[0]} to sm_{known[-1]}" for tool, known in ranges
    )
    early = architecture_number(arch) < min(known[0] for _, known in ranges)
    advice = (
        f"{_EARLIER_WHEEL}, or put nvcc of CUDA 12" if early else f"newer versions of {_WHEELS}, or put a newer nvcc"
    )
    return BackendError(f"no CUDA compiler for {arch}: {able}", hint=f"install {advice} on PATH")
