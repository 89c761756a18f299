"""Ranges of a model: least and greatest fitted value of each size."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from .convolution import Convolutions, Floats

#: Sizes that are checked. Borders follow from filters; work and memory are checked because a product of extremes was
#: never seen.
_SIZES = ("N", "C", "H", "W", "K", "R", "S", "stride_h", "stride_w", "dilation", "groups")


def _values(layers: Convolutions) -> dict[str, Floats]:
    values = {name: layers.column(name).astype(float) for name in _SIZES}
    values["groups"] = np.where(
        values["groups"] == values["C"], 1.0, values["groups"]
    )  # depthwise is a model of its own
    return values | {
        "operations": layers.flops,
        "elements read": layers.m_in.astype(float),
        "elements written": layers.m_out.astype(float),
    }


@frozen
class Ranges:
    """Least and greatest value of each size by its name."""

    bounds: tuple[tuple[str, float, float], ...]

    @classmethod
    def of(cls, layers: Convolutions) -> Ranges:
        """Return those of convolutions."""
        return cls(tuple((name, float(each.min()), float(each.max())) for name, each in _values(layers).items()))

    def outside(self, layers: Convolutions) -> list[tuple[str, float]]:
        """Return, for each convolution, a sentence and a distance.

        The sentence names the sizes that are outside (empty where none is), the distance is a sum of logarithms.
        """
        values = _values(layers)
        return [self._outside({name: float(each[i]) for name, each in values.items()}) for i in range(len(layers))]

    def _outside(self, values: dict[str, float]) -> tuple[str, float]:
        found, distance = [], 0.0
        for name, least, most in self.bounds:
            value = values[name]
            if not least <= value <= most:
                found.append(f"{name}={value:,.0f} (profiled: {least:,.0f} to {most:,.0f})")
                distance += abs(float(np.log(max(value, 1.0) / (most if value > most else max(least, 1.0)))))
        return (f"outside of what was profiled: {', '.join(found)}" if found else "", distance)
