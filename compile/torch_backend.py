"""`torch.compile(model, backend="cuts")`, or `backend=cuts.compile.torch_backend.cuts_backend` where the package is not
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..backends import find_target
from ..ir import CompileOptions, UsageError, quote
from .driver import build_graph
from .loading import Spec

if TYPE_CHECKING:
    from ..frontends.torch import Captured


def cuts_backend(module: Any, examples: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
    """Compile what Dynamo captured: for OpenCL where its tensors are on the CPU, for CUDA where they are on a GPU.

    `options` are those of `torch.compile(..., options={"precision": "bf16"})`. Raises `UsageError` for one that there
    is not.
    """
    from ..frontends.torch import dynamo_backend

    unknown = set(options or {}) - {"precision"}
    if unknown:
        raise UsageError(f"unknown option {quote(min(unknown))}", hint="options are: precision")
    chosen = CompileOptions(**(options or {}))
    return dynamo_backend(module, examples, partial(_compile, chosen))


def _compile(
    options: CompileOptions, captured: Captured, device: str
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    target = find_target("cuda" if device == "cuda" else "opencl")
    plan = build_graph(captured.graph, Spec(captured.registry, captured.texts), target, options)
    return lambda arrays: plan.run(arrays, on_device=device == "cuda")
