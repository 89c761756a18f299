"""The runner of plans, `libcuts_run`: the wheel's, or built here."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread

from ...ir import BackendError
from ...store import cache_root, create_private_folder, digest_parts
from .c_compiler import COMPILER_OPTIONS, LIBRARY_NAME, LIBRARY_OPTIONS, compile_command, find_c_compiler
from .c_interface import open_library

SOURCE_FOLDER = Path(__file__).parent / "source"
_OPENING = Lock()


def find_compiler() -> str:
    """Return the C compiler.

    Raises `BackendError` where there is none.
    """
    if (found := find_c_compiler()) is None:
        raise BackendError("no C compiler was found: neither CC nor cc, gcc or clang", hint="install gcc")
    return found


def library_sources() -> tuple[Path, ...]:
    """Return the C files of the library."""
    return tuple(sorted(SOURCE_FOLDER.glob("*.c")))


def build_library(folder: str | os.PathLike[str], options: Sequence[str] = ()) -> Path:
    """Compile the library into a folder and return its path.

    `options` follow the usual ones.

    Raises `BackendError` with the compiler's text where it fails.
    """
    target = Path(folder) / LIBRARY_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    compile_c(target, library_sources(), [*LIBRARY_OPTIONS, *options])
    return target


def compile_c(target: Path, sources: Sequence[Path], options: Sequence[str]) -> None:
    """Compile and link C sources with the library's options.

    Raises `BackendError` with the compiler's text where it fails.
    """
    command = compile_command(find_compiler(), target, sources, SOURCE_FOLDER, options)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BackendError(f"{command[0]} cannot build {target}: {done.stderr.strip()}")


@cache
def has_native_library() -> bool:
    """Return whether there is a library, or a compiler for it.

    Warn where there is neither.
    """
    if library_origin() is None:
        logging.getLogger(__name__).warning(
            "plans are launched kernel by kernel: the package has no %s, and there is no C compiler", LIBRARY_NAME
        )
    return library_origin() is not None


def library_origin() -> str | None:
    """Return where the library is from: the package, or a C compiler."""
    own = Path(__file__).parent / LIBRARY_NAME
    return str(own) if own.is_file() else find_c_compiler()


def begin_native_library() -> None:
    """Open the library in the background: a missing one is built meanwhile."""
    if has_native_library():
        Thread(target=_open_quietly, daemon=True).start()


def _open_quietly() -> None:
    with suppress(BackendError, OSError):  # its user reports it; a process that ends removes the folder of the build
        native_library()


def native_library() -> ctypes.CDLL:
    """Return the opened library.

    It is the package's, where a wheel has it, or built once and kept in the cache.

    Raises `BackendError` where there is neither a library nor a C compiler.
    """
    with _OPENING:
        return _opened_library()


@cache
def _opened_library() -> ctypes.CDLL:
    own = Path(__file__).parent / LIBRARY_NAME
    return open_library(own if own.is_file() else _cached_library())


def _cached_library() -> Path:
    """Return the library of the present sources in the cache, built where it is missing."""
    root = cache_root()
    content = [path.read_text(encoding="utf-8") for path in sorted(SOURCE_FOLDER.glob("*.[ch]"))]
    folder = root and create_private_folder(root / "native")
    if folder is None:
        return build_library(_scratch_folder())
    target = folder / digest_parts([find_compiler(), *COMPILER_OPTIONS, *content]) / LIBRARY_NAME
    if not target.is_file():
        with TemporaryDirectory(dir=folder) as draft:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            build_library(draft).replace(target)
    return target


def _scratch_folder() -> str:
    folder = TemporaryDirectory(prefix="cuts-native-")
    atexit.register(folder.cleanup)
    return folder.name
