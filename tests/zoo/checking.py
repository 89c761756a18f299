"""One architecture against eager, forward and backward."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from cuts.frontends.torch import UncompiledWarning
from cuts.ir import dtype_of_numpy
from cuts.numerics import compare, tolerance
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .builders import build_model
from .observation import Observation, observe_compilation
from .table import Architecture

#: Terms of a sum that a tolerance is for.
SUM_TERMS = 4096
#: Multiple of eager's error that a result may have, and greatest relative error of eager that explains one. Both are
#: errors against float64.
ERROR_MULTIPLE, MAX_EAGER_ERROR = 4.0, 0.1

#: Eager's own routine is wrong on a CPU where the gradient's layout is not the input's.
NORM_GRADIENT = torch.ops.aten.native_batch_norm_backward.default

Results = dict[str, torch.Tensor]


def check(architecture: Architecture, task: str, capture_only: bool) -> dict[str, Any]:
    """Return the record of a task, `forward` or `backward`."""
    model, inputs = build_model(architecture)
    run = RUNS[task]
    expected = run(model, model, inputs)
    model, inputs = build_model(architecture)  # models may hold results of a call
    observation = Observation()
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UncompiledWarning)
        if capture_only:
            run(model, torch.compile(model, backend=observation.capture), inputs)
            return record_of(observation, [])
        with observe_compilation(observation):
            found = run(model, torch.compile(model, backend="cuts"), inputs)
    sensitive: list[str] = []
    faults = [
        *faults_of(
            found,
            expected,
            observation.nodes,
            lambda: results_in_float64(*build_model(architecture), run),
            sensitive,
        )
    ]
    left = [str(each.message) for each in noted if issubclass(each.category, UncompiledWarning)]
    return {**record_of(observation, left), "right": not faults, "faults": faults[:4], "sensitive": sensitive[:4]}


def record_of(observation: Observation, left: list[str]) -> dict[str, Any]:
    """Return the counts of an observation as data."""
    return {
        "whole": not (observation.foreign or left) and observation.graphs > 0,
        "graphs": observation.graphs,
        "nodes": observation.nodes,
        "operations": dict(observation.foreign.most_common()),
        "share": round(observation.foreign_nodes / max(observation.nodes, 1), 3),
        "reasons": list(dict.fromkeys([*observation.reasons, *left]))[:4],
        "launches": observation.launches,
        "seconds": round(observation.seconds, 1),
    }


def run_forward(model: torch.nn.Module, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Results:
    """Return the tensors among a model's results."""
    torch.manual_seed(1)
    with torch.no_grad():
        return dict(_tensors(function(**inputs)))


