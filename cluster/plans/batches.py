"""Input data of a run."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from ...backends import Array
from ...ir import UsageError
from .transformer import Transformer

#: Returns the input of a micro-batch and, in training, its target: (step, group, micro) -> arrays. Of a model with a
#: vocabulary they are tokens and the tokens that follow, [micro, sequence], of others numbers, [micro, sequence,
#: hidden].
Batches = Callable[[int, int, int], tuple[Array, Array | None]]


def random_batches(model: Transformer, micro: int, seed: int) -> Batches:
    """Return random inputs and targets.

    They are the same for the same seed, step, group and micro-batch.
    """

    def tokens(step: int, group: int, number: int) -> tuple[Array, Array]:
        generator = np.random.default_rng([seed, step, group, number])
        text = generator.integers(0, model.vocabulary, (micro, model.sequence + 1), np.int32)
        return text[:, :-1], text[:, 1:]

    def numbers(step: int, group: int, number: int) -> tuple[Array, Array]:
        generator = np.random.default_rng([seed, step, group, number])
        shape = (micro, model.sequence, model.hidden)
        return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)

    return tokens if model.vocabulary else numbers


def load_tokens(path: str | os.PathLike[str], model: Transformer, micro: int, groups: int = 1) -> Batches:
    """Return batches of the tokens of an .npy file.

    They are in order, from the beginning again at the end. Each sequence is followed by its own last target, which
    begins the next one. Raises `UsageError` for a file without a row of tokens of the model's vocabulary, and for a
    model without a vocabulary.
    """
    if not model.vocabulary:
        raise UsageError(f"{model.name}: expected a model with a vocabulary to read tokens, found vocabulary 0")
    try:
        text = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read tokens of {path}: {error}") from error
    count = (text.size - 1) // model.sequence if text.ndim == 1 and text.dtype.kind in "iu" else 0
    if count < 1:
        raise UsageError(
            f"{path}: expected a row of more than {model.sequence} tokens, found {text.dtype} of {text.shape}"
        )
    if not 0 <= int(text.min()) <= int(text.max()) < model.vocabulary:
        raise UsageError(
            f"{path}: expected tokens from 0 to {model.vocabulary - 1}, found {text.min()} to {text.max()}"
        )
    share = model.batch // groups

    def batch(step: int, group: int, number: int) -> tuple[Array, Array]:
        first = step * model.batch + group * share + number * micro
        begins = [(first + row) % count * model.sequence for row in range(micro)]
        rows = np.stack([np.asarray(text[begin : begin + model.sequence + 1], np.int32) for begin in begins])
        return rows[:, :-1], rows[:, 1:]

    return batch
