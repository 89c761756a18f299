"""File of one kind of a layer's tensors, in the safetensors format.

One read from the disk brings all of it. The header is padded with spaces to a page, so that data begins where direct
reads and vector loads may begin; the tensors follow each other without gaps. Other programs read such a file as any
other.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from ...ir import DType, PlanError

#: Bytes of a page, and the alignment of tensors in bytes, so that vectors may be loaded.
PAGE, ALIGNMENT = 4096, 256
#: The name of the padding between tensors: a safetensors file has no holes.
FILLING = "filling"


def round_to_pages(nbytes: int) -> int:
    """Return a number of bytes rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


@frozen
class FileLayout:
    """Layout of a layer's file.

    It has the shapes of tensors of one type by name, in order, and the begin of each after the header, in bytes;
    `nbytes` are all, with the zeros between tensors.
    """

    shapes: Mapping[str, tuple[int, ...]]
    offsets: Mapping[str, int]
    nbytes: int
    dtype: DType = DType.F32

    @property
    def header(self) -> bytes:
        """The file's first page or pages."""
        entries: dict[str, object] = {}
        kind, width = self.dtype.file_name, self.dtype.size
        following = [*list(self.offsets.values())[1:], self.nbytes]
        for (name, shape), near in zip(self.shapes.items(), following, strict=True):
            begin, end = self.offsets[name], self.offsets[name] + width * math.prod(shape)
            entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
            if near > end:
                room = {"dtype": kind, "shape": [(near - end) // width], "data_offsets": [end, near]}
                entries[f"{FILLING}.{name}"] = room
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % PAGE)
        return len(text).to_bytes(8, "little") + text

    @property
    def start(self) -> int:
        """The begin of the data in the file."""
        return len(self.header)

    @property
    def file_bytes(self) -> int:
        """The whole file's size."""
        return self.start + self.nbytes


def layout(
    shapes: Mapping[str, tuple[int, ...]], dtype: DType = DType.F32, narrowest: DType | None = None
) -> FileLayout:
    """Return the layout of tensors, each aligned for vector loads.

    An element has the same number in files of all types of a model if they are given its `narrowest` type.
    """
    offsets, cursor = {}, 0
    room = ALIGNMENT // (narrowest or dtype).size  # elements
    for name, shape in shapes.items():
        offsets[name] = cursor * dtype.size
        cursor += -(-math.prod(shape) // room) * room
    return FileLayout(dict(shapes), offsets, cursor * dtype.size, dtype)


def create(path: Path, made: FileLayout) -> None:
    """Create a file with its header, its size reserved on the disk.

    Raises `PlanError` where the disk is full.
    """
    draft = path.with_name(f".{path.name}.part")
    reserve(draft, made.file_bytes, made.header)
    os.replace(draft, path)


def reserve(path: Path, nbytes: int, header: bytes = b"") -> None:
    """Create a file of so many bytes, all reserved on the disk.

    Raises `PlanError` where it is full, and leaves no file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, header, 0)
            os.posix_fallocate(file, 0, nbytes)
            os.ftruncate(file, nbytes)
        finally:
            os.close(file)
    except OSError as error:
        with suppress(OSError):  # where it could not even be made
            path.unlink(missing_ok=True)
        raise storage_error(error, path, nbytes) from error


def check(path: Path, made: FileLayout) -> None:
    """Check a file's size and header.

    Raises `PlanError` where it is missing, cut short, or has another layout.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(len(made.header))
    except OSError as error:
        raise storage_error(error, path, made.file_bytes) from error
    if size != made.file_bytes:
        raise PlanError(
            f"{path}: expected {made.file_bytes} bytes, found {size}", hint="the file was cut short: restore it"
        )
    if head != made.header:
        raise PlanError(
            f"{path}: its tensors are not those of the plan's model", hint="use the folder that was made for this model"
        )


def storage_error(error: OSError, path: Path, nbytes: int) -> PlanError:
    """Return the error of a failed access to storage."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "what earlier steps wrote is whole: free space and run the plan again, "
        hint += "it goes on from the last finished step"
        return PlanError(f"{path}: the disk is full: no room for {nbytes} bytes", hint=hint)
    return PlanError(f"{path}: {error.strerror or error}")
