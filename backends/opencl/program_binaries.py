"""Binaries of OpenCL programs for a device, its driver and settings.

A binary begins with a digest of all that it depends on, the program's source included. Another device, or another
driver, finds another digest and compiles the source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...store import digest_parts
from .device_choice import DeviceChoice

#: Variables that change PoCL's compilation; others set its folders.
_SETTING = re.compile(r"POCL_(?!CACHE_DIR|KERNEL_CACHE)")
_KEY_BYTES = 64


def compiler_settings() -> Mapping[str, str]:
    """Return the variables of the environment that change PoCL's compilation."""
    return {name: value for name, value in sorted(os.environ.items()) if _SETTING.match(name)}


class ProgramBinaries:
    """Binaries of one device's programs, with the options of its builds."""

    def __init__(self, choice: DeviceChoice, options: Sequence[str]) -> None:
        platform, device = choice.platform, choice.device
        names = (platform.name, platform.version, device.name, device.version, device.driver_version)
        self._facts = [*names, *options, *(f"{name}={value}" for name, value in compiler_settings().items())]

    def _key(self, source: str) -> bytes:
        return digest_parts([*self._facts, source]).encode()

    def pack(self, source: str, program: Any, binaries: int) -> bytes | None:
        """Return a built program's binary with its key, by a query's number."""
        (code,) = program.get_info(binaries)
        return self._key(source) + code if code else None

    def find(self, source: str, binaries: Iterable[bytes | None]) -> bytes | None:
        """Return the binary of a source among others, or None."""
        key = self._key(source)
        return next((each[_KEY_BYTES:] for each in binaries if each and each.startswith(key)), None)
