"""`torch.compile(model, backend="cuts")`, or `backend=cuts.compile.torch_backend.cuts_backend` where the package is not
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..backends import find_target
from ..ir import PRECISIONS, CompileOptions, PrecisionName, UsageError, quote
from .driver import build_graph, precisions_of
from .loading import Spec
from .plan import CompiledPlan

if TYPE_CHECKING:
    from ..frontends.torch import Captured


#: How PyTorch's word for products of f32 reads as a policy (`torch.set_float32_matmul_precision`).
_FOLLOWED: Mapping[str, PrecisionName] = {"highest": "fp32", "high": "tf32", "medium": "bf16"}


def cuts_backend(module: Any, examples: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
    """Compile what Dynamo captured: for OpenCL where its tensors are on the CPU, for CUDA where they are on a GPU.

    `options` are those of `torch.compile(..., options={"precision": "bf16"})`. Without a precision there, PyTorch's
    settings are followed: `torch.autocast`, whose casts the captured graph has, and for what is left in f32
    `torch.set_float32_matmul_precision`, as it is when the graph runs: "highest" is `fp32`, "high" `tf32` and "medium"
    `bf16`; `fp32` where the target can do no more.

    Raises `UsageError` for an option that there is not, and for a precision that there is not.
    """
    from ..frontends.torch import dynamo_backend

    unknown = set(options or {}) - {"precision"}
    if unknown:
        raise UsageError(f"unknown option {quote(min(unknown))}", hint="options are: precision")
    wanted = (options or {}).get("precision")
    if wanted is not None and wanted not in PRECISIONS:
        raise UsageError(f"unknown precision {quote(str(wanted))}", hint=f"precisions are: {', '.join(PRECISIONS)}")
    return dynamo_backend(module, examples, partial(_compile, wanted))


def _compile(
    wanted: PrecisionName | None, captured: Captured, device: str
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Compile a graph in the precision that holds now, and again where another one holds when it runs."""
    from ..frontends.torch import matmul_precision

    target, spec = find_target("cuda" if device == "cuda" else "opencl"), Spec(captured.registry, captured.texts)
    able = precisions_of(target)

    @cache
    def plan_in(precision: PrecisionName) -> CompiledPlan:
        return build_graph(captured.graph, spec, target, CompileOptions(precision=precision))

    def plan() -> CompiledPlan:
        followed = _FOLLOWED[matmul_precision()]
        return plan_in(wanted or (followed if followed in able else "fp32"))

    plan()  # what cannot be compiled is said where the graph is captured
    return lambda arrays: plan().run(arrays, on_device=device == "cuda")
