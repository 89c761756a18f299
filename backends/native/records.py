"""Records of a packed plan, which the runner reads in place.

A packed plan is a header of `HEADER_BYTES`, a table of sections, and the sections, each at a multiple of
`SECTION_ALIGNMENT`. Numbers are little-endian. A section is an array of records of one layout; `source/plan_file.h` has
the same layouts as C structs, and a test compares both.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from attrs import frozen

MAGIC, VERSION = b"cutsplan", 2
#: Header: magic, version, number of sections, bytes of the file, and after these the digest of everything else.
HEADER = struct.Struct("<8sIIQ")
HEADER_BYTES, SECTION_ALIGNMENT = 64, 64
SECTION = struct.Struct("<IIQQQ")
#: Numbers of dialects in a file.
DIALECTS = {"opencl": 1, "cuda": 2}
#: Marks an absent number: no argument, or dependencies that are just the launch before.
NONE = 0xFFFFFFFF


@frozen
class RecordLayout:
    """Layout of the records of a section.

    `fields` are names with codes of `struct`: I and i are 32 bits, Q and q 64, and B and H 8 and 16. A name with `_str`
    is the first byte of a text in the section of texts, and its length.
    """

    kind: int
    name: str
    fields: tuple[tuple[str, str], ...]

    @property
    def struct(self) -> struct.Struct:
        """The packed form of a record."""
        return struct.Struct("<" + "".join(code for _, code in self.fields))


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a packed plan's file."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _layout(kind: int, name: str, text: str) -> RecordLayout:
    return RecordLayout(kind, name, tuple((n, c) for n, c in (word.split(":") for word in text.split())))


#: The sections of a plan by name, each once and in this order.
LAYOUTS: Mapping[str, RecordLayout] = {
    layout.name: layout
    for layout in (
        _layout(1, "info", "name:II cuts:II target:II options:II dialect:I capability:I reserved:Q"),
        _layout(2, "block", "kind:I reserved:I nbytes:Q"),
        _layout(
            3, "tensor",
            "name:II role:I block:I code:B bits:B lanes:H rank:I partner:I reserved:I first_extent:Q offset:Q nbytes:Q",
        ),
        _layout(4, "image", "block:I reserved:I offset:Q nbytes:Q data:Q"),
        _layout(5, "program", "data:Q nbytes:Q"),
        _layout(
            6, "kernel",
            "name:II program:I first_argument:I argument_count:I waits:I grid:III block:III static_shared:I "
            "dynamic_shared:I",
        ),
        _layout(7, "argument", "element_bytes:I map:I"),
        _layout(
            8, "map",
            "type:I rank:I swizzle:I promotion:I extents:5Q strides:4Q box:5I walked:I starts:3i ends:3i steps:3I "
            "reserved:I",
        ),
        _layout(
            9, "launch",
            "kernel:I first_address:I first_wait:I wait_count:I evict_first:I reserved:I evict_first_bytes:Q",
        ),
        _layout(10, "address", "block:I reserved:I offset:Q"),
        _layout(
            11, "copy",
            "after:I reserved:I source_block:I reserved2:I source:Q target_block:I reserved3:I target:Q width:Q "
            "height:Q source_pitch:Q target_pitch:Q",
        ),
        _layout(12, "number", "value:q"),
        _layout(13, "text", "byte:B"),
        _layout(14, "data", "byte:B"),
    )
}  # fmt: skip


class RecordTables:
    """Sections under construction: records by section, texts and bulk data once each."""

    def __init__(self) -> None:
        self._rows: dict[str, list[bytes]] = {name: [] for name in LAYOUTS}
        self._counts = dict.fromkeys(LAYOUTS, 0)
        self._known: dict[tuple[str, bytes], int] = {}

    def add(self, section: str, *values: object) -> int:
        """Append a record and return its number."""
        self._rows[section].append(LAYOUTS[section].struct.pack(*values))
        return self._append(section, 1)

    def count(self, section: str) -> int:
        """Return the number of records of a section."""
        return self._counts[section]

    def _append(self, section: str, count: int) -> int:
        number = self._counts[section]
        self._counts[section] += count
        return number

    def text(self, text: str) -> tuple[int, int]:
        """Return the first byte and the length of a zero-terminated text."""
        content = text.encode()
        return self._once("text", content + b"\0", 1), len(content)

    def data(self, content: bytes) -> int:
        """Return the first byte of bulk data."""
        return self._once("data", content, SECTION_ALIGNMENT)

    def _once(self, section: str, content: bytes, alignment: int) -> int:
        key = section, hashlib.sha256(content).digest()
        if key not in self._known:
            padded = content + bytes(-len(content) % alignment)
            self._rows[section].append(padded)
            self._known[key] = self._append(section, len(padded))
        return self._known[key]

    def numbers(self, values: Sequence[int]) -> int:
        """Return the number of the first of some integers."""
        first = self.count("number")
        for value in values:
            self.add("number", value)
        return first

    def to_bytes(self) -> bytes:
        """Return the file: header, table of sections, sections."""
        contents = {name: b"".join(rows) for name, rows in self._rows.items()}
        end, table, body = _align(HEADER_BYTES + len(LAYOUTS) * SECTION.size), [], []
        for name, layout in LAYOUTS.items():
            table.append(SECTION.pack(layout.kind, layout.struct.size, end, len(contents[name]), 0))
            body.append(contents[name] + bytes(-len(contents[name]) % SECTION_ALIGNMENT))
            end += len(body[-1])
        head = b"".join(table)
        rest = head + bytes(_align(HEADER_BYTES + len(head)) - HEADER_BYTES - len(head)) + b"".join(body)
        return with_header(rest)


def with_header(rest: bytes) -> bytes:
    """Return a file with its header: magic, version, counts and digest."""
    front = HEADER.pack(MAGIC, VERSION, len(LAYOUTS), HEADER_BYTES + len(rest))
    digest = hashlib.sha256(front)
    digest.update(rest)
    return (front + digest.digest()).ljust(HEADER_BYTES, b"\0") + rest


def read_dialect(source: str | os.PathLike[str] | bytes) -> int | None:
    """Return the number of a packed plan's dialect, unchecked.

    None where there is none.
    """
    info = LAYOUTS["info"]
    with suppress(OSError, struct.error), BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        file.seek(HEADER_BYTES)
        file.seek(SECTION.unpack(file.read(SECTION.size))[2])
        return int(info.struct.unpack(file.read(info.struct.size))[-3])
    return None


def _align(end: int) -> int:
    return -(-end // SECTION_ALIGNMENT) * SECTION_ALIGNMENT
