"""The tables of `docs/latency.md`, from what `bench/layer_report.py` wrote.

python -m cuts.bench.layer_tables        # puts them into the document
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cuts.latency.networks import KNOWN

ROOT = Path(__file__).parents[1]
RESULTS, DOCUMENT = ROOT / "bench" / "results" / "latency.json", ROOT / "docs" / "latency.md"
BEGIN, END = "<!-- {}: begin -->\n", "<!-- {}: end -->"
_COLUMNS = ("rows", "within 10 %", "within 5 %", "RMSE, ms", "median", "p90", "kernels right")


def section(kind: str, values: Mapping[str, Any]) -> str:
    """Return a section of the document: "layers", "networks" or "own"."""
    return "\n".join({"layers": _layers, "networks": _networks, "own": _own}[kind](values)) + "\n"


def _layers(values: Mapping[str, Any]) -> Iterator[str]:
    for precision in ("fp32", "tf32"):
        yield f"| {precision} | {' | '.join(_COLUMNS)} |"
        yield f"|{'---|' * (len(_COLUMNS) + 1)}"
        for name, row in values[precision]["layers"].items():
            shares = [_percent(row[key]) for key in ("within", "within_5")]
            errors = [_percent(row[key]) for key in ("median", "p90")]
            right = _percent(row["right"]) if "right" in row else ""
            cells = [name, str(row["count"]), *shares, f"{row['rmse']:.3f}", *errors, right]
            yield f"| {' | '.join(cells)} |"
        yield ""


def _networks(values: Mapping[str, Any]) -> Iterator[str]:
    kinds = [(precision, batch) for precision in ("fp32", "tf32") for batch in (16, 1)]
    columns = [values[precision][f"networks, batch {batch}"] for precision, batch in kinds]
    yield f"| network | {' | '.join(f'{precision}, batch {batch}' for precision, batch in kinds)} |"
    yield f"|{'---|' * (len(kinds) + 1)}"
    for name in columns[0]:
        mark = " (trained on)" if name in KNOWN else ""
        yield f"| {name}{mark} | {' | '.join(_run(column[name]) for column in columns)} |"
    good = [sum(abs(row["off"]) <= 0.1 for name, row in column.items() if name not in KNOWN) for column in columns]
    counts = [f"{each} of {sum(name not in KNOWN for name in columns[0])}" for each in good]
    yield f"| **within 10 %** | {' | '.join(counts)} |"


def _own(values: Mapping[str, Any]) -> Iterator[str]:
    for kind, title in (("plans of cuts", "tuned plan"), ("networks, kernels of cuts", "network, its plan not known")):
        yield f"| {title} | measured and predicted milliseconds, error |"
        yield "|---|---|"
        rows = values["fp32"][kind]
        yield from (f"| {name} | {_run(row)} |" for name, row in rows.items())
        yield f"| **within 10 %** | {sum(abs(row['off']) <= 0.1 for row in rows.values())} of {len(rows)} |"
        yield ""


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _run(row: Mapping[str, float]) -> str:
    return f"{row['measured']:.2f}, {row['predicted']:.2f}, {100 * row['off']:+.1f} %"


def with_sections(text: str, values: Mapping[str, Any]) -> str:
    """Return the document with its sections as the results have them."""
    for kind in ("layers", "networks", "own"):
        begin, end = BEGIN.format(kind), END.format(kind)
        before, _, rest = text.partition(begin)
        text = before + begin + section(kind, values) + end + rest.partition(end)[2]
    return text


def main() -> None:
    """Write the sections."""
    values = json.loads(RESULTS.read_text(encoding="utf-8"))
    DOCUMENT.write_text(with_sections(DOCUMENT.read_text(encoding="utf-8"), values), encoding="utf-8")


if __name__ == "__main__":
    main()
