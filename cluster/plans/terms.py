"""Result of a closed form: columns of times and bytes by way."""

from __future__ import annotations

import numpy as np
from attrs import fields, frozen

from .ways import Column


@frozen(eq=False)
class Terms:
    """Times in seconds of one mini-batch, on the slowest GPU.

    Bytes are of one GPU. `compute`, `storage`, `wp`, `dp`, `pipeline` and `optimiser` are the busy time of each part,
    `bubble` the time a pipeline fills and drains, `total` the time of the whole with the overlap that the form assumes.
    `read` and `write` leave the optimiser out.
    """

    compute: Column
    storage: Column
    wp: Column
    dp: Column
    pipeline: Column
    optimiser: Column
    bubble: Column
    total: Column
    read: Column
    write: Column
    optimiser_read: Column
    optimiser_write: Column
    wp_bytes: Column
    dp_bytes: Column
    pipeline_bytes: Column

    @property
    def gpu(self) -> Column:
        """Seconds of all traffic between GPUs."""
        return self.wp + self.dp + self.pipeline

    def row(self, row: int) -> dict[str, float]:
        """Return one row by name."""
        return {each.name: float(getattr(self, each.name)[row]) for each in fields(Terms)}

    def binding(self, row: int) -> str:
        """Return the part that is busy longest, the bottleneck."""
        parts = {"compute": self.compute, "storage": self.storage, "GPU to GPU": self.gpu, "optimiser": self.optimiser}
        return max(parts, key=lambda name: float(parts[name][row]))


def zeros(like: Column) -> Column:
    """Return a column of zeros."""
    return np.zeros(len(like))
