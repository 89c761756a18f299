"""`torch.compile(model, backend="cuts")`, or `backend=cuts.compile.torch_backend.cuts_backend` where the package is not
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..backends import find_target
from ..ir import CompileOptions
from .driver import build_graph
from .loading import Spec

if TYPE_CHECKING:
    from ..frontends.torch import Captured


def cuts_backend(module: Any, examples: Sequence[Any]) -> Any:
    """Compile what Dynamo captured: for OpenCL where its tensors are on the CPU, for CUDA where they are on a GPU."""
    from ..frontends.torch import dynamo_backend

    return dynamo_backend(module, examples, _compile)


def _compile(captured: Captured, device: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    target = find_target("cuda" if device == "cuda" else "opencl")
    plan = build_graph(captured.graph, Spec(captured.registry, captured.texts), target, CompileOptions())
    return lambda arrays: plan.run(arrays, on_device=device == "cuda")
