"""Choice of an OpenCL platform and device."""

from __future__ import annotations

import logging
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from attrs import frozen

from ...ir import BackendError, install_command
from ...store import cache_root, create_private_folder
from .pocl_cache import quarantine_damaged
from .probe import computes_right
from .processor import name_processor

POCL = "Portable Computing Language"


_LOG = logging.getLogger("cuts.opencl")


def import_opencl() -> Any:
    """Import PyOpenCL, with PoCL's cache inside the package's.

    Raises `BackendError` in a process forked from one that used OpenCL: the threads of its driver are missing, so that
    the first call would wait for them for ever.
    """
    if _open_cache() != os.getpid():
        raise BackendError(
            "this process was forked from one that had used OpenCL, whose driver does not work in a copy",
            hint="start processes with multiprocessing.get_context('spawn')",
        )
    try:
        import pyopencl
    except ImportError as error:
        raise BackendError("target 'opencl' needs PyOpenCL", hint=install_command("opencl")) from error
    return pyopencl


@cache
def _open_cache() -> int:
    """Set and check PoCL's cache before PoCL reads it, and return this process's id."""
    root = cache_root()
    folder = root and create_private_folder(root / "pocl")
    if folder is not None:
        # PoCL caches its programs, keyed by source and launch geometry; only its folder is set to a private one.
        os.environ.setdefault("POCL_CACHE_DIR", str(folder))
        for aside in quarantine_damaged(folder):
            _LOG.warning("a damaged program in PoCL's cache was set aside as %s and is built anew", aside)
    else:
        os.environ.setdefault("POCL_KERNEL_CACHE", "0")
    return os.getpid()


@frozen
class DeviceChoice:
    """Chosen OpenCL platform and device."""

    platform: Any
    device: Any

    @property
    def text(self) -> str:
        """Description in one line."""
        return f"{self.platform.name} ({self.platform.version.strip()}): {self.device.name.strip()}"


def _version(platform: Any) -> tuple[int, ...]:
    match = re.search(r"PoCL (\d+)\.(\d+)", platform.version)
    return tuple(map(int, match.groups())) if match else (0, 0)


def choose_device() -> DeviceChoice:
    """Choose a platform by rule, not by its position in the list.

    `CUTS_OPENCL_PLATFORM` (part of a name or version) decides; without it the newest PoCL, otherwise the first platform
    by name, among those that pass a correctness test (`probe`).

    Raises `BackendError` where no platform is installed, none has that name, or none computes right.
    """
    cl = import_opencl()
    try:
        platforms = [p for p in cl.get_platforms() if p.get_devices()]
    except cl.Error:
        platforms = []
    if not platforms:
        raise BackendError(
            "no OpenCL platform is installed", hint=f"{install_command('opencl')} brings PoCL, which runs on the CPU"
        )
    wanted = os.environ.get("CUTS_OPENCL_PLATFORM", "").lower()
    matching = [p for p in platforms if wanted in f"{p.name} {p.version}".lower()]
    if not matching:
        names = "; ".join(f"{p.name} ({p.version.strip()})" for p in platforms)
        raise BackendError(
            f"CUTS_OPENCL_PLATFORM: no platform has '{wanted}' in its name or version", hint=f"platforms are: {names}"
        )
    order = sorted(matching, key=lambda p: (p.name != POCL, tuple(-n for n in _version(p)), p.name, p.version))
    choices = [DeviceChoice(p, sorted(p.get_devices(), key=lambda d: d.name)[0]) for p in order]
    if wanted:
        return choices[0]
    for choice in choices:
        if _is_sound(choice.device):
            return choice
        _LOG.warning("%s computes a small kernel wrongly and is passed over", choice.text)
    raise BackendError(
        f"no OpenCL platform computes a small kernel with a barrier right: {'; '.join(c.text for c in choices)}",
        hint=f"{install_command('opencl')} brings one that does; CUTS_OPENCL_PLATFORM=<part of a name> takes any",
    )


def opencl_library() -> str | None:
    """Return the path of PyOpenCL's own OpenCL library.

    None where it uses the system's.
    """
    folder = Path(import_opencl().__file__).parent
    own = (*folder.glob(".libs/libOpenCL*"), *folder.parent.glob("pyopencl.libs/libOpenCL*"))
    return next(map(str, own), None)


@cache
def _is_sound(device: Any) -> bool:
    """Return whether a device compiles a known difficult kernel correctly."""
    cl = import_opencl()
    try:
        return computes_right(cl, device_context(device))
    except cl.Error:
        return False


@cache
def device_context(device: Any) -> Any:
    """Return the one context of a device.

    PoCL reads its library of functions again for each, which takes longer than a kernel.
    """
    if device.platform.name == POCL and _version(device.platform)[:1] == (3,) and name_processor(device.int_ptr):
        _LOG.debug("PoCL does not know this processor and builds for an older one")
    return import_opencl().Context([device])
