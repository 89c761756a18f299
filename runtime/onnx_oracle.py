"""ONNX Runtime: an independent oracle, and the evaluator of single operations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..backends import Array
from ..ir import BackendError, install_command, processor_count


def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed."""
    return find_spec("onnxruntime") is not None


def run_onnxruntime(model: str | os.PathLike[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run an ONNX file on the CPU; return its outputs by name.

    Raises `BackendError` where ONNX Runtime is missing or refuses the model.
    """
    try:
        onnxruntime = import_module("onnxruntime")
    except ImportError as error:
        raise BackendError("comparing with ONNX Runtime needs it installed", hint=install_command("onnx")) from error
    try:
        session = _open(onnxruntime, os.fspath(model))
        wanted = {node.name for node in session.get_inputs()}
        values = session.run(None, {name: array for name, array in inputs.items() if name in wanted})
    except Exception as error:  # its bindings raise classes of their own
        raise BackendError(f"ONNX Runtime refused {os.fspath(model)}: {str(error).splitlines()[0]}") from error
    return {node.name: np.asarray(value) for node, value in zip(session.get_outputs(), values, strict=True)}


#: Element types that ONNX Runtime returns as integers.
_RETURNED_AS_BITS = ("float8", "bfloat16", "int4", "float4", "int2")


def open_onnxruntime(model: bytes) -> Callable[[Mapping[str, Any]], list[Any]] | None:
    """Return a model as a function of its inputs by name.

    The result is None where ONNX Runtime is missing or refuses the model, and for results that it returns as bits.
    """
    if not has_onnxruntime():
        return None
    try:
        session = _open(import_module("onnxruntime"), model)
    except Exception:  # its bindings raise classes of their own
        return None
    if any(name in result.type for result in session.get_outputs() for name in _RETURNED_AS_BITS):
        return None
    return lambda inputs: list(session.run(None, dict(inputs)))


def _open(onnxruntime: Any, model: str | bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = processor_count()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
