"""Checkpoints: training state and losses, in one safetensors file.

A file is written beside the one that it replaces and moved there, so that an interrupted write leaves the last one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import frozen
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ..frontends import open_weights
from ..ir import Array, CutsError, DType, TensorType, UsageError, atomic_write

#: Names of the losses, and of the tensors of the state: this prefix and the tensor's name.
_LOSSES, _STATE = "losses", "state."


@frozen(eq=False)
class Checkpoint:
    """State between two steps, and the losses of all steps so far."""

    state: Mapping[str, Array]
    losses: tuple[float, ...]

    @property
    def steps(self) -> int:
        """The number of completed steps."""
        return len(self.losses)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically.

        Raises `UsageError` where it cannot be written.
        """
        arrays = {f"{_STATE}{name}": np.asarray(array, order="C") for name, array in self.state.items()}
        with atomic_write(path, "checkpoint", (SafetensorError,)) as part:
            save_file({_LOSSES: np.asarray(self.losses, np.float64), **arrays}, str(part))


def load_checkpoint(path: str | os.PathLike[str], types: Mapping[str, TensorType]) -> Checkpoint:
    """Read the state of a training graph.

    `types` has the types of the tensors that the graph carries from step to step.

    Raises `UsageError` where the file is no checkpoint, or one of another training graph.
    """
    file = Path(path)
    try:
        opened = open_weights(file.parent, file.name)
        known = opened.entries.get(_LOSSES)
        count = known[0].size if known else 0
        losses = opened.array(_LOSSES, TensorType(DType.F64, (count,)))
        state = {name: opened.array(f"{_STATE}{name}", type_).copy() for name, type_ in types.items()}
    except (CutsError, OSError) as error:
        raise UsageError(
            f"{file} is no checkpoint of this training graph: {error}", hint="name another file, or remove this one"
        ) from error
    return Checkpoint(state, tuple(map(float, losses)))
