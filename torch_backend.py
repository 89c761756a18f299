"""`torch.compile(model, backend="cuts")`, or `backend=cuts.torch_backend.cuts_backend` where the package is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .driver import build
from .ir.graph import Graph


def cuts_backend(module: Any, examples: Sequence[Any]) -> Any:
    """Compile what Dynamo captured: for OpenCL where its tensors are on the CPU, for CUDA where they are on a GPU."""
    from .frontends.torch_dynamo import dynamo_backend

    return dynamo_backend(module, examples, _compile)


def _compile(graph: Graph, device: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    plan = build(graph, target="cuda" if device == "cuda" else "opencl")
    return lambda arrays: plan.run(arrays, on_device=device == "cuda")
