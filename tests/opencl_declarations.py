"""Programs that declare only those of OpenCL's functions that they use.

PoCL reads a header of 18,000 lines for each program, which takes 60 of the 70 ms that building one takes. By day most
tests have it read the lines that matter; files of tests that say `as_users_build` have the whole header.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

#: Defining it makes PoCL skip the header.
HEADER_GUARD_OPTION = "-D_OPENCL_H_"
_FOLDER = ".libs/share/pocl/include"
_UNIT = re.compile(r"^#(?:.*\\\n)*.*$|^[^\s#/][^;]*;", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"\b(\w+)\s*\(")
_WORD = re.compile(r"\w+")


def declare_functions(source: str) -> str | None:
    """Return a program without headers, or None without a packaged PoCL."""
    if not _units():
        return None
    words, lines = set(_WORD.findall(source)), list[str]()
    for name, text in _units():
        if text.startswith("#endif") and lines[-1].startswith("#if"):
            lines.pop()  # nothing in between is used
        elif not name or name in words:
            lines.append(text)
    return "\n".join([*lines, "#line 1", source])


@cache
def _units() -> tuple[tuple[str, str], ...]:
    """Return the lines of the header: directives without a name, and functions by theirs."""
    found = find_spec("pocl_binary_distribution")
    if found is None or not found.submodule_search_locations:
        return ()
    folder = Path(found.submodule_search_locations[0]) / _FOLDER
    whole, base = ((folder / name).read_text() for name in ("opencl-c.h", "opencl-c-base.h"))
    text = _COMMENT.sub("", whole).replace('#include "opencl-c-base.h"', "").replace("_OPENCL_H_", "_DECLARED_")
    units = [(_name(unit), unit.strip()) for unit in _UNIT.findall(text)]
    return (("", base), *units)


def _name(unit: str) -> str:
    """Return the name of the function that is declared."""
    match = None if unit.startswith("#") else _FUNCTION.search(unit.replace("__attribute__((", ""))
    return match[1] if match else ""
