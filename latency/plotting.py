"""Curves of predicted latency as SVG or PNG.

Intervals are bands; a dot marks a change of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from ..ir import UsageError
from .predictors import library

SUFFIXES = (".svg", ".png")


@frozen
class Line:
    """Curve with sizes, microseconds, interval, and positions of kernel changes."""

    label: str
    sizes: tuple[int, ...]
    us: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    changes: tuple[int, ...]


def check_suffix(path: Path) -> None:
    """Raise `UsageError` for a file that is neither SVG nor PNG."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot plot to {path}: expected a name that ends with {' or '.join(SUFFIXES)}")


def plot(path: Path, title: str, along: str, lines: Sequence[Line]) -> None:
    """Write curves to a file.

    Raises `UsageError` where that is not possible.
    """
    check_suffix(path)
    figure = library("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        (drawn,) = axes.plot(line.sizes, line.us, drawstyle="steps-mid", label=line.label, linewidth=1.2)
        axes.fill_between(line.sizes, line.low, line.high, step="mid", alpha=0.15, color=drawn.get_color(), linewidth=0)
        axes.plot(
            [line.sizes[i] for i in line.changes],
            [line.us[i] for i in line.changes],
            "o",
            color=drawn.get_color(),
            markersize=3,
        )
    axes.set(title=title, xlabel=along, ylabel="microseconds")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
