"""Figures of rows, and the targets of single operations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from attrs import frozen

from .markdown import markdown_table


@frozen
class Goal:
    """Line of the table: rows, figure, threshold, aim.

    Each row must reach `lowest`. The figure `beside` is the time of the row of that name in another class over ours.
    """

    title: str
    kind: str
    figure: str
    least: float
    aim: float
    batch: int | None = None
    large: bool = False
    precision: str = "fp32"
    lowest: float = 0.0
    beside: str = ""

    def value(self, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
        """Return a row's figure."""
        if not self.beside:
            return figure(row, self.figure)
        known = {(r["class"], r.get("precision"), r["name"]): r.get("cuts_ms") for r in rows}
        other = known.get((self.beside, self.precision, row["name"]))
        return float(other) / float(row["cuts_ms"]) if other and row.get("cuts_ms") else None

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


_FILE = Path(__file__).with_name("goals.toml").read_text(encoding="utf-8")
GOALS = tuple(Goal(**row, precision=name) for name, rows in tomllib.loads(_FILE).items() for row in rows)


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

    It has geometric means, the bound over the time, the best and the worst row. A threshold of each row is in brackets.
    """
    lines: list[list[object]] = []
    for goal in GOALS:
        found = [(value, row) for row in rows if goal.takes(row) and (value := goal.value(row, rows)) is not None]
        if found:
            mean = geometric_mean(value for value, _ in found)
            low = mean < goal.least or min(value for value, _ in found) < goal.lowest
            mark = " too low" if low else "" if mean >= goal.aim else " below the aim"
            bounds = median(value for _, row in found if (value := figure(row, "bound")) is not None)
            ends = [f(found, key=lambda pair: pair[0]) for f in (max, min)]
            names = (f"{row['name']} b{row['batch']} {value:.2f}" for value, row in ends)
            least = f"{goal.least} ({goal.lowest})" if goal.lowest else goal.least
            figures = (f"{mean:.3f}{mark}", least, goal.aim, f"{bounds:.2f}")
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
