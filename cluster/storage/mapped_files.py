"""Files in host memory, mapped and pinned.

The device copies from and to the pages of a file of a memory file system (tmpfs), so that no processor copies them to a
pinned buffer first:

    file -> pinned buffer -> device    becomes    file -> device
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from attrs import define, field

from ...backends import Array, Transfers
from ...ir import BackendError

#: Mounts of this process, on Linux, and the file systems whose pages stay in memory.
MOUNTS, MEMORY_TYPES = Path("/proc/self/mountinfo"), ("tmpfs", "ramfs")


def memory_devices() -> frozenset[int]:
    """Return the numbers of the devices that are memory file systems."""
    found = set()
    for line in MOUNTS.read_text(encoding="utf-8").splitlines() if MOUNTS.exists() else ():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in MEMORY_TYPES:
            major, minor = map(int, before.split()[2].split(":"))
            found.add(os.makedev(major, minor))
    return frozenset(found)


@define
class MappedFiles:
    """Mapped files by device and number, None where one cannot be pinned."""

    transfers: Transfers
    devices: frozenset[int] = field(factory=memory_devices)
    _known: dict[tuple[int, int], Array | None] = field(factory=dict)

    def find(self, path: Path) -> Array | None:
        """Return the bytes of a file in memory, else None."""
        if not path.exists():
            return None
        facts = os.stat(path)
        if facts.st_dev not in self.devices or not facts.st_size:
            return None
        key = facts.st_dev, facts.st_ino
        if key not in self._known:
            with path.open("r+b") as file:
                data = np.frombuffer(mmap.mmap(file.fileno(), facts.st_size), np.uint8)
            try:
                self._known[key] = self.transfers.pin(data)
            except BackendError:  # a system may allow too few pinned bytes
                self._known[key] = None
        return self._known[key]

    def close(self) -> None:
        """Forget all files."""
        self._known.clear()
