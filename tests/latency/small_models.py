"""Small models of latency, fitted to a part of the profile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from cuts.latency.dataset import Samples, training_samples
from cuts.latency.predictor import predictor
from cuts.latency.predictors.layer_model import Options
from cuts.tests.amounts import NIGHTLY

#: A model for seeing that everything works; `tests/latency/report.py` measures the whole one.
SMALL_OPTIONS, STEP = Options(trees=3, rounds=40), 8


@contextmanager
def small_models() -> Iterator[None]:
    """Fit small models to a part of the profile, except at night."""
    predictor.cache_clear()
    with patch.dict(os.environ, {"CUTS_NO_CACHE": "1"}):
        if NIGHTLY:
            yield
        else:
            with (
                patch("cuts.latency.predictor.Options", lambda: SMALL_OPTIONS),
                patch("cuts.latency.predictor.training_samples", lambda samples: every_nth(training_samples(samples))),
            ):
                yield
    predictor.cache_clear()


def every_nth(samples: Samples) -> Samples:
    """Return one of `STEP` samples."""
    return samples.where(np.arange(len(samples)) % STEP == 0)
