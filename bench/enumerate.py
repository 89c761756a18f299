"""How fast a space is enumerated and scored with both performance models on one core: the aim is a million points in 2
s.

Run it with `python bench/enumerate.py [TARGET]`.
"""

from __future__ import annotations

import json
import sys
import time

from cuts.backends.devices import find_target
from cuts.ir.expr import Read, call
from cuts.ir.index import Var, as_index
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.types import DType, TensorType
from cuts.passes.model.banks import conflict_factor
from cuts.passes.model.bound import bound
from cuts.passes.model.pul_paper import pul
from cuts.passes.schedule.enumerate import batches
from cuts.passes.schedule.space import make_space


def convolution(channels: int, filters: int, size: int, taps: int) -> FusedGroup:
    """Return a square convolution without padding."""
    out = size - taps + 1
    n, k, h, w = (Var(x, e) for x, e in zip("nkhw", (1, filters, out, out), strict=True))
    c, r, s = Var("c", channels), Var("r", taps), Var("s", taps)
    image = Read("x", (as_index(n), as_index(c), h + r, w + s))
    weight = Read("w", (as_index(k), as_index(c), as_index(r), as_index(s)))
    write = tuple(as_index(a) for a in (n, k, h, w))
    total = Reduction("t", (c, r, s), "sum", call("mul", image, weight))
    segment = Segment((n, k, h, w), (total,), (Output("y", write, Read("t", write)),))
    shapes = {
        "x": (1, channels, size, size),
        "w": (filters, channels, taps, taps),
        "y": (1, filters, out, out),
        "t": (1, filters, out, out),
    }
    return FusedGroup((segment,), {t: TensorType(DType.F32, e) for t, e in shapes.items()}, ("x", "w"), ("y",))


def main() -> None:
    """Time the space of a ResNet-50 convolution and print one JSON object."""
    target = find_target(sys.argv[1] if len(sys.argv) > 1 else "cuda:h200")
    space = make_space(convolution(64, 64, 58, 3), target, coarse=True)
    points = legal = 0
    start = time.perf_counter()
    for batch in batches(space):
        batch.flat(bound(batch.features, target).time)
        batch.flat(pul(batch.features, target, conflict_factor(space.group, batch.sizes, target)))
        points += batch.size
        legal += int(batch.legal.sum())
    seconds = time.perf_counter() - start
    print(json.dumps({"target": target.name, "points": points, "legal": legal, "seconds": round(seconds, 3),
                      "seconds_per_million": round(seconds / points * 1e6, 3)}))  # fmt: skip


if __name__ == "__main__":
    main()
