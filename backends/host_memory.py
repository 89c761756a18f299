"""Host memory that is available to this process."""

from __future__ import annotations

import resource
from pathlib import Path

from ..ir import BackendError


def require_host_memory(nbytes: int, subject: str) -> None:
    """Raise `BackendError` where `subject` needs more memory than is available."""
    left = available_bytes()
    if left is not None and nbytes > left:
        raise BackendError(f"{subject} needs {nbytes:,} bytes of memory, {left:,} are left", hint="use smaller shapes")


def available_bytes() -> int | None:
    """Return the available bytes of machine and process; None where unknown."""
    found = [n for n in (_machine_memory(), _limited_memory()) if n is not None]
    return min(found, default=None)


def _machine_memory() -> int | None:
    """Return the kernel's estimate of memory without swapping."""
    return _kilobytes("/proc/meminfo", "MemAvailable:")


def _limited_memory() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _kilobytes("/proc/self/status", "VmSize:")
    return None if limit == resource.RLIM_INFINITY or used is None else max(limit - used, 0)


def _kilobytes(path: str, name: str) -> int | None:
    try:
        lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