def run_backward(model: torch.nn.Module, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Results:
    """Return a model's results, and gradients of its parameters.

    The loss is linear, of fixed weights."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    found = dict(_tensors(function(**inputs)))
    torch.manual_seed(2)
    roots = [each for each in found.values() if each.requires_grad]
    weights = [torch.randn(each.shape, dtype=torch.float64).to(each.dtype) for each in roots]
    torch.autograd.backward(roots, weights)
    gradients = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach() for name, value in {**found, **gradients}.items()}


RUNS: Mapping[str, Callable[..., Results]] = {"forward": run_forward, "backward": run_backward}


def faults_of(
    found: Results, expected: Results, operations: int, in_float64: Callable[[], Results], sensitive: list[str]
) -> Iterator[str]:
    """Yield a sentence for each result unlike eager's: type, strides or numbers.

    Where rounding of so many operations does not explain a difference, eager's own error against the model
    `in_float64` may; `sensitive` gets these results. Gradients that are zero but for rounding may be anything
    so small.
    """
    if found.keys() != expected.keys():
        yield f"results are {list(found)[:9]}, expected {list(expected)[:9]}"
        return
    exact: Results | None = None
    largest = max((float(each.abs().max()) for each in expected.values() if each.numel()), default=0.0)
    for name, wanted in expected.items():
        value = found[name]
        if (value.dtype, value.shape) != (wanted.dtype, wanted.shape):
            yield f"{name}: {value.dtype}{list(value.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
        elif value.numel() and _strides(value) != _strides(wanted):
            yield f"{name}: strides {value.stride()}, expected {wanted.stride()} of {list(wanted.shape)}"
        else:
            allowed = _tolerance_of(wanted, operations)
            result = compare(name, _numbers(value), _numbers(wanted), allowed)
            if result.ok or _are_nothing(value, wanted, largest):
                continue
            exact = exact if exact is not None else in_float64()
            ours, eager = (_error(name, each, exact) for each in (value, wanted))
            if ours <= max(allowed, ERROR_MULTIPLE * eager if eager <= MAX_EAGER_ERROR else 0.0):
                sensitive.append(f"{name}: error {ours:.3g} against float64, eager {eager:.3g}")
            else:
                yield f"{result.text}; error against float64 {ours:.3g}, eager {eager:.3g}"


def _error(name: str, value: torch.Tensor, exact: Results) -> float:
    """Return a result's relative error against float64, infinite where that result is missing or not finite."""
    if name not in exact or exact[name].shape != value.shape:
        return math.inf
    error = compare(name, _numbers(value.to(exact[name].dtype)), _numbers(exact[name]), 0.0).error
    return error if math.isfinite(error) else math.inf


def _are_nothing(value: torch.Tensor, wanted: torch.Tensor, largest: float) -> bool:
    """Return whether both results are rounding errors of the largest one."""
    if not (wanted.is_floating_point() or wanted.is_complex()) or not math.isfinite(largest):
        return False
    return all(bool(each.abs().max() <= torch.finfo(wanted.dtype).eps * largest) for each in (value, wanted))


def results_in_float64(model: torch.nn.Module, inputs: Mapping[str, Any], run: Callable[..., Results]) -> Results:
    """Return eager's results in float64, none after an error.

    Types that the model asks for are widened too: an angle of 7,000 from an exponential in float32 has eager's
    rounding, and a reference that shares it finds every other rounding wrong.
    """
    model.double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            return run(model, model, {name: _to_float64(value) for name, value in inputs.items()})
    except Exception:  # any error of the model's own code
        return {}
    finally:
        torch.set_default_dtype(default)


class _Float64(TorchDispatchMode):  # type: ignore[misc]
    """Float64 in place of every float type that a call names; random numbers are eager's."""

    def __torch_dispatch__(self, operation: Any, _: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = dict(keywords or {})
        if torch.Tag.nondeterministic_seeded in operation.tags:
            if any(each.name == "dtype" for each in operation._schema.arguments):
                keywords["dtype"] = keywords.get("dtype") or torch.float32
            return tree_map(_to_float64, operation(*arguments, **keywords))
        arguments, keywords = tree_map(_widen, (arguments, keywords))
        if operation is NORM_GRADIENT:
            return decomposition_table[operation](*arguments, **keywords)
        try:
            return operation(*arguments, **keywords)
        except RuntimeError:  # some have no float64, as grouped products
            narrow = tree_map(_to_float32, (arguments, keywords))
            return tree_map(_to_float64, operation(*narrow[0], **narrow[1]))


def _widen(argument: Any) -> Any:
    return torch.float64 if isinstance(argument, torch.dtype) and argument.is_floating_point else argument


def _to_float64(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_float64(each) for each in value]
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float64 else value


def _tolerance_of(wanted: torch.Tensor, operations: int) -> float:
    kind = dtype_of_numpy(_numbers(wanted[:0] if wanted.dim() else wanted).dtype)
    return tolerance(kind, SUM_TERMS, operations) if kind is not None else 0.0


def _numbers(value: torch.Tensor) -> Any:
    plain = value.detach().resolve_conj().resolve_neg()
    return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()


def _strides(value: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]


def _tensors(value: Any, name: str = "result") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a result by their paths."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(each, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _tensors(each, f"{name}.{number}")
    elif hasattr(value, "__dict__") and type(value).__module__.startswith(("diffusers", "torchvision")):
        yield from _tensors(vars(value), name)
