"""Writes `docs/zoo.md`, the table of architectures: `python docs/make_zoo.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import RESULTS
from cuts.tests.zoo.records import TASKS, is_right, is_whole, read_records
from cuts.tests.zoo.table import LIBRARIES, read_table

DOCUMENT = Path(__file__).parent / "zoo.md"
ROWS = RESULTS / "zoo.jsonl"
#: Characters of an error in a cell.
MAX_ERROR = 90

HEAD = """# Zoo

`python docs/make_zoo.py` writes this page from `bench/results/zoo.jsonl`, which `python -m cuts.tests.zoo --out FILE`
adds to: architectures of four libraries in small, through `torch.compile(model, backend="cuts")`, against eager.
*Whole* means that no operation stays in PyTorch and that all results have eager's numbers (within the tolerance of the
precision policy), types and strides; *in part* names the operations in PyTorch and their share of the nodes. Where
eager's numbers cannot be expected, a sentence below the table has the reason. Seconds are those of compilation without
a cache for OpenCL on a processor that other work shares. Architectures that the page does not list have not been run.
[Testing](testing.md#the-zoo) explains the run."""


def document() -> str:
    """Return the whole document."""
    records = read_records(ROWS)
    parts = [HEAD, _totals(records)]
    for library in LIBRARIES:
        rows = [each for each in records if each["library"] == library and "skipped" not in each]
        if rows:
            heads = ["architecture", "forward", "s", "launches", "backward", "s", "launches", "nodes"]
            parts += [f"## {library}", _versions(rows), markdown_table(heads, map(_row, rows))]
            parts += _reasons(rows)
    return "\n\n".join(parts) + "\n"


def _totals(records: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for task in TASKS:
        found = [each[task] for each in records if task in each]
        whole, right = sum(map(is_whole, found)), sum(map(is_right, found))
        rows.append([task, len(found), whole, right - whole, len(found) - right])
    return markdown_table(["task", "architectures", "whole and right", "in part and right", "others"], rows)


def _versions(rows: Sequence[Mapping[str, Any]]) -> str:
    found = {f"{name} {version}" for row in rows for name, version in row.get("versions", {}).items()}
    return f"Versions: {', '.join(sorted(found))}."


def _reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    known = read_table()
    found = [known[each["name"]] for each in rows if each["name"] in known]
    return [fill(f"*{each.name.partition('/')[2]}*: {each.reason}.", 120) for each in found if each.reason]


def _row(record: Mapping[str, Any]) -> list[object]:
    cells: list[object] = [record["name"].partition("/")[2]]
    for task in TASKS:
        found = record.get(task)
        known = found or {}
        cells += [_text(found), known.get("seconds"), known.get("launches")]
    return [*cells, record.get(TASKS[-1], {}).get("nodes")]


def _text(found: Mapping[str, Any] | None) -> str:
    """Return the result of a task as a cell."""
    if found is None:
        return ""
    if "error" in found:
        return str(found["error"]).split("\n")[0][:MAX_ERROR].replace("|", "\\|")
    names = ", ".join(f"`{name}`" for name in found["operations"]) or "a part"
    text = "whole" if found["whole"] else f"in part: {names}, {100 * found['share']:.1f} %"
    return text if is_right(found) else f"{text}; wrong: {found['faults'][0][:MAX_ERROR]}".replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
