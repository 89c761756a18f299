"""Compiler diagnostics: the refused source and the log, in files.

The error shows the first fault and the path of the files.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from ..ir import BackendError, KernelFunction
from ..store import cache_root, create_private_folder

#: Folder in the cache, and number of stored files: a tuner that tries thousands of kernels keeps the newest.
_FOLDER, _MAX_FILES = "refused", 32
_FAULT = re.compile(r"\b(?:fatal )?error\b", re.IGNORECASE)


def compile_error(kernel: KernelFunction, where: str, source: str, log: str) -> BackendError:
    """Return the error of a kernel that does not compile.

    It has the first fault of the log, and the paths of the source and the log.
    """
    message = f"kernel {kernel.name} does not compile for {where}: {first_fault(log)}"
    try:
        path = _write_files(kernel, source, log)
    except (OSError, BackendError):
        return BackendError(message, hint="its source could not be written to a file")
    return BackendError(message, hint=f"its source is {path}, the whole log is beside it")


def first_fault(log: str) -> str:
    """Return the first error line of a log, or its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if _FAULT.search(line)), lines[0] if lines else "the compiler does not say why")


def _write_files(kernel: KernelFunction, source: str, log: str) -> Path:
    """Write source and log, delete all but the newest files, and return the path of the source."""
    root = cache_root()
    folder = (root and create_private_folder(root / _FOLDER)) or Path(tempfile.mkdtemp(prefix="cuts-"))
    path = folder / f"{kernel.name}{kernel.source_suffix}"
    path.write_text(source, encoding="utf-8")
    path.with_suffix(".log").write_text(log, encoding="utf-8")
    for old in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)[: -2 * _MAX_FILES]:
        old.unlink(missing_ok=True)
    return path
