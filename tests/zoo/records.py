"""Records of architectures: lines of JSON, in the order of the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .table import read_table

TASKS = ("forward", "backward")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, none where it is missing."""
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records in the order of the table.

    Of two records of one name the later one is written.
    """
    order = {name: number for number, name in enumerate(read_table())}
    found = {record["name"]: record for record in records}
    chosen = sorted(found.values(), key=lambda record: order.get(record["name"], len(order)))
    path.write_text("".join(json.dumps(record) + "\n" for record in chosen), encoding="utf-8")


def is_right(found: Mapping[str, Any]) -> bool:
    """Return whether a task ended, with right results."""
    return "error" not in found and found.get("right", False)


def is_whole(found: Mapping[str, Any]) -> bool:
    """Return whether a task is right, without operations in PyTorch."""
    return is_right(found) and found["whole"]


def summary(record: Mapping[str, Any]) -> str:
    """Return a record as a line of text."""
    if "skipped" in record:
        return f"{record['name']}: skipped, {record['skipped']}"
    texts = [f"{task} {_outcome(record[task])}" for task in TASKS if task in record]
    return f"{record['name']}: {'; '.join(texts)} [{record['total_seconds']} s]"


def _outcome(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return f"ERROR {found['error'][:300]} at {found.get('at', '')}"
    part = "whole" if found["whole"] else f"in part ({found['share']:.1%}: {found['operations'] or found['reasons']})"
    wrong = "" if found.get("right", True) else f" WRONG {found['faults'][:2]}"
    counts = ", ".join(f"{found[name]} {name}" for name in ("graphs", "nodes", "launches", "seconds"))
    return f"{part}{wrong}, {counts}"
