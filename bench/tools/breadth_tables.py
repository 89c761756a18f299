"""Tables of the operations of the vocabulary; they need no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from .goals import figure, goals_table, row_line
from .markdown import markdown_table
from .records import Row

#: Speed from which on a row counts as good enough.
SPEED_TARGET = 0.8


def speed(row: Row) -> float:
    """Return the best peer's time over ours.

    It is 0 where there is no right result, or no peer.
    """
    return 0.0 if row.get("wrong") else figure(row, "speed") or 0.0


def summary(rows: Sequence[Row]) -> str:
    """Return slow rows, figures by family, and those with targets."""
    slow = sorted((row for row in rows if speed(row) < SPEED_TARGET), key=speed)
    return "\n".join([*map(row_line, slow), families(rows), *filter(None, [goals_table(rows)])])


def families(rows: Sequence[Row]) -> str:
    """Return figures by family, and of all rows last.

    Means are geometric, of the rows with a right result; the share is that of all rows.
    """
    heads = ["family", "rows", "mean speed", f"from {SPEED_TARGET}", "slowest", "fastest", "without a right result"]
    names = (*dict.fromkeys(row["class"] for row in rows), "all")
    return markdown_table(heads, ([name, *_figures(name, rows)] for name in names))


def _figures(name: str, rows: Sequence[Row]) -> Iterator[object]:
    own = [speed(row) for row in rows if name in (row["class"], "all")]
    known = [each for each in own if each]
    yield len(own)
    yield f"{geometric_mean(known):.2f}" if known else None
    yield f"{100 * sum(each >= SPEED_TARGET for each in own) / max(1, len(own)):.0f} %"
    yield from (f"{min(known):.2f}", f"{max(known):.2f}") if known else (None, None)
    yield len(own) - len(known)
