"""The ledger of the evaluation: a JSON file of rows, one of each workload and system, kept as they come.

A row has what was measured, and its date, commit, GPU and versions; one that failed has the reason. A later run adds
what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from cuts.bench.tools.records import RESULTS, is_stale, read_rows, write_rows

from .models import BY_NAME, ModelWorkload, other_vision, workloads
from .systems import SYSTEMS, Row

#: A workload, and the system that it is measured on.
Pair: TypeAlias = tuple[ModelWorkload, str]
_WORKLOAD = re.compile(r"(?P<model>[^:]+):(?:(?P<batch>[1-9]\d*)|training)(?:=(?P<seconds>\d+))?")
LEDGER = RESULTS / "evaluation.json"
#: What tells a row from others of its GPU.
KEY = ("model", "task", "batch", "system", "device")


def key_of(row: Row) -> tuple[Any, ...]:
    """Return what tells a row from all others."""
    return tuple(row[name] for name in KEY)


def merged(rows: Sequence[Row], row: Row) -> list[Row]:
    """Return rows with one more, which takes the place of an older one of the same workload and system; but a failure
    takes no result's place.
    """
    older = [r for r in rows if key_of(r) == key_of(row)]
    if "failure" in row and any("failure" not in r for r in older):
        return list(rows)
    return [*(r for r in rows if key_of(r) != key_of(row)), row]


def keep(path: Path, row: Row) -> None:
    """Add a row to a file."""
    write_rows(path, merged(read_rows(path), row))


def missing(rows: Sequence[Row], wanted: Iterable[Pair], gpu: str) -> list[Pair]:
    """Return the pairs of a workload and a system that a GPU has no row of."""
    had = {key_of(row) for row in rows if not is_stale(row)}
    return [(w, s) for w, s in wanted if (w.model.name, w.task, w.batch, s, gpu) not in had]


def parse_workload(text: str) -> ModelWorkload:
    """Read `MODEL:BATCH`, or `MODEL:training`, with `=SECONDS` behind it where its budget is its own; ends with what
    there is where it is none of them. `torchvision.NAME` is a network of images that is none of the evaluation's.
    """
    found = _WORKLOAD.fullmatch(text.lower())
    model = (BY_NAME.get(found["model"]) or other_vision(found["model"])) if found else None
    if found is None or model is None:
        raise SystemExit(
            f"{text}: expected MODEL:BATCH or MODEL:training; models are {', '.join(BY_NAME)}, torchvision.NAME"
        )
    budget = float(found["seconds"]) if found["seconds"] else None
    if found["batch"] is None:
        return ModelWorkload(model, "training", model.training, budget)
    return ModelWorkload(model, "inference", int(found["batch"]), budget)


def wanted(texts: Sequence[str], systems: Sequence[str]) -> list[Pair]:
    """Return what is to be measured: those workloads, or all, by each of the systems that take part in them."""
    chosen = [parse_workload(text) for text in texts] or list(workloads())
    return [(w, s) for w in chosen for s in systems if SYSTEMS[s].takes(w.task)]


def measured(rows: Sequence[Row]) -> dict[tuple[str, str, int], dict[str, Row]]:
    """Return the rows that have a time, by workload and by system, in the order of the evaluation."""
    found: dict[tuple[str, str, int], dict[str, Row]] = {}
    for workload in workloads():
        key = (workload.model.name, workload.task, workload.batch)
        own = [r for r in rows if (r["model"], r["task"], r["batch"]) == key and "ms" in r and not is_stale(r)]
        rest = {r["system"]: r for r in own}
        if rest:
            found[key] = rest
    return found
