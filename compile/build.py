"""Public entry points: compile a model to a plan, open a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from attrs import evolve

from ..backends import find_target
from ..ir import CompileOptions, Mode, PrecisionName, Target, UsageError, VocabularyError
from ..runtime import ProgramRecord, StagedRecord, stages_type
from .cached_build import build_stored
from .loading import (
    ModelLike,
    Shapes,
    Spec,
    check_fixed_shapes,
    is_torch_model,
    load_model,
    load_spec,
    with_torch_operators,
)
from .plan import CompiledPlan, open_plan

if TYPE_CHECKING:
    from ..frontends.onnx import Function
    from .staged import Compile, StagedPlan

MODES: tuple[Mode, ...] = ("no-fusion", "fusion", "mixed")


class BuildOptions(TypedDict, total=False):
    """Options of `build` besides `fallback`."""

    shapes: Shapes | None
    spec: Sequence[str | os.PathLike[str]]
    mode: Mode
    precision: PrecisionName
    budget: float | None
    tune: bool
    frozen: bool
    libraries: bool
    debug: bool
    deterministic: bool
    options: CompileOptions | None


@overload
def build(
    model: ModelLike,
    args: Sequence[Any] | str | Target = (),
    target: str | Target = "opencl",
    *,
    fallback: Literal[False] = False,
    **options: Unpack[BuildOptions],
) -> CompiledPlan:
    """Compile a model to one plan; a missing operation is an error."""


@overload
def build(
    model: ModelLike,
    args: Sequence[Any] | str | Target = (),
    target: str | Target = "opencl",
    *,
    fallback: bool,
    **options: Unpack[BuildOptions],
) -> CompiledPlan | StagedPlan:
    """Compile a model; with `fallback`, in parts around missing operations."""


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
    deterministic: bool = True,
    options: CompileOptions | None = None,
    fallback: bool = False,
) -> CompiledPlan | StagedPlan:
    """Compile a model for a target.

    `shapes` fix dynamic dimensions; `spec` names files that declare further operations.

    A model is a file (graph.json, ONNX, an archive of `torch.export`), a graph, a `ModelProto`, an exported program of
    PyTorch, or a module with example inputs `args`, which fix its shapes. A target may stand instead of `args`.
    `options` has all of `mode`, `precision`, `budget`, `debug` and `deterministic`: give it, or them. `precision` names
    the policy by which values of f32 are stored between kernels and multiplied: `fp32`, `fp16` or `bf16`.

    With `debug` the plan checks every index that comes from data: one out of range is an error when it runs, which
    names the tensor, the position, the value and the expected range. Without it such an index counts as the nearest
    one, and nothing is written for it.

    Unless `deterministic`, scatters add and multiply floats by atomic operations, in any order: faster, but the last
    digits of results differ from run to run.

    With `tune`, candidates are timed on the target's device, for at most `budget` seconds; with `frozen`, only results
    that the tuning database has are used, and a missing one is an error. In mode `mixed` routines of cuBLAS and cuDNN
    then take the place of kernels that they beat, where their packages are installed, unless `libraries` is false.

    Without both, a later process reuses the plan of an equal graph with equal options, where its weights take at most
    256 MiB and building it took a third of a second, and where no search has left decisions to replay.

    With `fallback`, operations that the vocabulary lacks run in PyTorch, or in ONNX Runtime, and everything else is
    compiled in parts: one warning names them.

    Raises `UsageError` where the mode is unknown.
    """
    chosen = _chosen_options(options, mode, precision, budget, debug, deterministic)
    examples: Sequence[Any] = () if isinstance(args, (str, Target)) else args
    target = args if isinstance(args, (str, Target)) else target
    vocabulary = with_torch_operators(load_spec(spec), model)
    machine = find_target(target) if isinstance(target, str) else target

    build_part = partial(build_stored, spec=vocabulary, target=machine, tune=tune, frozen=frozen, libraries=libraries)
    try:
        with chosen.begin().stage("import"):
            graph = load_model(model, vocabulary, shapes, examples)
    except VocabularyError:
        if not fallback:
            raise
        part = partial(build_part, options=evolve(chosen, begun=None))  # a budget is that of each part
        plan = staged_plan(model, vocabulary, machine, part, shapes=shapes, args=examples)
        plan.warn()
        return plan
    return build_part(graph, options=chosen)


def _chosen_options(
    options: CompileOptions | None,
    mode: Mode,
    precision: PrecisionName,
    budget: float | None,
    debug: bool,
    deterministic: bool,
) -> CompileOptions:
    """Return the options of a compilation that begins now."""
    if mode not in MODES:
        raise UsageError(f"unknown mode '{mode}'", hint=f"modes are: {', '.join(MODES)}")
    if options is not None and (mode, precision, budget, debug, deterministic) != ("mixed", "fp32", None, False, True):
        raise UsageError(
            "'options' has a mode, a precision, a budget, a debug and a deterministic of its own",
            hint="give it, or them",
        )
    chosen = options or CompileOptions(
        mode=mode, budget=budget, debug=debug, precision=precision, deterministic=deterministic
    )
    return evolve(chosen, begun=chosen.begin())


def build_staged(
    model: ModelLike,
    target: str | Target = "opencl",
    functions: Mapping[str, Function] | None = None,
    *,
    shapes: Shapes | None = None,
    spec: Sequence[str | os.PathLike[str]] = (),
    options: CompileOptions | None = None,
    args: Sequence[Any] = (),
) -> StagedPlan:
    """Compile a model around operations that the vocabulary lacks.

    The model is ONNX's or PyTorch's, a module with example inputs `args`.

    Operations of an ONNX model run through `functions[op](*arrays, **attributes)`, or ONNX Runtime, or ONNX's reference
    evaluator; parts are compiled when they first run. Operations of a PyTorch model run in PyTorch.
    """
    vocabulary = with_torch_operators(load_spec(spec), model)
    machine = find_target(target) if isinstance(target, str) else target
    chosen = options or CompileOptions()
    from .driver import build_graph

    compile_part = lambda graph: build_graph(graph, vocabulary, machine, chosen)  # noqa: E731
    plan = staged_plan(model, vocabulary, machine, compile_part, functions, shapes, args)
    plan.warn()
    return plan


def staged_plan(
    model: Any,
    spec: Spec,
    target: Target,
    compile_part: Compile,
    functions: Mapping[str, Function] | None = None,
    shapes: Shapes | None = None,
    args: Sequence[Any] = (),
) -> StagedPlan:
    """Return a model in stages whose parts `compile_part` compiles, without a warning.

    Raises `UsageError` for functions of a PyTorch model: its operations are registered with PyTorch.
    """
    from .staged import model_plan, program_plan

    if not is_torch_model(model):
        return model_plan(model, spec, target, compile_part, functions, shapes)
    if functions:
        raise UsageError("'functions' are for ONNX models", hint="register the operation with torch.library")
    plan = program_plan(model, args, target, compile_part)
    check_fixed_shapes(plan.inputs, shapes or {})
    return plan


def load(
    folder: str | os.PathLike[str], functions: Mapping[str, Callable[..., Any]] | None = None
) -> CompiledPlan | StagedPlan:
    """Open a plan's folder.

    A plan is code: load only plans from a trusted source.

    `functions` are those that `cuts.build_staged` was given, where it was.
    """
    content = stages_type(folder)
    if content not in (ProgramRecord, StagedRecord):
        return open_plan(folder)
    from .staged import open_model, open_program

    return open_program(folder) if content is ProgramRecord else open_model(folder, functions)
