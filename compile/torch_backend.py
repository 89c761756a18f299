"""`torch.compile(model, backend="cuts")`, or `backend=cuts.compile.torch_backend.cuts_backend` where the package is not
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from attrs import fields, frozen

from ..backends import find_target
from ..ir import PRECISIONS, CompileOptions, PrecisionName, UsageError, quote
from .driver import precisions_of
from .loading import Spec
from .plan import CompiledPlan
from .tuned import build_tuned

if TYPE_CHECKING:
    from ..frontends.torch import Captured


#: How PyTorch's word for products of f32 reads as a policy (`torch.set_float32_matmul_precision`).
_FOLLOWED: Mapping[str, PrecisionName] = {"highest": "fp32", "high": "tf32", "medium": "bf16"}


def cuts_backend(module: Any, examples: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
    """Compile what Dynamo captured: for OpenCL where its tensors are on the CPU, for CUDA where they are on a GPU.

    `options` are those of `torch.compile(..., options={"budget": 60})`, and apply to each captured graph. With a
    `budget` in seconds (or `tune`, without one) candidates are timed, with `libraries` routines of vendors' libraries
    among them; a later process finds what was found. Without a `precision`, PyTorch's settings are followed:
    `torch.autocast`, whose casts the captured graph has, and for what is left in f32
    `torch.set_float32_matmul_precision`, as it is when the graph runs: "highest" is `fp32`, "high" `tf32` and "medium"
    `bf16`; `fp32` where the target can do no more.

    Raises `UsageError` for an option that there is not, and for a value that it cannot have.
    """
    from ..frontends.torch import dynamo_backend

    return dynamo_backend(module, examples, partial(_compile, _read(options or {})))


@frozen
class _Wishes:
    """What `torch.compile` was told."""

    precision: PrecisionName | None = None
    budget: float | None = None
    tune: bool = False
    libraries: bool = False


def _read(options: Mapping[str, Any]) -> _Wishes:
    known = [field.name for field in fields(_Wishes)]
    unknown = set(options) - set(known)
    if unknown:
        raise UsageError(f"unknown option {quote(min(unknown))}", hint=f"options are: {', '.join(known)}")
    wishes = _Wishes(**options)
    if wishes.precision is not None and wishes.precision not in PRECISIONS:
        raise UsageError(
            f"unknown precision {quote(str(wishes.precision))}", hint=f"precisions are: {', '.join(PRECISIONS)}"
        )
    number = isinstance(wishes.budget, (int, float)) and not isinstance(wishes.budget, bool)
    if wishes.budget is not None and not (number and wishes.budget > 0):
        raise UsageError(f"option 'budget': expected seconds, found {wishes.budget!r}")
    if wishes.libraries and wishes.budget is None and not wishes.tune:
        raise UsageError("option 'libraries': nothing is timed", hint="give a budget too, or tune=True")
    return wishes


def _compile(wishes: _Wishes, captured: Captured, device: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Compile a graph in the precision that holds now, and again where another one holds when it runs."""
    from ..frontends.torch import matmul_precision

    target, spec = find_target("cuda" if device == "cuda" else "opencl"), Spec(captured.registry, captured.texts)
    able = precisions_of(target)

    @cache
    def plan_in(precision: PrecisionName) -> CompiledPlan:
        options = CompileOptions(precision=precision, budget=wishes.budget)
        tune = wishes.tune or wishes.budget is not None
        return build_tuned(captured.graph, spec, target, options, tune=tune, libraries=wishes.libraries)

    def plan() -> CompiledPlan:
        followed = _FOLLOWED[matmul_precision()]
        return plan_in(wishes.precision or (followed if followed in able else "fp32"))

    plan()  # what cannot be compiled is said where the graph is captured
    return lambda arrays: plan().run(arrays, on_device=device == "cuda")
