"""Archives of `torch.export.save` (`.pt2`).

An archive is a zip file: the program as JSON with the version of its schema, weights beside it. Both are checked before
PyTorch opens it, so that damage and other versions get a clear message. A model is untrusted input: PyTorch unpickles
tensors only, so that an archive cannot run code of its own.
"""

from __future__ import annotations

import json
import logging
import lzma
import os
import typing
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import serialize
from torch._export.serde.schema import SCHEMA_VERSION

from ....ir import GraphError

_PROGRAM = "models/model.json"
_OLD_PROGRAM = "serialized_exported_program.json"
_MAX_PROGRAM_BYTES = 1 << 30
_HINT = "write it again with torch.export.save"
#: Errors of a damaged file: its directory, a member that ends early or that a decompressor refuses, one that is
#: encrypted, compressed in an unknown way or nested too deep (all of these are a `RuntimeError`), text that is no JSON.
_DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError, ValueError)


def load_archive(path: Path) -> torch.export.ExportedProgram:
    """Return the exported program in a file.

    Raises `GraphError` where PyTorch cannot read the archive.
    """
    _check(path)
    try:
        return load_program(path)
    except Exception as error:  # no narrower class: every part of an archive has its own reader, with its own errors
        raise GraphError(
            f"{path}: PyTorch {torch.__version__} cannot read this archive: {_first_line(error)}", hint=_HINT
        ) from error


def load_program(source: Any) -> torch.export.ExportedProgram:
    """Return the exported program of a path or binary file.

    It may unpickle tensors only.
    """
    with _tensors_only(), _quiet(), _cached_type_hints():
        program: torch.export.ExportedProgram = torch.export.load(source)
        return program


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Let `torch.load` unpickle nothing but tensors and plain containers."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Typing:
    """Proxy of the module `typing` that caches the type hints of classes."""

    def __init__(self) -> None:
        self._found: dict[Any, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(typing, name)

    def get_type_hints(self, of: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return the types of a class's fields.

        All callers pass the same options.
        """
        if of not in self._found:
            self._found[of] = typing.get_type_hints(of, *arguments, **options)
        return self._found[of]


@contextmanager
def _cached_type_hints() -> Iterator[None]:
    """Let PyTorch's reader of programs resolve the types of a class once, not for each object."""
    before = getattr(serialize, "typing", None)
    if before is not typing:  # it asks in another way, or another thread reads too
        yield
        return
    reader: Any = serialize
    reader.typing = _Typing()
    try:
        yield
    finally:
        reader.typing = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress PyTorch's log output; the error carries it."""
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _check(path: Path) -> None:
    """Raise where a file is no archive of one exported program of a supported version."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n == _OLD_PROGRAM or n.endswith(f"/{_PROGRAM}")]
            if len(names) != 1:
                raise GraphError(f"{path}: expected an exported program named 'model', found {len(names)}", hint=_HINT)
            if archive.getinfo(names[0]).file_size > _MAX_PROGRAM_BYTES:
                raise GraphError(f"{path}: its program has more than {_MAX_PROGRAM_BYTES} bytes")
            program = json.loads(archive.read(names[0]))
    except OSError as error:
        raise GraphError(f"{path}: {error.strerror or error}") from error
    except _DAMAGE as error:
        raise GraphError(
            f"{path}: not a torch.export archive (or a damaged one): {_first_line(error)}", hint=_HINT
        ) from None
    version = program.get("schema_version") if isinstance(program, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if major != SCHEMA_VERSION[0]:
        found = "none" if major is None else f"{major}"
        message = (
            f"{path}: PyTorch {torch.__version__} reads archives of schema version {SCHEMA_VERSION[0]}, found {found}"
        )
        raise GraphError(message, hint=f"{_HINT} of this version")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
