"""`torch.compile(model, backend="cuts")`, or `backend=cuts.compile.torch_backend.cuts_backend` where the package is not
installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from attrs import field, fields, frozen

from ..ir import PRECISIONS, Budget, CompileOptions, PrecisionName, Target, UsageError, quote
from .driver import precisions_of
from .in_place import program_of, spec_of, target_of
from .known_ends import find_ends, keep_ends
from .plan_cache import find_plan, target_facts
from .tuned import build_again

if TYPE_CHECKING:
    from ..frontends.torch import ArrayFunction, Captured, Found, TensorProgram
    from .plan import CompiledPlan


#: How PyTorch's word for products of f32 reads as a policy (`torch.set_float32_matmul_precision`).
_FOLLOWED: Mapping[str, PrecisionName] = {"highest": "fp32", "high": "tf32", "medium": "bf16"}


def cuts_backend(module: Any, examples: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
    """Compile what Dynamo captured: for OpenCL where its tensors are on the CPU, for CUDA where they are on a GPU.

    `options` are those of `torch.compile(..., options={"budget": 60})`, and apply to each captured graph. With a
    `budget` in seconds (or `tune`, without one) candidates are timed; a later process finds what was found. With
    `libraries` routines of vendors' libraries are timed too: other CUDA graphs cannot record what calls them. Without a
    `precision`, PyTorch's settings are followed: `torch.autocast`, whose casts the captured graph has, and for what is
    left in f32 `torch.set_float32_matmul_precision`, as it is when the graph runs: "highest" is `fp32`, "high" `tf32`
    and "medium" `bf16`; `fp32` where the target can do no more.

    Raises `UsageError` for an option that there is not, and for a value that it cannot have.
    """
    from ..frontends.torch import dynamo_backend

    wishes = _read(options or {})
    return dynamo_backend(module, examples, partial(_compile, wishes), wishes.freeze, _Kept(wishes))


@frozen
class _Wishes:
    """What `torch.compile` was told."""

    precision: PrecisionName | None = None
    budget: float | None = None
    tune: bool = False
    libraries: bool = False
    freeze: bool = False


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
    if wishes.budget is not None and not (number and 0 < wishes.budget < math.inf):
        raise UsageError(f"option 'budget': expected seconds, found {wishes.budget!r}")
    for name in ("tune", "libraries", "freeze"):
        if not isinstance(value := getattr(wishes, name), bool):
            raise UsageError(f"option '{name}': expected True or False, found {value!r}")
    if wishes.libraries and wishes.budget is None and not wishes.tune:
        raise UsageError("option 'libraries': nothing is timed", hint="give a budget too, or tune=True")
    return wishes


@frozen(eq=False)
class _Precisions:
    """The plans of a captured graph: one in each precision that held when it ran."""

    wishes: _Wishes
    captured: Callable[[], Captured]
    target: Target
    ordinal: int
    made: dict[PrecisionName, TensorProgram | ArrayFunction] = field(factory=dict)
    kept: dict[PrecisionName, str] = field(factory=dict)
    compiling: Any = field(factory=Lock)

    def choose(self) -> TensorProgram | ArrayFunction:
        """Return the plan in the precision that holds now."""
        precision = _precision(self.wishes, self.target)
        with self.compiling:
            if precision not in self.made:
                self._compile(precision)
            return self.made[precision]

    def hold(self, precision: PrecisionName, plan: CompiledPlan) -> _Precisions:
        """Have a plan for a precision."""
        self.made[precision] = program_of(plan, self.ordinal)
        if plan.kept is not None:
            self.kept[precision] = plan.kept.name
        return self

    def _compile(self, precision: PrecisionName) -> None:
        captured = self.captured()
        begun = None if self.made else Budget.since(captured.begun, self.wishes.budget)  # reading it counts
        options = CompileOptions(precision=precision, budget=self.wishes.budget, begun=begun)
        plan = build_again(
            captured.graph,
            spec_of(captured),
            self.target,
            options,
            tune=self.wishes.tune or self.wishes.budget is not None,
            libraries=self.wishes.libraries,
        )
        self.hold(precision, plan)


def _precision(wishes: _Wishes, target: Target) -> PrecisionName:
    from ..frontends.torch import matmul_precision

    if wishes.precision is not None:
        return wishes.precision
    followed = _FOLLOWED[matmul_precision()]
    return followed if followed in precisions_of(target) else "fp32"


def _compile(wishes: _Wishes, captured: Captured, device: Any) -> _Precisions:
    """Compile a graph in the precision that holds now, and again where another one holds when it runs."""
    target, ordinal = target_of(device)
    plans = _Precisions(wishes, lambda: captured, target, ordinal)
    plans.choose()  # what cannot be compiled is said where the graph is captured
    return plans


@frozen
class _Kept:
    """Which kept plans captured graphs have that were compiled with the same wishes."""

    wishes: _Wishes

    def find(
        self, words: Sequence[str | bytes], device: Any, captured: Callable[[Sequence[int]], Captured]
    ) -> Found | None:
        """Return what an earlier process made of a graph, in the precision that holds now."""
        target, ordinal = target_of(device)
        precision = _precision(self.wishes, target)
        known = find_ends(self._facts(words, target, precision))
        plan = known and find_plan(known.plan, target)
        if not known or not plan:
            return None
        plans = _Precisions(self.wishes, lambda: captured(known.frozen), target, ordinal)
        return known.found(plans.hold(precision, plan))

    def keep(self, words: Sequence[str | bytes], found: Found) -> None:
        """Note under which name the plans of a graph are kept."""
        plans = found.compiled
        assert isinstance(plans, _Precisions), "what this backend made"
        for precision, plan in plans.kept.items():
            keep_ends(self._facts(words, plans.target, precision), found, plan)

    def _facts(self, words: Sequence[str | bytes], target: Target, precision: PrecisionName) -> Iterator[str | bytes]:
        yield from (repr(self.wishes), precision, *target_facts(target))
        yield from words


with suppress(ImportError):  # without PyTorch nothing is captured
    from ..frontends.torch import allow_layers

    allow_layers(cuts_backend)
