"""Buckets of sizes that share a kernel when a dimension varies.

Time rises in steps, so a size can be padded to the end of its plateau for free. A bucket is a run of sizes that are all
served by its largest; the fewest buckets that waste no more than a tolerance are found from the left, each as long as
it can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from attrs import frozen

from .convolution import Floats


@frozen
class Bucket:
    """Sizes from `first` to `last`, all padded to `last`.

    `us` is its time, `waste` the largest relative cost of padding.
    """

    first: int
    last: int
    us: float
    waste: float


def buckets(sizes: Sequence[int], us: Floats, tolerance: float = 0.05) -> tuple[Bucket, ...]:
    """Return the fewest buckets within a tolerance.

    Padding costs at most `tolerance` of any size's own time.
    """
    return tuple(_buckets(list(sizes), [float(t) for t in us], tolerance))


def _buckets(sizes: list[int], us: list[float], tolerance: float) -> Iterator[Bucket]:
    cheapest = list(accumulate(reversed(us), min))[::-1]  # of a size and all larger ones
    begin = 0
    while begin < len(sizes):
        end, least = begin, us[begin]
        for i in range(begin, len(sizes)):
            least = min(least, us[i])
            if us[i] <= (1 + tolerance) * least:
                end = i
            elif cheapest[i] > (1 + tolerance) * least:
                break
        yield Bucket(sizes[begin], sizes[end], us[end], us[end] / min(us[begin : end + 1]) - 1)
        begin = end + 1


@frozen
class Plateau:
    """Neighbouring sizes with the same kernel and number of blocks.

    They go from `first` to `last`, with the rows of the sweep.
    """

    first: int
    last: int
    begin: int
    end: int


def plateaus(sizes: Sequence[int], labels: Sequence[object]) -> tuple[Plateau, ...]:
    """Return the runs of equal labels.

    A label has the properties that a step changes: the kernel and its number of blocks.
    """
    found, begin = [], 0
    for i in range(1, len(sizes) + 1):
        if i == len(sizes) or labels[i] != labels[begin]:
            found.append(Plateau(sizes[begin], sizes[i - 1], begin, i))
            begin = i
    return tuple(found)
