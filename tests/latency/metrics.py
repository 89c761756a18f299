"""Quality of predictions: the paper's two figures and relative errors.

The figures are the share within 10 % and the root mean square error.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from cuts.latency.convolution import Floats


@frozen
class Score:
    """Quality of predictions against measurements.

    `within` is the share within +-10 %, `rmse` in milliseconds, errors are relative.
    """

    count: int
    within: float
    within_5: float
    rmse: float
    median: float
    p90: float

    def line(self) -> str:
        """Return it as text."""
        return (
            f"{self.count:6d}  {100 * self.within:5.1f} %  {100 * self.within_5:5.1f} %  "
            f"{self.rmse:8.4f} ms  {100 * self.median:5.1f} %  {100 * self.p90:5.1f} %"
        )


def score(predicted: Floats, measured: Floats) -> Score:
    """Compare microseconds."""
    error = np.abs(predicted / measured - 1)
    rmse = float(np.sqrt(np.mean((predicted - measured) ** 2))) * 1e-3
    shares = float(np.mean(error <= 0.1)), float(np.mean(error <= 0.05))
    return Score(len(measured), *shares, rmse, float(np.median(error)), float(np.quantile(error, 0.9)))
