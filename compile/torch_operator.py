"""PyTorch operators made from declarations: `cuts.torch_op`.

Woodpecker-DL binds custom operators to third-party engines this way (section 2.5).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ir import BackendError, CompileOptions, PrecisionName, UsageError, install_command, quote
from .cached_build import build_tuned
from .external_buffers import SingleProgram, program_of, spec_of, target_of
from .loading import Spec, load_spec

if TYPE_CHECKING:
    from ..frontends.torch import CapturedGraph


def torch_op(
    spec: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    name: str = "",
    *,
    precision: PrecisionName = "fp32",
    tune: bool = False,
    budget: float | None = None,
) -> Any:
    """Register a declared operation as an operator of PyTorch and return it.

    The operation `name` is one that `.cuts` files declare, or a built-in one. The operator is `torch.ops.cuts.<name>`.

    It takes tensors in the order of the declaration and attributes by name, on the CPU (through OpenCL) and on a GPU;
    it has a shape function, so that `torch.compile` and `torch.export` trace it, and the derived gradient. Kernels are
    made for each combination of shapes, element types and attributes when it first occurs. With `tune` they are timed,
    for at most `budget` seconds each time. `name` may be left out where the files declare one operation.

    Raises `UsageError` where there is no such operation, or an operator of that name was made of another declaration;
    `BackendError` where PyTorch is missing.
    """
    try:
        from ..frontends.torch import define_operator
    except ImportError as error:
        raise BackendError(f"an operator of PyTorch needs PyTorch: {error}", hint=install_command("torch")) from error
    vocabulary = load_spec([spec] if isinstance(spec, (str, os.PathLike)) else spec)
    decl = vocabulary.registry[name or _only_operation(vocabulary)]
    options = CompileOptions(precision=precision, budget=budget)

    def compile_graph(captured: CapturedGraph, device: Any) -> SingleProgram:
        target, ordinal = target_of(device)
        plan = build_tuned(captured.graph, spec_of(captured), target, options, tune=tune, libraries=False)
        return SingleProgram(program_of(plan, ordinal))

    return define_operator(decl, vocabulary.registry, vocabulary.texts, compile_graph)


def _only_operation(vocabulary: Spec) -> str:
    own = sorted(vocabulary.own)
    if len(own) != 1:
        known = ", ".join(map(quote, own)) or "none"
        raise UsageError(f"which operation? the files declare {known}", hint="give its name: torch_op(files, 'name')")
    return own[0]
