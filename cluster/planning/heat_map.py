"""Heat map of all ways as one HTML file.

It has a row for each (DP, WP, P), a column for each policy and micro-batch.
"""

from __future__ import annotations

import math
from html import escape

import numpy as np

from .planner import Ranking

_STYLE = """body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:3px 8px;text-align:right}
td{border:1px solid #fff}.no{background:#ddd;color:#888}caption{text-align:left;padding:8px 0}"""


def heat_map(found: Ranking) -> str:
    """Return the page.

    Each cell is the best time over all choices of residency and activations, over the best of all.
    """
    ways, seconds = found.ways, np.where(found.fits, found.seconds, np.inf)
    micros = sorted({int(m) for m in ways.micro})
    best = float(seconds.min())
    head = "".join(f"<th>{policy} {micro}</th>" for policy in ("PR", "AR") for micro in micros)
    rows = []
    for dp, wp, p in sorted(
        {(int(a), int(b), int(c)) for a, b, c in zip(ways.dp, ways.wp, ways.p, strict=True)}, reverse=True
    ):
        here = (ways.dp == dp) & (ways.wp == wp) & (ways.p == p)
        cells = []
        for resident in (True, False):
            for micro in micros:
                mask = here & (ways.pr == resident) & (ways.micro == micro)
                cells.append(_cell(mask, seconds, best, found))
        rows.append(f"<tr><th>({dp}, {wp}, {p})</th>{''.join(cells)}</tr>")
    kind = "training" if found.training else "inference"
    title = f"{found.model.name} on {found.machine.name}: {kind}, form {found.form}"
    caption = f"Time of a mini-batch over the best ({best:.4g} s), by (DP, WP, P), policy and micro-batch; "
    caption += "grey ways do not fit."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><table><caption>{escape(caption)}</caption><tr><th></th>{head}</tr>{''.join(rows)}</table></html>\n"
    )


def _cell(
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]],
    seconds: np.ndarray[tuple[int], np.dtype[np.float64]],
    best: float,
    found: Ranking,
) -> str:
    if not mask.any() or math.isinf(least := float(seconds[mask].min())):
        return '<td class="no">-</td>'
    row = int(np.argmin(np.where(mask, seconds, np.inf)))
    ratio = least / best
    hue = max(0, 120 - 60 * math.log2(ratio))  # green at the best, red at four times
    title = f"{escape(found.ways.way(row).text)}: {least:.4g} s"
    return f'<td style="background:hsl({hue:.0f},70%,70%)" title="{title}">{ratio:.2f}</td>'
