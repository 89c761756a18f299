"""Processor names for a PoCL that does not know the processor.

PoCL 3.0, which the extra `opencl` brings, asks its LLVM 14 for the processor's name. A newer one (AMD's
family 26) is "generic" to LLVM, a name that clang refuses: "unknown target CPU 'generic'", and no kernel is built. PoCL
has no setting for it, but reads the name for each build from its description of a device: after the triple of the
machine. This module writes an older processor there whose instructions the present one has.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

#: PoCL's name of an unknown processor, with the end of the text: 8 bytes of memory.
_UNKNOWN = b"generic\0"
#: Processor name of the same length, and its features as /proc/cpuinfo lists them.
_SUBSTITUTE, _NEEDS = b"haswell\0", frozenset(["avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"])
_TRIPLE = b"x86_64-"
#: Words of PoCL's device description; the name is the 80th of PoCL 3.0.
_WORDS = 160


def name_processor(device: int, flags: frozenset[str] | None = None) -> bool:
    """Set the processor's name of PoCL's device; return whether it was set.

    It is set where PoCL does not know the processor and it has the instructions of a known one.
    """
    if not (_flags() if flags is None else flags) >= _NEEDS:
        return False
    readable, writable = _memory("r"), _memory("rw")
    before = b""
    for place in range(device, device + 8 * _WORDS, 8):
        if not _is_readable(place, readable):
            return False
        address = ctypes.c_size_t.from_address(place).value
        text = ctypes.string_at(address, 8) if _is_readable(address, readable) else b""
        if text == _UNKNOWN and before.startswith(_TRIPLE) and _is_readable(address, writable):
            ctypes.memmove(address, _SUBSTITUTE, len(_SUBSTITUTE))
            return True
        before = text
    return False


def _is_readable(address: int, ranges: list[tuple[int, int]]) -> bool:
    """Return whether eight bytes of memory can be read: most words of a description are no addresses."""
    return any(begin <= address and address + 8 <= end for begin, end in ranges)


def _memory(rights: str) -> list[tuple[int, int]]:
    """Return the ranges of this process's memory with these rights; none where the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = (re.match(rf"(\w+)-(\w+) {rights}", line) for line in lines)
    return [(int(match[1], 16), int(match[2], 16)) for match in found if match]


def _flags() -> frozenset[str]:
    """Return the features of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()
