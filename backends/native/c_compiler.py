"""The C compiler of this machine, and its command for the runner."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

LIBRARY_NAME = "libcuts_run.so"
#: Options of the compiler: records are read in place, through pointers to structs over the bytes of a file.
COMPILER_OPTIONS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-pthread",
)
#: Further options of a library that is shipped.
LIBRARY_OPTIONS = ("-shared", "-s")
_COMPILERS = ("cc", "gcc", "clang")


def find_c_compiler() -> str | None:
    """Return the C compiler.

    It is that of the variable CC, or the first of cc, gcc and clang; None where there is none.
    """
    found = (shutil.which(name) for name in (os.environ.get("CC"), *_COMPILERS) if name)
    return next((path for path in found if path), None)


def compile_command(
    compiler: str, target: Path, sources: Iterable[Path], include: Path, options: Sequence[str]
) -> list[str]:
    """Return the command that compiles and links C sources."""
    command = [compiler, *COMPILER_OPTIONS, f"-I{include}", *options, "-o", str(target)]
    return [*command, *map(str, sources), "-ldl"]
