"""How much memory this process may still take, so that what cannot fit is refused before it is tried."""

from __future__ import annotations

import resource
from pathlib import Path

from ..ir import BackendError


def require_host_memory(nbytes: int, what: str) -> None:
    """Raise `BackendError` where the host has not that many bytes left for us; `what` needs them."""
    left = available_bytes()
    if left is not None and nbytes > left:
        raise BackendError(f"{what} needs {nbytes:,} bytes of memory, {left:,} are left", hint="use smaller shapes")


def available_bytes() -> int | None:
    """Return how many bytes this process may still take, by the machine and by its own limit; None where unknown."""
    found = [n for n in (_of_machine(), _of_limit()) if n is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    """What the kernel thinks can be had without swapping."""
    return _kilobytes("/proc/meminfo", "MemAvailable:")


def _of_limit() -> int | None:
    """What the limit on the address space leaves."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _kilobytes("/proc/self/status", "VmSize:")
    return None if limit == resource.RLIM_INFINITY or used is None else max(limit - used, 0)


def _kilobytes(path: str, name: str) -> int | None:
    try:
        lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
