"""Checked access to the files that a model refers to.

Only regular files inside the model's own folder are mapped. A model is untrusted input: a reference from it must not
reach other files (`../`, an absolute path), nor borrow them by a symbolic or hard link, nor block on a device or a
pipe. The checks are made on the open descriptor, so that no other process can swap the file in between.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..ir import GraphError, quote

MAX_WEIGHT_BYTES = 1 << 36
_NO_FOLLOW = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def resolve_inside(folder: Path, reference: str) -> Path:
    """Return the path that `reference` names inside `folder`.

    Raises `GraphError` where it leaves the folder or passes through a link.
    """
    shape = PurePosixPath(reference)
    escapes = (
        shape.is_absolute()
        or ".." in shape.parts
        or PureWindowsPath(reference).drive
        or "\\" in reference
        or "\0" in reference
    )
    if escapes or not shape.parts:
        raise GraphError(
            f"file {quote(reference)} is not a path inside the model's folder",
            hint="put it beside the model and name it so",
        )
    path = folder.resolve()
    for part in shape.parts:
        path = path / part
        if path.is_symlink():
            raise GraphError(
                f"file {quote(reference)} passes through a symbolic link", hint="copy the file into the model's folder"
            )
    return path


def map_inside(folder: Path, reference: str, max_bytes: int = MAX_WEIGHT_BYTES) -> memoryview:
    """Map a file of the model's folder read-only.

    The file must be regular, no link of any kind, and at most `max_bytes` long.

    Raises `GraphError` where it is anything else, or cannot be opened.
    """
    path = resolve_inside(folder, reference)
    where = f"file {quote(reference)}"
    try:
        handle = os.open(path, os.O_RDONLY | _NO_FOLLOW)
    except OSError as error:
        raise GraphError(f"{where} beside the model cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise GraphError(f"{where} is not a regular file")
        if status.st_nlink > 1:
            raise GraphError(f"{where} is a hard link: {status.st_nlink} names share its content", hint="copy the file")
        if status.st_size > max_bytes:
            raise GraphError(f"{where}: expected at most {max_bytes} bytes, found {status.st_size}")
        return (
            memoryview(mmap.mmap(handle, status.st_size, access=mmap.ACCESS_READ))
            if status.st_size
            else memoryview(b"")
        )
    finally:
        os.close(handle)


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a file that the user named.

    The file must be UTF-8 and at most `max_bytes` long.

    Raises `GraphError` where it is not, or cannot be read.
    """
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise GraphError(f"{path}: expected at most {max_bytes} bytes, found {size}")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise GraphError(
            f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x} at offset {error.start}"
        ) from None
    except OSError as error:
        raise GraphError(f"{path}: {error.strerror}") from error
