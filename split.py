"""Models with operations outside the vocabulary: everything else is compiled, and one warning lists what is not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .driver import build
from .ir.errors import BackendError
from .ir.graph import Graph

if TYPE_CHECKING:
    from .frontends.onnx_backend import Runner
    from .frontends.onnx_split import Function, SplitModel


def build_split(
    model: str | os.PathLike[str] | Any, target: str = "opencl", functions: Mapping[str, Function] | None = None, **options: Any
) -> SplitModel:
    """Compile an ONNX model (a file or a protocol buffer) around the operations that the vocabulary lacks.

    Those run through ONNX's reference evaluator, or through `functions[op](*arrays, **attributes)`. Parts are compiled when they first run.
    """
    try:
        from .frontends.onnx_split import split_onnx
    except ImportError as error:
        raise BackendError(f"reading ONNX models needs the package onnx: {error}", hint="pip install 'cuts[onnx]'") from error

    def compile_graph(graph: Graph) -> Runner:
        return build(graph, target=target, **options).run

    return split_onnx(Path(model) if isinstance(model, (str, os.PathLike)) else model, compile_graph, functions)
