"""Libraries of engines, which contain the runner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...backends.native import LIBRARY_OPTIONS, compile_c, library_sources

ENGINE_FOLDER = Path(__file__).parent / "engines"
#: Libraries by the name of their source.
ENGINE_LIBRARIES = {
    "onnxruntime": "libcuts_onnxruntime.so",
    "triton": "libtriton_cuts.so",
    "tvm_ffi": "libcuts_tvm_ffi.so",
}


def build_engine_library(name: str, folder: str | os.PathLike[str], options: Sequence[str] = ()) -> Path:
    """Compile an engine's library into a folder and return its path.

    Raises `BackendError` with the compiler's text where it fails.
    """
    target = Path(folder) / ENGINE_LIBRARIES[name]
    compile_c(target, [ENGINE_FOLDER / f"{name}.c", *library_sources()], [*LIBRARY_OPTIONS, *options])
    return target
