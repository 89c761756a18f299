"""ONNX Runtime as an independent oracle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from ..backends import Array
from ..ir import BackendError, processor_count


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
        raise BackendError("comparing with ONNX Runtime needs it installed", hint="pip install 'cuts[test]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = processor_count()
    try:
        session = onnxruntime.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
        wanted = {node.name for node in session.get_inputs()}
        values = session.run(None, {name: array for name, array in inputs.items() if name in wanted})
    except Exception as error:  # its bindings raise classes of their own
        raise BackendError(f"ONNX Runtime refused {os.fspath(model)}: {str(error).splitlines()[0]}") from error
    return {node.name: np.asarray(value) for node, value in zip(session.get_outputs(), values, strict=True)}
