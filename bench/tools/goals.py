"""Figures of rows, and the targets of single operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from attrs import frozen

from .markdown import markdown_table


@frozen
class Goal:
    """Line of the table: its rows, figure, threshold and aim."""

    title: str
    kind: str
    figure: str
    least: float
    aim: float
    batch: int | None = None
    large: bool = False
    precision: str = "fp32"

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row belongs to it."""
        right = row["class"] == self.kind and self.batch in (None, row["batch"])
        right = right and row.get("precision", "fp32") == self.precision
        return right and (not self.large or is_large(row))


def is_large(row: Mapping[str, Any]) -> bool:
    """Return whether a product or tensor is large.

    A product is at least 2048 cubed, a tensor of another operation at least 64 MB.
    """
    if row["class"] == "gemm":
        return bool(row["flops"] >= 2 * 2048**3)
    return bool(row["bytes"] >= 64 << 20)


#: The targets: speed is the best peer's time over ours, share the attained part of the bandwidth of a copy of 1 GB,
#: copied that of a copy of as many bytes as the operation moves, timed next to it.
GOALS = (
    Goal("GEMM >= 2048^3", "gemm", "speed", 0.95, 1.10, large=True),
    Goal("GEMM of the list", "gemm", "speed", 1.0, 1.15),
    Goal("convolutions b64", "conv", "speed", 1.0, 1.3, 64),
    Goal("convolutions b16", "conv", "speed", 1.25, 1.6, 16),
    Goal("convolutions b1", "conv", "speed", 2.2, 3.5, 1),
    Goal("data gradients b64", "dgrad", "speed", 1.0, 1.3, 64),
    Goal("data gradients b16", "dgrad", "speed", 1.1, 1.5, 16),
    Goal("filter gradients b64", "wgrad", "speed", 1.0, 1.3, 64),
    Goal("filter gradients b16", "wgrad", "speed", 1.1, 1.5, 16),
    Goal("depthwise", "depthwise", "speed", 1.3, 2.0),
    Goal("memory-bound >= 64 MB", "memory", "share", 0.88, 0.95, large=True),
    Goal("memory-bound, all sizes", "memory", "speed", 1.0, 1.2),
    Goal("GEMV, dense b1-8", "gemv", "copied", 0.80, 0.93),
    Goal("GEMV, share of a 1 GB copy", "gemv", "share", 0.80, 0.93),
    Goal("GEMV against cuBLAS", "gemv", "speed", 1.0, 1.2),
    Goal("GEMM of the list, fp16", "gemm", "speed", 0.9, 1.15, precision="fp16"),
    Goal("convolutions b64, fp16", "conv", "speed", 0.8, 1.0, 64, precision="fp16"),
    Goal("convolutions b16, fp16", "conv", "speed", 1.0, 1.3, 16, precision="fp16"),
    Goal("convolutions b1, fp16", "conv", "speed", 1.8, 3.0, 1, precision="fp16"),
)


def figure(row: Mapping[str, Any], name: str) -> float | None:
    """Return a figure of a row; nothing where it was not measured."""
    if row.get("cuts_ms") is None:
        return None
    if name == "share":
        return (
            float(row["bytes"]) / (float(row["cuts_ms"]) * 1e-3) / float(row["copy_bandwidth"])
            if row.get("copy_bandwidth")
            else None
        )
    if name == "copied":
        return float(row["copy_ms"]) / float(row["cuts_ms"]) if row.get("copy_ms") else figure(row, "share")
    if name == "bound":
        return float(row["bound_ms"]) / float(row["cuts_ms"])
    best = min((float(t) for t in row["peers"].values() if t is not None), default=None)
    return None if best is None else best / float(row["cuts_ms"])


def goals_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all goals that have rows; nothing without any.

    It has geometric means, the bound over the time, the best and the worst row.
    """
    lines: list[list[object]] = []
    for goal in GOALS:
        found = [(value, row) for row in rows if goal.takes(row) and (value := figure(row, goal.figure)) is not None]
        if found:
            mean = geometric_mean(value for value, _ in found)
            mark = "" if mean >= goal.aim else " below the aim" if mean >= goal.least else " too low"
            bounds = median(value for _, row in found if (value := figure(row, "bound")) is not None)
            ends = [f(found, key=lambda pair: pair[0]) for f in (max, min)]
            names = (f"{row['name']} b{row['batch']} {value:.2f}" for value, row in ends)
            figures = (f"{mean:.3f}{mark}", goal.least, goal.aim, f"{bounds:.2f}")
            lines.append([goal.title, len(found), goal.figure, *figures, *names])
    heads = ["class", "rows", "figure", "mean", "at least", "aim", "bound", "best", "worst"]
    return markdown_table(heads, lines) if lines else ""


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of goals, and the rows without a right result."""
    missing = [row for row in rows if row.get("cuts_ms") is None or row.get("wrong")]
    lines = [f"no result: {row['name']} b{row['batch']}: {row.get('failure') or row.get('wrong')}" for row in missing]
    return "\n".join([goals_table(rows), *lines])


def row_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text, times in microseconds."""
    head = f"{row['class']:<16} {row['name']:<52} b{row['batch']:<5}"
    if row.get("cuts_ms") is None:
        return f"{head}failed: {row.get('failure')}"
    peers = "  ".join(f"{name} {ms * 1e3:.1f}" for name, ms in row["peers"].items() if ms is not None)
    speed = figure(row, "speed")
    ours = f"{row['cuts_ms'] * 1e3:>9.1f} us {'' if speed is None else f'{speed:.2f}x':>6}  {peers}"
    wrong = f"  WRONG: {row['wrong']}" if row.get("wrong") else ""
    return f"{head}{ours}  bound {row['bound_ms'] * 1e3:.1f}{wrong}"
