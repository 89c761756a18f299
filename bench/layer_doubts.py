"""Which layers are worth profiling next: those about whose time the model is least sure.

    python -m cuts.bench.layer_doubts h200 --count 11000 19000 --out tasks.txt

writes keys of layers for `bench/profile_layers.py --tasks`. Candidates are drawn as the evaluation's layers are (any
channels of the same cases, and convolutions of any size), without every case and number of input channels that the
evaluation holds out and without the layers of the networks that nothing is fitted on. Nothing that is held out has a
say: doubt is the part of the selection's probability that speaks against the time it agreed on. Layers are drawn by
doubt, a few regardless of it, so that they do not crowd along one border.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attrs import evolve
from cuts.bench.layer_networks import KNOWN
from cuts.bench.layer_tasks import (
    CASES,
    LayerTask,
    Shape,
    any_channels,
    convolution,
    general,
    held,
    more_edges,
    reasonable,
    sweep,
)  # fmt: skip
from cuts.latency.convolution import Convolutions, Floats
from cuts.latency.dataset import Profile, load_profile, trained_on
from cuts.latency.layer_model import LayerModel, Options
from cuts.latency.networks import load_networks
from cuts.latency.predictor import PRECISIONS

#: What a layer without doubt weighs, and the power of doubts: others are drawn more often by that much.
_FLOOR, _POWER = 0.04, 1.5
#: Images of networks for an input of 224 or 299.
_USUAL_IMAGES = (7, 8, 13, 14, 17, 27, 28, 35, 55, 56, 112, 224)


def candidates(each: int, seed: str) -> Iterator[LayerTask]:
    """Yield layers of the cases, `each` for each case, those beside edges, and layers of any size."""
    draw = random.Random(seed)
    unseen = {(task.case, task.shape[1]) for task in (*held(), *sweep())}
    for case in CASES:
        found: set[Shape] = set()
        while len(found) < each:
            shape = convolution(case, any_channels(draw, 8, 1100), any_channels(draw, 16, 1024))
            found |= {shape} if (case, shape[1]) not in unseen and reasonable(shape) else set()
        yield from (LayerTask("edges", case, "conv2d", shape) for shape in sorted(found))
    yield from more_edges()
    yield from general(6 * each, seed)
    yield from (LayerTask("general", "any", "conv2d", shape) for shape in usual(draw, 6 * each) if reasonable(shape))


def usual(draw: random.Random, count: int) -> Iterator[Shape]:
    """Yield convolutions as networks have them: channels are multiples of 16, images those of an input of 224."""
    for _ in range(count):
        size, window = draw.choice(_USUAL_IMAGES), draw.choice((1, 1, 1, 3, 3, 3, 5, 7))
        c, k = (max(16, int(16 * 64 ** draw.random()) // 16 * 16) for _ in range(2))
        stride, pad = draw.choice((1, 1, 1, 2)), window // 2
        yield (draw.choice((1, 16, 16)), c, size, size, k, window, window, stride, stride, pad, pad, 1, 1)


def apart(profile: Profile) -> set[Shape]:
    """Return the convolutions of the networks that nothing is fitted on."""
    found: set[Shape] = set()
    for network in load_networks(profile.name):
        if network.name not in KNOWN:
            found |= {each.shape for layer in network.layers for each in layer.operations if each.kind == "conv2d"}
    return found


def doubts(profile: Profile, precision: str, shapes: list[Shape], trees: int) -> Floats:
    """Return of each shape the probability that its time is another one than the model says."""
    model = LayerModel(evolve(Options(), trees=trees, correct=False))
    model.fit(trained_on(profile.convolutions(precision)), "cold", profile.kernels)
    return np.maximum(0, 1 - model.predict(Convolutions(shapes))[2])


def drawn(values: Floats, count: int, seed: int) -> list[int]:
    """Return the places of `count` values, drawn without return with the weight of their doubts."""
    weights = _FLOOR + values**_POWER
    keys = np.random.default_rng(seed).exponential(size=len(values)) / weights
    return [int(place) for place in np.argsort(keys)[:count]]


def main() -> None:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("profile")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, nargs=2, default=(11_000, 19_000), help="layers in fp32 and in tf32")
    parser.add_argument("--each", type=int, default=700, help="candidates of each case")
    parser.add_argument("--trees", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="another one for another round")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    pool = list({task.shape: task for task in candidates(options.each, f"doubts {options.seed}")}.values())
    keys: list[str] = []
    for precision, count in zip(PRECISIONS, options.count, strict=True):
        out = apart(profile) | {tuple(map(int, row)) for row in profile.convolutions(precision).layers.table}
        tasks = [task for task in pool if task.shape not in out]
        doubt = doubts(profile, precision, [task.shape for task in tasks], options.trees)
        chosen = drawn(doubt, count, options.seed)
        print(f"{precision}: {len(tasks)} candidates, mean doubt {doubt.mean():.3f}, of the chosen "
              f"{doubt[chosen].mean():.3f}")  # fmt: skip
        keys += [evolve(tasks[place], precision=precision).key for place in chosen]
    options.out.write_text("\n".join(keys) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
