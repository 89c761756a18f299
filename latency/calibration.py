"""Calibration of prediction intervals, by the confidence of the selection.

The table beside the data has, for each model, quantiles of |log(predicted / measured)| of samples that were predicted
without their case and number of input channels. `evaluate.py` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
from attrs import frozen

from .convolution import Floats
from .dataset import Profile, data_file

#: Upper ends of the classes of confidence, and the part of samples that an interval should hold.
CONFIDENCE_BOUNDS, COVERED_PART = (0.4, 0.6, 0.8, 0.95, 1.01), 0.9
#: Width where a model was never calibrated.
_DEFAULT_WIDTH = 0.5


@frozen
class Calibration:
    """Quantile of each class of confidence."""

    widths: tuple[float, ...]

    @classmethod
    def load(cls, profile: Profile, precision: str, state: str, part: str) -> Calibration:
        """Return the calibration of a model, a wide one without data."""
        return cls(
            tuple(_table(profile.name).get(f"{part}/{precision}/{state}", [_DEFAULT_WIDTH] * len(CONFIDENCE_BOUNDS)))
        )

    @classmethod
    def of(cls, predicted: Floats, measured: Floats, confidence: Floats) -> Calibration:
        """Return the quantiles of some predictions.

        A class with few samples takes those of all with less confidence.
        """
        errors = np.abs(np.log(predicted / measured))
        classes = np.searchsorted(CONFIDENCE_BOUNDS, confidence, side="right")
        widths = []
        for number in range(len(CONFIDENCE_BOUNDS)):
            own = errors[classes == number]
            own = own if len(own) >= 30 else errors[classes <= max(number, 1)]
            widths.append(round(float(np.quantile(own, COVERED_PART)), 4) if len(own) else _DEFAULT_WIDTH)
        return cls(tuple(widths))


def half_widths(calibration: Calibration, confidence: Floats) -> Floats:
    """Return half the width of each interval, as a logarithm."""
    classes = np.searchsorted(CONFIDENCE_BOUNDS, confidence, side="right")
    return np.array(calibration.widths)[np.minimum(classes, len(CONFIDENCE_BOUNDS) - 1)]


@cache
def _table(name: str) -> dict[str, Any]:
    file = data_file(f"{name}-intervals.json")
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
