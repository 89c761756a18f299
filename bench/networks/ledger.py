"""Ledger of the evaluation: a JSON file of rows.

There is one row of each workload and system, added on completion.

A row has the measurement, and its date, commit, GPU and versions; one that failed has the reason. A later run adds
missing rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from cuts.bench.tools.records import RESULTS, Row, is_stale, read_rows, write_rows
from cuts.ir.machine import PRECISIONS

from .models import BY_NAME, ModelWorkload, other_vision, workloads
from .systems import SYSTEMS

#: A workload, and the system that it is measured on.
Pair: TypeAlias = tuple[ModelWorkload, str]
_WORKLOAD = re.compile(
    r"(?P<model>[^:]+):(?:(?P<batch>[1-9]\d*)|training)(?::(?P<precision>\w+))?(?:=(?P<seconds>\d+))?"
)
LEDGER = RESULTS / "evaluation.json"
#: Identity of a row among those of its GPU.
KEY = ("model", "task", "batch", "precision", "system", "device")


def key_of(row: Row) -> tuple[Any, ...]:
    """Return a row's identity."""
    return tuple(row[name] for name in KEY)


def merge_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """Return rows with one more, which replaces its predecessor.

    The predecessor has the same workload and system. A failure replaces no result.
    """
    older = [r for r in rows if key_of(r) == key_of(row)]
    if "failure" in row and any("failure" not in r for r in older):
        return list(rows)
    return [*(r for r in rows if key_of(r) != key_of(row)), row]


def keep(path: Path, row: Row) -> None:
    """Add a row to a file."""
    write_rows(path, merge_row(read_rows(path), row))


def missing(rows: Sequence[Row], wanted: Iterable[Pair], gpu: str) -> list[Pair]:
    """Return pairs of a workload and a system without a GPU's row."""
    had = {key_of(row) for row in rows if not is_stale(row)}
    return [(w, s) for w, s in wanted if key_of({**w.identity, "system": s, "device": gpu}) not in had]


def parse_workload(text: str) -> ModelWorkload:
    """Read `MODEL:BATCH` or `MODEL:training`; exit with the choices on an error.

    `:PRECISION` may follow; `=SECONDS` at the end sets its own budget. `torchvision.NAME` is a network of
    images that is none of the evaluation's.
    """
    found = _WORKLOAD.fullmatch(text.lower())
    model = (BY_NAME.get(found["model"]) or other_vision(found["model"])) if found else None
    precision = (found["precision"] or "fp32") if found else ""
    if found is None or model is None or precision not in PRECISIONS:
        raise SystemExit(
            f"{text}: expected MODEL:BATCH or MODEL:training, then :PRECISION unless it is fp32; models are "
            f"{', '.join(BY_NAME)}, torchvision.NAME; precisions are {', '.join(PRECISIONS)}"
        )
    budget, name = float(found["seconds"]) if found["seconds"] else None, PRECISIONS[precision].name
    if found["batch"] is None:
        return ModelWorkload(model, "training", model.training, budget, name)
    return ModelWorkload(model, "inference", int(found["batch"]), budget, name)


def requested_pairs(texts: Sequence[str], systems: Sequence[str]) -> list[Pair]:
    """Return the workloads to measure, each by its participating systems.

    Without a choice these are all workloads.
    """
    chosen = [parse_workload(text) for text in texts] or list(workloads())
    return [(w, s) for w in chosen for s in systems if SYSTEMS[s].takes(w.task)]


def measured_rows(rows: Sequence[Row]) -> dict[tuple[str, str, int], dict[str, Row]]:
    """Return timed rows of strict fp32 by workload and system, in order."""
    found: dict[tuple[str, str, int], dict[str, Row]] = {}
    for workload in workloads():
        key = (workload.model.name, workload.task, workload.batch)
        own = [r for r in rows if (r["model"], r["task"], r["batch"], r["precision"]) == (*key, "fp32")]
        if timed := {r["system"]: r for r in own if "ms" in r and not is_stale(r)}:
            found[key] = timed
    return found
