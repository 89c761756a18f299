"""The runner of plans, `libcuts_run`: the wheel's, or built here."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ...ir import BackendError
from ...store import cache_root, create_private_folder, digest_parts
from .c_interface import open_library

SOURCE_FOLDER = Path(__file__).parent / "source"
LIBRARY_NAME = "libcuts_run.so"
#: Libraries of engines that contain the runner, by the name of their source.
DOOR_FOLDER = Path(__file__).parent / "doors"
DOOR_NAMES = {"onnxruntime": "libcuts_onnxruntime.so", "triton": "libtriton_cuts.so"}
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
_COMPILERS = ("cc", "gcc", "clang")


def find_compiler() -> str:
    """Return the C compiler.

    It is that of the variable CC, or the first of cc, gcc and clang.

    Raises `BackendError` where there is none.
    """
    for name in (os.environ.get("CC"), *_COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise BackendError("no C compiler was found: neither CC nor cc, gcc or clang", hint="install gcc")


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
    compile_c(target, library_sources(), ["-shared", "-s", *options])
    return target


def build_door(name: str, folder: str | os.PathLike[str], options: Sequence[str] = ()) -> Path:
    """Compile an engine's library into a folder and return its path.

    The library contains the runner.

    Raises `BackendError` with the compiler's text where it fails.
    """
    target = Path(folder) / DOOR_NAMES[name]
    compile_c(target, [DOOR_FOLDER / f"{name}.c", *library_sources()], ["-shared", "-s", *options])
    return target


def compile_c(target: Path, sources: Sequence[Path], options: Sequence[str]) -> None:
    """Compile and link C sources with the library's options.

    Raises `BackendError` with the compiler's text where it fails.
    """
    command = [find_compiler(), *COMPILER_OPTIONS, f"-I{SOURCE_FOLDER}", *options, "-o", str(target)]
    done = subprocess.run([*command, *map(str, sources), "-ldl"], capture_output=True, text=True)
    if done.returncode:
        raise BackendError(f"{command[0]} cannot build {target}: {done.stderr.strip()}")


@cache
def native_library() -> ctypes.CDLL:
    """Return the opened library.

    It is the package's, where a wheel has it, or built once and kept in the cache.

    Raises `BackendError` where there is neither a library nor a C compiler.
    """
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
