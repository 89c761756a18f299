"""What a compiler refused: its source and the whole log go to files, the error shows the first fault and says where
they are.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from ..ir import BackendError, KernelFunction
from .cache import cache_root, private_folder
from .source import DIALECTS

#: Below the cache folder; a tuner that tries thousands of kernels leaves the newest few.
_FOLDER, _KEPT = "refused", 32
_FAULT = re.compile(r"\b(?:fatal )?error\b", re.IGNORECASE)


def refused(kernel: KernelFunction, where: str, source: str, log: str) -> BackendError:
    """Return the error that a kernel does not compile: the first fault of the log, and the files that hold source and
    log.
    """
    message = f"kernel {kernel.name} does not compile for {where}: {first_fault(log)}"
    try:
        path = _written(kernel, source, log)
    except (OSError, BackendError):
        return BackendError(message, hint="its source could not be written to a file")
    return BackendError(message, hint=f"its source is {path}, the whole log is beside it")


def first_fault(log: str) -> str:
    """Return the first line of a log that tells of an error, or the first that says anything."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if _FAULT.search(line)), lines[0] if lines else "the compiler does not say why")


def _written(kernel: KernelFunction, source: str, log: str) -> Path:
    """Write source and log, without leaving more than the newest few; return the path of the source."""
    root = cache_root()
    folder = Path(tempfile.mkdtemp(prefix="cuts-")) if root is None else private_folder(root / _FOLDER)
    path = folder / f"{kernel.name}{DIALECTS[kernel.dialect].suffix}"
    path.write_text(source, encoding="utf-8")
    path.with_suffix(".log").write_text(log, encoding="utf-8")
    for old in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)[: -2 * _KEPT]:
        old.unlink(missing_ok=True)
    return path
