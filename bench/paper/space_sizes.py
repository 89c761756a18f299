"""Sizes of convolutions' schedule spaces by batch size (section 7.4).

The paper searches in time linear in the size of a space, which is proportional to log(B) of a batch of B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2

import numpy as np
from cuts.backends import find_target
from cuts.bench.operators.shapes import convolution_case, read_convolution
from cuts.bench.operators.tuning import task_of
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import Row
from cuts.passes.schedule.space import make_space

from .registry import TableRequest, stamp_rows

#: Convolutions of ResNet-50, one of each kind, and batches.
CONVOLUTIONS = ("3x224 64x7x7 /2 +3", "64x56 64x3x3 +1", "256x14 1024x1x1", "512x7 512x3x3 +1")
BATCHES = (1, 4, 16, 64, 256)


def make_rows(request: TableRequest) -> Iterator[Row]:
    """Yield the row of each requested convolution."""
    target = find_target("cuda:h200")

    def size(name: str, batch: int) -> int:
        return make_space(task_of(convolution_case(read_convolution(name)[0], batch), target).form, target).size

    rows = ((name, {"points": {str(b): size(name, b) for b in BATCHES}}) for name in request.names)
    return stamp_rows("7.4", request, rows)


def table(rows: Sequence[Row]) -> str:
    """Return points by batch, and their correlation with log(B)."""
    lines = []
    for row in rows:
        points = [float(n) for n in row["points"].values()]
        fit = np.corrcoef([log2(int(batch)) for batch in row["points"]], points)[0, 1]
        lines.append([row["name"], *(f"{n:.2g}" for n in points), f"{points[-1] / points[0]:.1f}", f"{fit:.3f}"])
    heads = ["convolution", *(f"points, batch {b}" for b in BATCHES), "last / first", "correlation with log(B)"]
    return markdown_table(heads, lines)
