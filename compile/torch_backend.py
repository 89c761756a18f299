"""Backend of `torch.compile(model, backend="cuts")`, or `backend=cuts.compile.torch_backend.cuts_backend` where the
package is not installed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from attrs import field, fields, frozen

from ..backends.native import begin_native_library
from ..ir import (
    PRECISIONS,
    Budget,
    BudgetShares,
    CompileOptions,
    CutsWarning,
    PolicyName,
    PrecisionName,
    Pruning,
    PruningRule,
    Target,
    UsageError,
    check_policy,
    precisions_of,
    quote,
    with_policy,
)
from ..runtime import show_plan
from ..store import Key, digest_parts
from .cached_build import build_cached
from .external_buffers import program_of, spec_of, target_of
from .graph_signatures import find_signature, save_signature
from .loading import quantise_model
from .selection import find_plan, target_facts

if TYPE_CHECKING:
    from ..frontends import WeightsName
    from ..frontends.torch import ArrayFunction, CachedGraph, CapturedGraph, TensorProgram
    from .plan import CompiledPlan


#: Precision policies by the settings of `torch.set_float32_matmul_precision`.
_MATMUL_PRECISIONS: Mapping[str, PrecisionName] = {"highest": "fp32", "high": "tf32", "medium": "bf16"}

#: Seconds that candidates of each captured graph are timed for in modes of `torch.compile` that search.
MODE_BUDGET_SECONDS = 60.0
#: Options that stand for each mode of `torch.compile`.
_MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"budget": MODE_BUDGET_SECONDS},
    "max-autotune-no-cudagraphs": {"budget": MODE_BUDGET_SECONDS},
}
#: Modes that ask for more or less recording than a plan has, with the reason why that changes nothing.
_SAME_LAUNCH: Mapping[str, str] = {
    "reduce-overhead": "a plan is one launch in every mode",
    "max-autotune-no-cudagraphs": "candidates are timed as in 'max-autotune', and a plan is one launch in every mode",
}
_REPORTED_MODES: set[str] = set()
#: Plans that a captured graph of dynamic shape caches.
MAX_SHAPES = 64


def cuts_backend(
    module: Any, examples: Sequence[Any], options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Any:
    """Compile a captured graph, for OpenCL (CPU) or CUDA (GPU).

    Tensors on the CPU select OpenCL, tensors on a GPU select CUDA.

    `options` are those of `torch.compile(..., options={"budget": 60})`, and apply to each captured graph. With a
    `budget` in seconds (or `tune`, without one) candidates are timed; a later process reuses the results. With
    `libraries` routines of vendors' libraries are timed too: other CUDA graphs cannot record their calls. Without a
    `precision`, PyTorch's settings apply: `torch.autocast`, whose casts the captured graph has, and for the remaining
    f32 operations `torch.set_float32_matmul_precision`, as it is when the graph runs: "highest" is `fp32`, "high"
    `tf32` and "medium" `bf16`; `fp32` where the target supports no more. With `deterministic` false, scatters add
    floats by atomic operations, in any order, as PyTorch does by default. Under the `policy` "batch-invariant", equal
    rows have equal results, bit for bit, in any batch. With `freeze` parameters are constants, and
    `weights` rounds those that products multiply by to a format, `int8`, `int4` or `fp8`. A `mode` of `torch.compile`
    stands for a budget. A graph of dynamic shape caches plans for `max_shapes` shapes, and drops the least recently
    used. With `buckets` it has one plan for all sizes up to each power of two, where no gradients are wanted. A forward
    graph may save the part `memory` of the activations; with less, the backward graph computes more again.

    Raises `UsageError` for an unknown option or mode, for a value that it cannot have, and for options beside a mode.
    """
    from ..frontends.torch import dynamo_backend

    wishes = _read(_options_of(options, mode))
    opened = _OPEN_SHARES.get(id(options))
    shares = _shares_of(module, wishes, options)
    return dynamo_backend(
        module,
        examples,
        partial(_compile, wishes, shares=shares),
        wishes.freeze,
        _CachedPlans(wishes),
        wishes.max_shapes,
        wishes.buckets,
        shares.resume if opened else shares.restart,
        wishes.memory,
        partial(cuts_backend, options=options and dict(options), mode=mode),
    )


def _options_of(options: Mapping[str, Any] | None, mode: str | None) -> Mapping[str, Any]:
    """Return the options, or those of a mode; a mode without effect on launches is reported once.

    Raises `UsageError` for an unknown mode, and where both are given.
    """
    if mode is None:
        return options or {}
    if not isinstance(mode, str) or mode not in _MODES:
        raise UsageError(f"unknown mode {quote(str(mode))}", hint=f"modes are: {', '.join(_MODES)}")
    if options:
        raise UsageError(
            f"mode {quote(mode)} and options {', '.join(map(str, options))}: expected one of them",
            hint="leave the mode out; option 'budget' sets seconds for timing candidates",
        )
    if mode in _SAME_LAUNCH and mode not in _REPORTED_MODES:
        _REPORTED_MODES.add(mode)
        warnings.warn(f"mode {quote(mode)}: {_SAME_LAUNCH[mode]}", CutsWarning, stacklevel=3)
    return _MODES[mode]


@frozen
class _Options:
    """Options of `torch.compile`."""

    precision: PrecisionName | None = None
    budget: float | None = None
    tune: bool = False
    libraries: bool = False
    freeze: bool = False
    weights: WeightsName | None = None
    deterministic: bool = True
    policy: PolicyName = "fastest"
    pruning: PruningRule = "bound"
    top: float = 1.0
    max_shapes: int = field(default=MAX_SHAPES, repr=False)  # no plan depends on it
    buckets: bool = field(default=False, repr=False)
    memory: float = 1.0

    def target_of(self, device: Any) -> tuple[Target, int]:
        """Return the target of a device under the policy, and its number."""
        target, ordinal = target_of(device)
        return with_policy(target, self.policy, self.deterministic), ordinal

    def shares(self, is_divided: bool = False) -> BudgetShares:
        """Return a new budget of a captured module."""
        return BudgetShares(math.inf if self.budget is None else self.budget, is_divided)


def _read(options: Mapping[str, Any]) -> _Options:
    known = [field.name for field in fields(_Options)]
    unknown = sorted(map(str, set(options) - set(known)))
    if unknown:
        raise UsageError(f"unknown option {quote(unknown[0])}", hint=f"options are: {', '.join(known)}")
    wishes = _Options(**options)
    if wishes.precision is not None and wishes.precision not in PRECISIONS:
        raise UsageError(
            f"unknown precision {quote(str(wishes.precision))}", hint=f"precisions are: {', '.join(PRECISIONS)}"
        )
    number = isinstance(wishes.budget, (int, float)) and not isinstance(wishes.budget, bool)
    if wishes.budget is not None and not (number and 0 < wishes.budget < math.inf):
        raise UsageError(f"option 'budget': expected seconds, found {wishes.budget!r}")
    for name in ("tune", "libraries", "freeze", "deterministic", "buckets"):
        if not isinstance(value := getattr(wishes, name), bool):
            raise UsageError(f"option '{name}': expected True or False, found {value!r}")
    if not isinstance(wishes.max_shapes, int) or isinstance(wishes.max_shapes, bool) or wishes.max_shapes < 1:
        raise UsageError(f"option 'max_shapes': expected an integer from 1, found {wishes.max_shapes!r}")
    if isinstance(wishes.memory, bool) or not isinstance(wishes.memory, (int, float)) or not 0 <= wishes.memory <= 1:
        raise UsageError(f"option 'memory': expected a number from 0 to 1, found {wishes.memory!r}")
    Pruning(wishes.pruning, wishes.top)  # raises
    check_policy(wishes.policy, wishes.deterministic, wishes.libraries)
    if wishes.weights is not None:
        from ..frontends import find_weight_format

        find_weight_format(wishes.weights)  # raises
        if not wishes.freeze:
            raise UsageError("option 'weights': parameters may change", hint="give freeze=True too")
    if wishes.libraries and wishes.budget is None and not wishes.tune:
        raise UsageError("option 'libraries': nothing is timed", hint="give a budget too, or tune=True")
    return wishes


#: Budgets that graphs of a function share until one ends without a graph break, by the identity of the options.
_OPEN_SHARES: dict[int, BudgetShares] = {}


def _shares_of(module: Any, wishes: _Options, options: object) -> BudgetShares:
    """Return the budget of a captured module, which it shares with those that graph breaks divide from it."""
    shares = _OPEN_SHARES.pop(id(options), None)
    broken = getattr(getattr(module, "compile_subgraph_reason", None), "graph_break", False)
    shares = shares or wishes.shares(is_divided=broken)
    if broken and options is not None:
        _OPEN_SHARES[id(options)] = shares
    return shares


@frozen(eq=False)
class _Precisions:
    """Plans of a captured graph, one for each precision."""

    wishes: _Options
    captured: Callable[[], CapturedGraph]
    target: Target
    ordinal: int
    shares: BudgetShares
    made: dict[PrecisionName, TensorProgram | ArrayFunction] = field(factory=dict)
    kept: dict[PrecisionName, str] = field(factory=dict)
    compiling: Any = field(factory=Lock)

    def choose(self, captured: CapturedGraph | None = None) -> TensorProgram | ArrayFunction:
        """Return the plan in the current precision.

        A graph that was just read need not be read again.
        """
        precision = _precision(self.wishes, self.target)
        with self.compiling:
            if precision not in self.made:
                self._compile(precision, captured or self.captured())
            return self.made[precision]

    def hold(self, precision: PrecisionName, plan: CompiledPlan) -> _Precisions:
        """Add a plan for a precision."""
        show_plan(plan.plan, {number: cubin.report for number, cubin in enumerate(plan.cubins)})
        self.made[precision] = program_of(plan, self.ordinal)
        if plan.cache_name:
            self.kept[precision] = plan.cache_name
        return self

    def _compile(self, precision: PrecisionName, captured: CapturedGraph) -> None:
        shares = self.wishes.shares() if self.made else self.shares
        with shares.share(captured.is_last) as budget:
            self._compile_within(budget, precision, captured)

    def _compile_within(self, budget: Budget, precision: PrecisionName, captured: CapturedGraph) -> None:
        options = CompileOptions(
            precision=precision,
            budget=self.wishes.budget,
            begun=budget,
            deterministic=self.wishes.deterministic,
            pruning=Pruning(self.wishes.pruning, self.wishes.top),
        )
        spec, weights = spec_of(captured), self.wishes.weights
        graph = captured.graph if weights is None else quantise_model(captured.graph, spec, weights)
        plan = build_cached(
            graph,
            spec,
            self.target,
            options,
            tune=self.wishes.tune or self.wishes.budget is not None,
            libraries=self.wishes.libraries,
        )
        self.hold(precision, plan)


def _precision(wishes: _Options, target: Target) -> PrecisionName:
    from ..frontends.torch import matmul_precision

    if wishes.precision is not None:
        return wishes.precision
    followed = _MATMUL_PRECISIONS[matmul_precision()]
    return followed if followed in precisions_of(target) else "fp32"


def _compile(wishes: _Options, captured: CapturedGraph, device: Any, shares: BudgetShares | None = None) -> _Precisions:
    """Compile a graph in the current precision, and again when it runs in another one."""
    target, ordinal = wishes.target_of(device)
    if device.type == "cuda":
        begin_native_library()
    plans = _Precisions(wishes, captured.reimport or (lambda: captured), target, ordinal, shares or wishes.shares())
    plans.choose(captured)  # errors are raised where the graph is captured
    return plans


@frozen
class _CachedPlans:
    """Cached plans of captured graphs that were compiled with the same options."""

    wishes: _Options

    def find(
        self, words: Sequence[str | bytes], device: Any, captured: Callable[[Sequence[int]], CapturedGraph]
    ) -> CachedGraph | None:
        """Return an earlier process's plan of a graph in the current precision."""
        target, ordinal = self.wishes.target_of(device)
        precision = _precision(self.wishes, target)
        known = find_signature(self._key(words, target, precision))
        plan = known and find_plan(known.plan, target)
        if not known or not plan:
            return None
        plans = _Precisions(self.wishes, lambda: captured(known.frozen), target, ordinal, self.wishes.shares())
        return known.with_program(plans.hold(precision, plan))

    def keep(self, words: Sequence[str | bytes], found: CachedGraph) -> None:
        """Save the names of a graph's plans."""
        plans = found.compiled
        assert isinstance(plans, _Precisions), "what this backend made"
        for precision, plan in plans.kept.items():
            save_signature(self._key(words, plans.target, precision), found, plan)

    def _key(self, words: Sequence[str | bytes], target: Target, precision: PrecisionName) -> Key:
        options = {"wishes": repr(self.wishes), "precision": precision}
        return Key("signature", {"module": digest_parts(words)}, target_facts(target), options)


with suppress(ImportError):  # without PyTorch nothing is captured
    from ..frontends.torch import allow_layers

    allow_layers(cuts_backend)
