"""Public entry points that compile a model to a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from attrs import evolve

from ..backends import find_target
from ..ir import (
    BOUND_PRUNING,
    CompileOptions,
    Mode,
    PolicyName,
    PrecisionName,
    Pruning,
    PruningRule,
    Target,
    UsageError,
    VocabularyError,
    with_policy,
)
from .cached_build import build_stored
from .dynamic import (
    DimRange,
    DynamicPlan,
    ModelFamily,
    SymbolicShape,
    build_dynamic,
    load_at_sizes,
    read_shapes,
)
from .loading import (
    Calibration,
    ModelLike,
    Shapes,
    Spec,
    check_fixed_shapes,
    is_torch_model,
    load_spec,
    quantise_model,
    with_torch_operators,
)
from .plan import CompiledPlan

if TYPE_CHECKING:
    from ..frontends import WeightsName
    from ..frontends.onnx import Function
    from .staged import Compile, StagedPlan

MODES: tuple[Mode, ...] = ("no-fusion", "fusion", "mixed")


class BuildOptions(TypedDict, total=False):
    """Options of `build` besides `fallback` and those of dims that vary."""

    shapes: Mapping[str, SymbolicShape] | None
    spec: Sequence[str | os.PathLike[str]]
    mode: Mode
    precision: PrecisionName
    weights: WeightsName | None
    calibration: Calibration | None
    budget: float | None
    tune: bool
    frozen: bool
    libraries: bool
    debug: bool
    deterministic: bool
    policy: PolicyName
    pruning: PruningRule
    top: float
    options: CompileOptions | None


@overload
def build(
    model: ModelLike,
    args: Sequence[Any] | str | Target = (),
    target: str | Target = "auto",
    *,
    fallback: Literal[False] = False,
    **options: Unpack[BuildOptions],
) -> CompiledPlan:
    """Compile a model to one plan; a missing operation is an error."""


@overload
def build(
    model: ModelLike,
    args: Sequence[Any] | str | Target = (),
    target: str | Target = "auto",
    *,
    fallback: bool,
    **options: Unpack[BuildOptions],
) -> CompiledPlan | StagedPlan:
    """Compile a model; with `fallback`, in parts around missing operations."""


@overload
def build(
    model: ModelLike,
    args: Sequence[Any] | str | Target = (),
    target: str | Target = "auto",
    *,
    dims: Mapping[str, DimRange],
    buckets: Mapping[str, Sequence[int]] | None = None,
    **options: Unpack[BuildOptions],
) -> DynamicPlan:
    """Compile a model for a range of sizes."""


def build(
    model: ModelLike,
    args: Sequence[Any] | str | Target = (),
    target: str | Target = "auto",
    *,
    shapes: Mapping[str, SymbolicShape] | None = None,
    dims: Mapping[str, DimRange] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    spec: Sequence[str | os.PathLike[str]] = (),
    mode: Mode = "mixed",
    precision: PrecisionName = "fp32",
    weights: WeightsName | None = None,
    calibration: Calibration | None = None,
    budget: float | None = None,
    tune: bool = False,
    frozen: bool = False,
    libraries: bool = True,
    debug: bool = False,
    deterministic: bool = True,
    policy: PolicyName = "fastest",
    pruning: PruningRule = BOUND_PRUNING.rule,
    top: float = BOUND_PRUNING.top,
    options: CompileOptions | None = None,
    fallback: bool = False,
) -> CompiledPlan | StagedPlan | DynamicPlan:
    """Compile a model for a target.

    The default target `auto` is the GPU of the machine where there is one, otherwise OpenCL.

    `shapes` fix dynamic dimensions; `spec` names files that declare further operations.

    Sizes may vary: a shape may have a named dim (`("batch", 3, 224, 224)`), whose range `dims` gives (`{"batch": (1,
    64)}`), or a range of its own (`"1..64"`). `dims` may also name symbols of an ONNX model, and bound dims of an
    exported program, called after the first input that has them (`x.0`). The result is then a `DynamicPlan`, of all
    sizes in the ranges: `buckets` has the sizes with kernels of their own, which the cost model chooses otherwise.

    A model is a file (graph.json, ONNX, an archive of `torch.export`), a graph, a `ModelProto`, an exported program of
    PyTorch, or a module with example inputs `args`, which fix its shapes. A target may stand instead of `args`.
    `options` has all of `mode`, `precision`, `budget`, `debug`, `deterministic` and `pruning`: give it, or them.
    `precision` names the policy by which values of f32 are stored between kernels and multiplied: `fp32`, `fp16` or
    `bf16`.

    `weights` is the format of constant factors of products: `int8` and `fp8` (e4m3) with a scale for each channel,
    `int4` with one for each group of 128. They are rounded to nearest here, stay packed in the plan and on the device,
    and become real numbers where a kernel fetches them. The plan's reference has the rounded weights. With a
    `calibration`, samples of the inputs or the largest size of each value, the activations that multiply them are
    rounded to `int8` or `fp8`, too, with one scale each: kernels multiply the narrow numbers.

    With `debug` the plan checks every index that comes from data: one out of range is an error when it runs, which
    names the tensor, the position, the value and the expected range. Without it such an index counts as the nearest
    one, and nothing is written for it.

    Unless `deterministic`, scatters add and multiply floats by atomic operations, in any order: faster, but the last
    digits of results differ from run to run. Under the `policy` "batch-invariant", equal rows have equal results, bit
    for bit, in any batch; no library takes part.

    `pruning` names the rule that discards points of schedule spaces: `bound`, `none`, or `pul`, which keeps the `top`
    percent of each by the performance upper limit of DeepCuts (`pul-printed` without its corrections).

    With `tune`, candidates are timed on the target's device, for at most `budget` seconds; with `frozen`, only results
    that the tuning database has are used, and a missing one is an error. In mode `mixed` routines of cuBLAS and cuDNN
    then take the place of kernels that they beat, where their packages are installed, unless `libraries` is false.

    Without both, a later process reuses the plan of an equal graph with equal options, where its weights take at most
    256 MiB and building it took a third of a second, and where no search has left decisions to replay.

    With `fallback`, operations that the vocabulary lacks run in PyTorch, or in ONNX Runtime, and everything else is
    compiled in parts: one warning names them.

    Raises `UsageError` where the mode or the format of weights is unknown, for buckets where no size varies, and for
    weights of a model whose sizes vary.
    """
    chosen = _chosen_options(options, mode, precision, budget, debug, deterministic, Pruning(pruning, top))
    examples: Sequence[Any] = () if isinstance(args, (str, Target)) else args
    target = args if isinstance(args, (str, Target)) else target
    vocabulary = with_torch_operators(load_spec(spec), model)
    machine = find_target(target) if isinstance(target, str) else target
    machine = with_policy(machine, policy, chosen.deterministic) if policy != "fastest" else machine
    libraries = libraries and not machine.invariant

    build_part = partial(build_stored, spec=vocabulary, target=machine, tune=tune, frozen=frozen, libraries=libraries)
    request = read_shapes(shapes or {}, dims or {})
    try:
        with chosen.begin().stage("import"):
            graph = load_at_sizes(model, vocabulary, request, examples)
        if isinstance(graph, ModelFamily):
            if weights is not None:
                raise UsageError("'weights' of a model whose sizes vary", hint="fix the sizes by 'shapes'")
            part = partial(build_part, options=evolve(chosen, begun=None))
            return build_dynamic(graph, vocabulary, machine, part, buckets)
        graph = graph if weights is None else quantise_model(graph, vocabulary, weights, calibration)
    except VocabularyError:
        if not fallback or weights is not None:
            raise
        part = partial(build_part, options=evolve(chosen, begun=None))  # a budget is that of each part
        plan = staged_plan(model, vocabulary, machine, part, shapes=request.fixed, args=examples)
        plan.warn()
        return plan
    if buckets:
        raise UsageError("'buckets' without a dim that varies", hint="give 'dims', or a range in 'shapes'")
    return build_part(graph, options=chosen)


def _chosen_options(
    options: CompileOptions | None,
    mode: Mode,
    precision: PrecisionName,
    budget: float | None,
    debug: bool,
    deterministic: bool,
    pruning: Pruning,
) -> CompileOptions:
    """Return the options of a compilation that begins now."""
    if mode not in MODES:
        raise UsageError(f"unknown mode '{mode}'", hint=f"modes are: {', '.join(MODES)}")
    given, usual = (mode, precision, budget, debug, deterministic, pruning), CompileOptions()
    if options is not None and given != (usual.mode, usual.precision, None, False, True, usual.pruning):
        raise UsageError(
            "'options' has a mode, a precision, a budget, a debug, a deterministic and a pruning of its own",
            hint="give it, or them",
        )
    chosen = options or CompileOptions(
        mode=mode,
        budget=budget,
        debug=debug,
        precision=precision,
        deterministic=deterministic,
        pruning=pruning,
    )
    return evolve(chosen, begun=chosen.begin())


def build_staged(
    model: ModelLike,
    target: str | Target = "auto",
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
