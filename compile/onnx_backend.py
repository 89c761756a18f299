"""ONNX backend of the compiler: `onnx.backend.test.BackendTest(cuts.compile.onnx_backend.CutsBackend, __name__)`.

`CUTS_ONNX_TARGET` names the target (default `opencl`).
"""

from __future__ import annotations

import os

from ..frontends.onnx import ReferenceBackend, Runner
from ..ir import Graph
from .build import build


def target_name() -> str:
    """Return the target that models are compiled for."""
    return os.environ.get("CUTS_ONNX_TARGET", "opencl")


class CutsBackend(ReferenceBackend):
    """Backend interface of ONNX on generated kernels.

    ONNX requires the functions of the interface as methods of the class.
    """

    @classmethod
    def compile_graph(cls, graph: Graph) -> Runner:
        """Compile a graph for the target."""
        return build(graph, target=target_name()).run

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models run on a kind of device.

        The kind is "CUDA" where the target is CUDA, else "CPU".
        """
        return device.split(":")[0] == ("CUDA" if target_name().startswith("cuda") else "CPU")
