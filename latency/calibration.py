"""How far off predictions are, by how sure the selection was: what intervals are made of.

The table beside the data has, for each model, quantiles of |log(predicted / measured)| of samples that were predicted
without their case and number of input channels. `evaluate.py` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from attrs import frozen

from .convolution import Floats
from .dataset import Profile

#: Upper ends of the classes of confidence, and the part of samples that an interval should hold.
CLASSES, COVERED = (0.4, 0.6, 0.8, 0.95, 1.01), 0.9
#: What is taken where a model was never calibrated.
_UNKNOWN = 0.5


@frozen
class Calibration:
    """The quantile of each class of confidence."""

    widths: tuple[float, ...]

    @classmethod
    def load(cls, profile: Profile, precision: str, state: str, part: str) -> Calibration:
        """Return the calibration of a model, a wide one where there is none."""
        return cls(tuple(_table(profile.name).get(f"{part}/{precision}/{state}", [_UNKNOWN] * len(CLASSES))))

    @classmethod
    def of(cls, predicted: Floats, measured: Floats, confidence: Floats) -> Calibration:
        """Return the quantiles of some predictions; a class with few samples takes those of all that were less sure."""
        errors = np.abs(np.log(predicted / measured))
        classes = np.searchsorted(CLASSES, confidence, side="right")
        widths = []
        for number in range(len(CLASSES)):
            own = errors[classes == number]
            own = own if len(own) >= 30 else errors[classes <= max(number, 1)]
            widths.append(round(float(np.quantile(own, COVERED)), 4) if len(own) else _UNKNOWN)
        return cls(tuple(widths))


def half_widths(calibration: Calibration, confidence: Floats) -> Floats:
    """Return half the width of each interval, as a logarithm."""
    classes = np.searchsorted(CLASSES, confidence, side="right")
    return np.array(calibration.widths)[np.minimum(classes, len(CLASSES) - 1)]


@cache
def _table(name: str) -> dict[str, Any]:
    file = resources.files(__package__).joinpath("data", f"{name}-intervals.json")
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
