"""Trains a small perceptron to classify points inside and outside a circle.

Run `python examples/train.py`.

The training graph (forward, backward, optimiser) is derived from the declarations and compiled into kernels; they run
through OpenCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuts
import numpy as np

STEPS = 200
PARAMETERS = ("w1", "b1", "w2", "b2")


def batches(rng: np.random.Generator, size: int) -> Iterator[dict[str, Any]]:
    """Yield points of a square and whether each lies in a circle."""
    for _ in range(STEPS):
        x = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
        yield {"x": x, "target": ((x**2).sum(axis=1) < 0.5).astype(np.int64)}


def main() -> None:
    """Train, and say how well it went."""
    graph = cuts.with_loss(cuts.load_graph(Path(__file__).parent / "perceptron.json"), "cross_entropy")
    training = cuts.grad(graph, loss="loss", wrt=PARAMETERS, optimiser=cuts.Adam(rate=0.05))
    plan = training.build("opencl")
    print(
        f"{len(graph.nodes)} nodes forward, {len(training.graph.nodes)} in the training graph, {len(plan.kernels)} "
        f"kernels"
    )
    rng = np.random.default_rng(0)
    start = {name: (0.5 * rng.standard_normal(graph.types[name].shape)).astype(np.float32) for name in PARAMETERS}
    state: dict[str, object] = {**training.initial, **start}
    for number, batch in enumerate(batches(rng, graph.types["x"].shape[0]), 1):
        results, state = training.step(plan.run, state, batch)
        if number % 50 == 0:
            right = (results["y"].argmax(axis=1) == batch["target"]).mean()
            print(f"step {number:3d}: loss {float(results['loss']):.3f}, {right:.0%} of the batch right")


if __name__ == "__main__":
    main()
