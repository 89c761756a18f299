"""Tables of training steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from cuts.bench.tools.markdown import digits, markdown_table
from cuts.bench.tools.records import Row

#: Ways of `steps.WAYS`.
WAY_NAMES = ("eager", "inductor", "autotuned", "cuts")


def steps_table(rows: Sequence[Row], number: Callable[[Sequence[Row]], str] = lambda _: "") -> str:
    """Return a line of times and ratios for each workload.

    `number` returns the number of the circumstances of rows.
    """
    lines: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        if "ms" in row:
            lines.setdefault((row["precision"], row["batch"], row["name"]), {})[row["class"]] = row
    table, found = [], dict[str, list[tuple[float, float]]]()
    for (precision, batch, name), ways in sorted(lines.items()):
        ratio, peak = _ratios(precision, ways)
        if ratio:
            found.setdefault(precision, []).append((ratio, peak or 1.0))
        times = (digits(ways[way]["ms"], 4) if way in ways else None for way in WAY_NAMES)
        table.append([precision, name, batch, *times, digits(ratio), digits(peak), number([*ways.values()])])
    heads = ["precision", "network", "batch", *(f"{way}, ms" for way in WAY_NAMES), "peer / ours", "peak ratio", "no."]
    means = [
        f"{precision}: geometric mean {statistics.geometric_mean(r for r, _ in pairs):.3f}, least "
        f"{min(r for r, _ in pairs):.3f}; peak {statistics.mean(p for _, p in pairs):.3f}, greatest "
        f"{max(p for _, p in pairs):.3f}"
        for precision, pairs in found.items()
    ]
    return "\n\n".join([markdown_table(heads, table), *means])


def _ratios(precision: str, ways: Mapping[str, Row]) -> tuple[float | None, float | None]:
    """Return peers' time over ours, of Inductor under autocast and of the best one else, and our share of memory."""
    peers = ("inductor", "autotuned") if precision == "bf16" else ("eager", "inductor", "autotuned")
    times = [ways[way]["ms"] for way in peers if way in ways]
    if "cuts" not in ways or not times:
        return None, None
    peak = ways["cuts"]["peak_mb"] / ways["inductor"]["peak_mb"] if "inductor" in ways else None
    return min(times) / ways["cuts"]["ms"], peak
