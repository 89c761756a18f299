"""Tables of the operations of the vocabulary; they need no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from cuts.bench.tools.records import Row, figure, geomean

#: Speed from which on a row counts as good enough.
SPEED_TARGET = 0.8


def speed(row: Row) -> float:
    """Return the best peer's time over ours.

    It is 0 where there is no right result, or no peer.
    """
    return 0.0 if row.get("wrong") else figure(row, "speed") or 0.0


def line(row: Row) -> str:
    """Return a row as a line of text, times in microseconds."""
    head = f"{row['class']:<16} {row['name']:<52}"
    if row["cuts_ms"] is None:
        return f"{head} failed: {row['failure']}"
    peers = "  ".join(f"{name} {ms * 1e3:.1f}" for name, ms in row["peers"].items())
    says = f"  WRONG: {row['wrong']}" if row.get("wrong") else ""
    return (
        f"{head} {row['cuts_ms'] * 1e3:>9.1f} us {speed(row):>5.2f}x  {peers}  bound {row['bound_ms'] * 1e3:.1f}{says}"
    )


def summary(rows: Sequence[Row]) -> str:
    """Return slow rows, the slowest first, and figures by family.

    The last figures are those of all rows.
    """
    slow = sorted((row for row in rows if speed(row) < SPEED_TARGET), key=speed)
    lines = [line(row) for row in slow]
    families = list(dict.fromkeys(row["class"] for row in rows))
    lines.append(f"{'family':<18}{'rows':>5}{'mean':>8}{'from ' + str(SPEED_TARGET):>10}  slowest, fastest")
    lines += [_figures(name, [row for row in rows if row["class"] == name]) for name in families]
    return "\n".join([*lines, _figures("all", rows)])


def _figures(name: str, rows: Sequence[Row]) -> str:
    """Return the geometric mean of the rows that have a result, and the share of all that are fast enough."""
    known = [speed(row) for row in rows if speed(row)]
    share = sum(speed(row) >= SPEED_TARGET for row in rows) / len(rows) if rows else 0.0
    mean = f"{geomean(known):>8.2f}{share:>10.0%}  {min(known):.2f}, {max(known):.2f}" if known else "       -"
    failed = len(rows) - len(known)
    return f"{name:<18}{len(rows):>5}{mean}{f', {failed} without a right result' if failed else ''}"


def families(rows: Sequence[Row]) -> str:
    """Return figures by family and of all as a document's table."""
    lines = ["| family | rows | mean speed | from 0.8 | slowest | fastest |", "|---|---|---|---|---|---|"]
    for name in (*dict.fromkeys(row["class"] for row in rows), "all"):
        own = [speed(row) for row in rows if name in (row["class"], "all")]
        known = [each for each in own if each] or [0.0]
        enough = sum(each >= SPEED_TARGET for each in own) / max(1, len(own))
        figures = (f"{len(own)}", f"{geomean(known):.2f}", f"{enough:.0%}".replace("%", " %"), f"{min(known):.2f}")
        lines.append(f"| {name} | {' | '.join(figures)} | {max(known):.2f} |")
    return "\n".join(lines)
