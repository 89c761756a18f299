"""Predictor of one machine: operations in, predictions out.

A prediction has microseconds with an interval, the expected kernels, and warnings. Models are fitted to the profile on
first use, which takes half a minute to a minute on two cores, and cached for later processes (`model_cache.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from attrs import asdict, frozen

from ..ir import UsageError
from .calibration import Calibration, half_widths
from .convolution import FIELDS, Convolutions, Floats
from .dataset import Profile, Samples, Strings, load_profile, training_samples
from .model_cache import cached_fit
from .operations import LayerOperation
from .predictors import LayerModel, Options, SimpleModel, fit_all, moved_elements
from .ranges import Ranges

PRECISIONS = ("fp32", "tf32")
STATES = ("cold", "warm")


@frozen
class Prediction:
    """Prediction of one operation or layer.

    It has microseconds, an interval that holds nine of ten, kernels, and warnings. `us` is the time with the most
    probability; `mean`, where it is another, is that of all likely times, which is the better term of a sum: one layer
    whose choice is close then costs a sum part of the difference, not all of it or nothing.
    """

    us: float
    low: float
    high: float
    kernels: tuple[str, ...] = ()
    blocks: int = 0
    confidence: float = 1.0
    warnings: tuple[str, ...] = ()
    mean: float | None = None

    @property
    def term(self) -> float:
        """The microseconds that it adds to a sum."""
        return self.us if self.mean is None else self.mean


@frozen(eq=False)
class Part:
    """Fitted model of convolutions, its range and its calibration."""

    model: LayerModel
    ranges: Ranges
    calibration: Calibration


@frozen(eq=False)
class Predictor:
    """Models of one machine, for one precision and one cache state."""

    profile: Profile
    precision: str
    state: str

    def convolutions(self, layers: Convolutions) -> tuple[Prediction, ...]:
        """Predict convolutions, dense and depthwise ones."""
        deep = (layers.column("groups") > 1) & (layers.column("groups") == layers.column("C"))
        found: list[Prediction] = [Prediction(0.0, 0.0, 0.0)] * len(layers)
        for mask, part in ((~deep, "dense"), (deep, "depthwise")):
            rows = np.flatnonzero(mask)
            if len(rows):
                for row, prediction in zip(rows, self._ask(self._part_model(part), layers[rows]), strict=True):
                    found[row] = prediction
        return tuple(found)

    def operations(self, wanted: Sequence[LayerOperation]) -> tuple[Prediction, ...]:
        """Predict operations of any kind."""
        found: dict[int, Prediction] = {}
        for kind in dict.fromkeys(each.kind for each in wanted):
            rows = [i for i, each in enumerate(wanted) if each.kind == kind]
            found |= dict(zip(rows, self._kind(kind, [wanted[i].shape for i in rows]), strict=True))
        return tuple(found[i] for i in range(len(wanted)))

    def _kind(self, kind: str, shapes: Sequence[tuple[int, ...]]) -> Sequence[Prediction]:
        if kind == "conv2d":
            return self.convolutions(Convolutions(shapes))
        if kind == "linear":
            return self._ask(self._linear, as_convolutions(shapes))
        if kind == "move":  # an unknown operation moves memory as a sum of two images does
            images = [(1, 1, 1, max(1, (read + written) // 3)) for read, written in shapes]
            note = "no such operation was profiled: taken as one that only moves memory"
            return [self._widen(each, note) for each in self._simple("add", images)]
        return self._simple(kind, shapes)

    def _simple(self, kind: str, shapes: Sequence[tuple[int, ...]]) -> list[Prediction]:
        if kind not in self._models:
            raise UsageError(
                f"operation '{kind}' was not profiled on '{self.profile.name}'",
                hint=f"besides convolutions and products: {', '.join(self._models) or 'none yet'}",
            )
        model = self._models[kind]
        us = model.predict(shapes)
        largest = np.add(*moved_elements(kind, shapes))
        found = [_symmetric(float(t), np.log1p(model.spread)) for t in us]
        return [self._widen(each, f"moves more than any '{kind}' that was profiled") if n > model.most else each
                for each, n in zip(found, largest, strict=True)]  # fmt: skip

    def _widen(self, each: Prediction, warning: str) -> Prediction:
        return Prediction(
            each.us, each.low / 2, each.high * 2, each.kernels, each.blocks, each.confidence, (*each.warnings, warning)
        )

    def _ask(self, part: Part, layers: Convolutions) -> tuple[Prediction, ...]:
        us, choices, confidence, means = part.model.answers(layers)
        widths = half_widths(part.calibration, confidence)
        outside = part.ranges.outside(layers)
        blocks = _blocks(part.model, layers, choices)
        return tuple(
            _make_prediction(
                (float(us[i]), float(means[i])),
                float(widths[i]),
                self.profile.kernel_names(str(choices[i])),
                int(blocks[i]),
                float(confidence[i]),
                outside[i],
            )
            for i in range(len(layers))
        )

    # ---- models, fitted on first use

    def _part_model(self, name: str) -> Part:
        return self._dense if name == "dense" else self._depthwise

    @cached_property
    def _dense(self) -> Part:
        return self._fit_part(lambda: training_samples(self.profile.convolutions(self.precision)), "dense")

    @cached_property
    def _depthwise(self) -> Part:
        return self._fit_part(lambda: self.profile.convolutions("fp32", depthwise=True), "depthwise")

    @cached_property
    def _linear(self) -> Part:
        return self._fit_part(lambda: self.profile.products(self.precision), "linear")

    @cached_property
    def _models(self) -> dict[str, SimpleModel]:
        """Return the models of simple operations that the profile has."""

        def fit() -> dict[str, Any]:
            return {op: asdict(each) for op, each in fit_all(self.profile, self.state).items()}

        found = cached_fit((self.profile.digest, "operations", self.state), fit)
        return {op: SimpleModel(**{**each, "coefficients": tuple(each["coefficients"])}) for op, each in found.items()}

    def _fit_part(self, samples: Callable[[], Samples], name: str) -> Part:
        options = Options()

        def fit() -> dict[str, Any]:
            seen = samples()
            model = LayerModel(options).fit(seen, self.state, self.profile.kernels)
            return model.state() | {"ranges": Ranges.of(seen.layers).bounds}

        # Depthwise convolutions compute no products that could be rounded in another way.
        precision = "fp32" if name == "depthwise" else self.precision
        values = cached_fit((self.profile.digest, name, precision, self.state, repr(options)), fit)
        ranges = Ranges(tuple((size, least, most) for size, least, most in values["ranges"]))
        calibration = Calibration.load(self.profile, self.precision, self.state, name)
        return Part(LayerModel.of_state(options, values), ranges, calibration)


def _symmetric(us: float, width: float) -> Prediction:
    """Return a prediction whose interval is a factor to either side."""
    return Prediction(us, us * float(np.exp(-width)), us * float(np.exp(width)))


def _make_prediction(
    times: tuple[float, float],
    width: float,
    kernels: tuple[str, ...],
    blocks: int,
    confidence: float,
    outside: tuple[str, float],
) -> Prediction:
    """Return a prediction; outside of the profiled range its interval is at least a factor of two, more the further
    away it is.
    """
    text, distance = outside
    if text:
        width = max(2 * width, float(np.log(2))) + distance
    plain = _symmetric(times[0], width)
    return Prediction(times[0], plain.low, plain.high, kernels, blocks, confidence, (text,) if text else (), times[1])


def _blocks(model: LayerModel, layers: Convolutions, choices: Strings) -> Floats:
    found = np.zeros(len(layers))
    for choice in np.unique(choices):
        own = choices == choice
        found[own] = model.main(str(choice)).tiles.blocks(layers[own])
    return found


def as_convolutions(shapes: Sequence[tuple[int, ...]]) -> Convolutions:
    """Convert products (rows, inputs, outputs) to convolutions of one-pixel images."""
    sizes = dict.fromkeys(FIELDS, 1) | {"pad_h": 0, "pad_w": 0}
    return Convolutions(
        [tuple((sizes | {"N": rows, "C": inputs, "K": outputs}).values()) for rows, inputs, outputs in shapes]
    )


@cache
def predictor(name: str, precision: str, state: str) -> Predictor:
    """Return the models of a machine.

    Raises `UsageError` for an unknown precision or state.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision '{precision}'", hint=f"profiled are {', '.join(PRECISIONS)}")
    if state not in STATES:
        raise UsageError(f"unknown state of the cache '{state}'", hint=f"known are {', '.join(STATES)}")
    return Predictor(load_profile(name), precision, state)
