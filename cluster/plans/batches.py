"""Input data of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...backends import Array
from .descriptions import Transformer

#: Returns the input of a micro-batch and, in training, its target: (step, group, micro) -> arrays of [micro, sequence,
#: hidden].
Batches = Callable[[int, int, int], tuple[Array, Array | None]]


def random_batches(model: Transformer, micro: int, seed: int) -> Batches:
    """Return random inputs and targets.

    They are the same for the same seed, step, group and micro-batch.
    """
    shape = (micro, model.sequence, model.hidden)

    def batch(step: int, group: int, number: int) -> tuple[Array, Array]:
        generator = np.random.default_rng([seed, step, group, number])
        return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)

    return batch
