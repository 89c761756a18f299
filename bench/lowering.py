"""How long one candidate takes from schedule to source text: lowering, extraction, printing. The aim is a median of 50
ms, 200 ms at worst.

Run it with `python bench/lowering.py [TARGET] [POINTS]`: for every distinct convolution of ResNet-50 the model's best
points are built, and one JSON object is printed. What the search for points takes is shown beside it and is no part of
the figure.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.bench.shapes import convolution_case, convolutions
from cuts.bench.tuned import group_of
from cuts.ir.target import Target
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.choose import choose


def build_times(target: Target, points: int) -> tuple[list[tuple[float, str]], list[float]]:
    """Return the seconds of each built candidate with its name, and those of each search."""
    built: list[tuple[float, str]] = []
    searches: list[float] = []
    for shape in convolutions("resnet50"):
        group = group_of(convolution_case(shape, 1))
        assert group is not None, "a convolution is one group"
        start = time.perf_counter()
        candidates = choose(group, target, count=points)
        searches.append(time.perf_counter() - start)
        for number, candidate in enumerate(candidates):
            start = time.perf_counter()
            emit(extract(lower(group, candidate.schedule, {}, target)), target.dialect, {})
            built.append((time.perf_counter() - start, f"{shape.name}, point {number}"))
    return built, searches


def main() -> None:
    """Build candidates of every convolution and print one JSON object."""
    target = find_target(sys.argv[1] if len(sys.argv) > 1 else "cuda:h200")
    built, searches = build_times(target, int(sys.argv[2]) if len(sys.argv) > 2 else 4)
    worst, name = max(built)
    print(json.dumps({"target": target.name, "candidates": len(built),
                      "median_ms": round(median(t for t, _ in built) * 1e3, 1), "worst_ms": round(worst * 1e3, 1),
                      "worst": name, "over_200_ms": sum(t > 0.2 for t, _ in built),
                      "search_median_ms": round(median(searches) * 1e3, 1)}))  # fmt: skip


if __name__ == "__main__":
    main()
