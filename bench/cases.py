"""Every row of the suite of single operations, and samples of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cuts.bench.gradient_cases import KINDS, gradient_cases
from cuts.bench.shapes import Case, convolution_cases, dense_cases, gemm_cases, memory_cases

#: Every class of rows.
CLASSES = ("conv", "depthwise", "gemm", "gemv", "memory", *KINDS)


def sampled(cases: Iterable[Case], every: int) -> list[Case]:
    """Return the first of every few cases of each class and batch size, so that all kinds of them are there."""
    counts: Counter[tuple[str, int]] = Counter()
    chosen = []
    for case in cases:
        if counts[case.kind, case.batch] % every == 0:
            chosen.append(case)
        counts[case.kind, case.batch] += 1
    return chosen


def all_cases() -> list[Case]:
    """Return every row of the benchmark."""
    return [*convolution_cases(), *gemm_cases(), *dense_cases(), *memory_cases(), *gradient_cases()]
