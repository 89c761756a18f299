"""Public entry points: compile a model to a plan, open a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ..backends import find_target
from ..ir import CompileOptions, Mode, PrecisionName, Target, UsageError
from ..runtime import is_staged, load_plan
from .cached_build import build_tuned
from .driver import build_graph
from .loading import ModelLike, Shapes, load_model, load_spec, with_torch_operators
from .plan import CompiledPlan
from .staged_model import StagedPlan, open_staged, staged_plan

if TYPE_CHECKING:
    from ..frontends.onnx import Function

MODES: tuple[Mode, ...] = ("no-fusion", "fusion", "mixed")


def build(
    model: ModelLike,
    args: Sequence[Any] | str | Target = (),
    target: str | Target = "opencl",
    *,
    shapes: Shapes | None = None,
    spec: Sequence[str | os.PathLike[str]] = (),
    mode: Mode = "mixed",
    precision: PrecisionName = "fp32",
    budget: float | None = None,
    tune: bool = False,
    frozen: bool = False,
    libraries: bool = True,
    debug: bool = False,
    options: CompileOptions | None = None,
) -> CompiledPlan:
    """Compile a model for a target.

    `shapes` fix dynamic dimensions; `spec` names files that declare further operations.

    A model is a file (graph.json, ONNX, an archive of `torch.export`), a graph, a `ModelProto`, an exported program of
    PyTorch, or a module with example inputs `args`, which fix its shapes. A target may stand instead of `args`.
    `options` has all of `mode`, `precision`, `budget` and `debug`: give it, or them. `precision` names the policy by
    which values of f32 are stored between kernels and multiplied: `fp32`, `fp16` or `bf16`.

    With `debug` the plan checks every index that comes from data: one out of range is an error when it runs, which
    names the tensor, the position, the value and the expected range. Without it such an index counts as the nearest
    one, and nothing is written for it.

    With `tune`, candidates are timed on the target's device, for at most `budget` seconds; with `frozen`, only results
    that the tuning database has are used, and a missing one is an error. In mode `mixed` routines of cuBLAS and cuDNN
    then take the place of kernels that they beat, where their packages are installed, unless `libraries` is false.

    Raises `UsageError` where the mode is unknown.
    """
    if mode not in MODES:
        raise UsageError(f"unknown mode '{mode}'", hint=f"modes are: {', '.join(MODES)}")
    if options is not None and (mode, precision, budget, debug) != ("mixed", "fp32", None, False):
        raise UsageError("'options' has a mode, a precision, a budget and a debug of its own", hint="give it, or them")
    chosen = options or CompileOptions(mode=mode, budget=budget, debug=debug, precision=precision)
    chosen = evolve(chosen, begun=chosen.begin())
    examples: Sequence[Any] = () if isinstance(args, (str, Target)) else args
    target = args if isinstance(args, (str, Target)) else target
    vocabulary = with_torch_operators(load_spec(spec), model)
    machine = find_target(target) if isinstance(target, str) else target
    with chosen.begin().stage("import"):
        graph = load_model(model, vocabulary, shapes, examples)
    return build_tuned(graph, vocabulary, machine, chosen, tune=tune, frozen=frozen, libraries=libraries)


def build_staged(
    model: str | os.PathLike[str] | Any,
    target: str | Target = "opencl",
    functions: Mapping[str, Function] | None = None,
    *,
    shapes: Shapes | None = None,
    spec: Sequence[str | os.PathLike[str]] = (),
    options: CompileOptions | None = None,
) -> StagedPlan:
    """Compile an ONNX model around operations that the vocabulary lacks.

    The model is a file or a protocol buffer.

    Such operations run through ONNX's reference evaluator, or through `functions[op](*arrays, **attributes)`. Parts are
    compiled when they first run.
    """
    vocabulary = load_spec(spec)
    machine = find_target(target) if isinstance(target, str) else target
    chosen = options or CompileOptions()
    plan = staged_plan(
        model, vocabulary, machine, lambda graph: build_graph(graph, vocabulary, machine, chosen), functions, shapes
    )
    plan.warn()
    return plan


def load(
    folder: str | os.PathLike[str], functions: Mapping[str, Callable[..., Any]] | None = None
) -> CompiledPlan | StagedPlan:
    """Open a plan's folder.

    A plan is code: load only plans from a trusted source.

    `functions` are those that `cuts.build_staged` was given, where it was.
    """
    if not is_staged(folder):
        return CompiledPlan(load_plan(folder))
    return open_staged(
        folder, lambda graph, spec, target: build_graph(graph, spec, target, CompileOptions()), functions
    )
