"""Queries by an operation's name, a shape and a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir import UsageError
from ..convolution import FIELDS, Convolutions, convolution
from ..dataset import known_profiles
from ..operations import LayerOperation
from ..predictor import Prediction, Predictor, predictor
from ..predictors import OPERATIONS, POOLS
from .own_kernels import OwnKernels, own_kernels
from .own_plans import OwnPlans, own_plans

_IMAGE, _WINDOW = ("n", "c", "h", "w"), ("window", "stride", "padding")
#: Names of the sizes of an operation that is no convolution, in order.
_NAMES: Mapping[str, tuple[str, ...]] = {"linear": ("rows", "inputs", "outputs")} | {
    op: (*_IMAGE, *_WINDOW) if op in POOLS else _IMAGE for op in OPERATIONS
}
#: The largest size; larger numbers are typing errors.
_MAX_SIZE = 10**9


def find_own_kernels(target: str) -> OwnKernels:
    """Return the model of the kernels that `cuts` would tune.

    They are for a target, in strict fp32. Raises `UsageError` for a machine without a profile.
    """
    return own_kernels(_profile_name(target))


def find_own_plans(target: str) -> OwnPlans:
    """Return the model of the plans that `cuts` would tune.

    They are for a target, in strict fp32. Raises `UsageError` for a machine without a profile.
    """
    return own_plans(_profile_name(target))


def find_predictor(target: str, precision: str, state: str) -> Predictor:
    """Return the models of a target: `h200` or `cuda:h200`.

    Raises `UsageError` for a machine without a profile.
    """
    return predictor(_profile_name(target), precision, state)


def _profile_name(target: str) -> str:
    name = target.lower().removeprefix("cuda:")
    if name not in known_profiles():
        raise UsageError(
            f"no layers were profiled on target '{target}'",
            hint=f"profiled are {', '.join(known_profiles())}; `cuts latency profile` profiles another device",
        )
    return name


def predict(
    op: str, shape: Mapping[str, int] | Sequence[int], target: str, *, precision: str = "fp32", state: str = "cold"
) -> Prediction:
    """Predict the time of one operation on a machine.

    The prediction has microseconds, the interval that holds nine of ten, kernels, and warnings. `op` is "conv2d"
    (`shape` names its sizes, as for `convolution.convolution`), "linear" ((rows, inputs, outputs)), or one of
    `simple_model.OPERATIONS` ((n, c, h, w), with window, stride and padding for pools). `state` is "cold", or "warm"
    where the input was just written. Raises `UsageError` for anything that was not profiled by that name and for
    impossible sizes.
    """
    asked = find_predictor(target, precision, state)
    if op == "conv2d":
        row = convolution(shape) if isinstance(shape, Mapping) else _full_row(shape)
        return asked.convolutions(Convolutions([row]))[0]
    return asked.operations([LayerOperation(op, _sizes(op, shape))])[0]


def _sizes(op: str, shape: Mapping[str, int] | Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of an operation in order. Raises `UsageError` for other names, and where one is impossible."""
    if op not in _NAMES:
        raise UsageError(f"unknown operation '{op}'", hint=f"known are conv2d, {', '.join(_NAMES)}")
    names = _NAMES[op]
    if isinstance(shape, Mapping) and set(shape) != set(names):
        raise UsageError(f"'{op}' has the sizes {', '.join(names)}, found {', '.join(shape) or 'none'}")
    sizes = tuple(shape[name] for name in names) if isinstance(shape, Mapping) else tuple(shape)
    if len(sizes) != len(names):
        raise UsageError(f"'{op}' has {len(names)} sizes ({', '.join(names)}), found {len(sizes)}")
    for name, value in zip(names, sizes, strict=True):
        if not isinstance(value, int) or not (name != "padding") <= value <= _MAX_SIZE:
            raise UsageError(f"'{op}': size {name}: expected {int(name != 'padding')} to {_MAX_SIZE}, found {value!r}")
    if op in POOLS and min(sizes[2:4]) + 2 * sizes[6] < sizes[4]:
        raise UsageError(f"'{op}': a window of {sizes[4]} is larger than the image of {sizes[2]} x {sizes[3]}")
    return sizes


def _full_row(shape: Sequence[int]) -> tuple[int, ...]:
    if len(shape) != len(FIELDS):
        raise UsageError(
            f"a convolution has the {len(FIELDS)} sizes {', '.join(FIELDS)}, found {len(shape)}",
            hint="name them instead",
        )
    return convolution(dict(zip(FIELDS, shape, strict=True)))
