"""Worker service of the sweep.

It judges one batch after another.
"""

from __future__ import annotations

import os
import time
from typing import Any

from attrs import asdict
from cuts.ops import Registry

from .running import judge_reference, judge_target, samples_of


class Sweeper:
    """Judge of batches by number, with outcomes as JSON values."""

    def __init__(self) -> None:
        os.nice(5)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the fork server hides GPUs from its forks
        self.registry = Registry.builtin()

    def batch(self, target: str, seed: int, number: int, sets: int, alone: int = -1) -> dict[str, Any]:
        """Judge a batch, or one sample of it, on some data sets."""
        start = time.monotonic()
        samples = samples_of(self.registry, seed, number)
        chosen = samples if alone < 0 else samples[alone : alone + 1]
        if target == "reference":
            report = judge_reference(self.registry, chosen, range(sets))
        else:
            report = judge_target(self.registry, chosen, range(sets), target, number)
        found = [difference.record for difference in report.differences]
        counts = asdict(report, recurse=False)
        return {**counts, "differences": found, "batch": number, "seconds": round(time.monotonic() - start, 2)}

    def size(self, seed: int, number: int) -> int:
        """Return how many samples a batch has."""
        return len(samples_of(self.registry, seed, number))
