"""Runs of compilations over numbered graphs.

Findings are reduced, and written with their settings.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cuts.frontends.graph_json import graph_from_json
from cuts.ir.errors import CutsWarning, GraphError, atomic_write
from cuts.ir.graph import Graph

from ..checking import Bench
from ..reducing import reduce_graph
from .compiling import CompileSettings, Outcome, compile_number, compile_one

#: One compilation for OpenCL in so many is executed, and how often a finding is tried while it is cut down.
EXECUTED_GRAPHS, SHRINKING = 8, 60
#: Seconds that a fixed-seed run in the tests may take: it stops at the first graph that begins later.
TESTED_SECONDS = 30.0


def compile_many(seed: int, numbers: Sequence[int], limit: float) -> Iterator[tuple[int, Graph, Outcome]]:
    """Yield the outcomes of a seed's graphs; none begins after `limit` seconds."""
    end = time.monotonic() + limit
    for number in numbers:
        if time.monotonic() > end:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (CutsWarning, RuntimeWarning))
            yield number, *compile_number(seed, number)


def execute_graph(graph: Graph, seed: int) -> str:
    """Return an OpenCL result's difference from the reference.

    It is empty without one, where random integers are no indices, and where the reference is not finite: sums of
    windows leave elements out that they multiply by zero.
    """
    bench = Bench("opencl")
    try:
        _, expected = bench.draw_inputs(graph, seed)
    except GraphError:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CutsWarning)  # results without elements are meant
        (outcome,) = bench.check(graph, seed, ("fused",))
    finite = all(np.isfinite(array).all() for array in expected.values())
    return "; ".join(outcome.wrong) if finite and not outcome.ill else ""


def smallest(graph: Graph, outcome: Outcome, most: int = SHRINKING) -> Graph:
    """Return the smallest graph with the same exception under the same settings."""
    return reduce_graph(graph, lambda candidate: compile_one(candidate, outcome.settings).kind == outcome.kind, most)


def find_errors(seed: int, first: int, count: int, limit: float, out: Path | None) -> int:
    """Compile graphs and print the exceptions; return 1 where there are any."""
    counts, rows = Counter[str](), list[dict[str, Any]]()
    begin = time.monotonic()
    for number, graph, outcome in compile_many(seed, range(first, first + count), limit):
        counts[outcome.kind or "compiled"] += 1
        if outcome.is_finding:
            rows.append({"number": number, **outcome.record(smallest(graph, outcome))})
            print(f"graph {number}: {outcome.settings}\n{outcome.text}", flush=True)
            if out is not None:
                _write(out, rows)
        if not sum(counts.values()) % 50:
            print(_total(counts, begin), flush=True)
    print(_total(counts, begin))
    return int(bool(rows))


def replay_errors(path: Path) -> list[Outcome]:
    """Compile the graphs of a file of findings again."""
    rows = json.loads(path.read_text(encoding="utf-8"))["findings"]
    names = CompileSettings.__attrs_attrs__
    return [
        compile_one(graph_from_json(row["graph"]), CompileSettings(**{a.name: row[a.name] for a in names}))
        for row in rows
    ]


def _total(counts: Counter[str], begin: float) -> str:
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{sum(counts.values())} graphs: {found}; {time.monotonic() - begin:.0f} s"


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_text(json.dumps({"findings": rows}, indent=1) + "\n", encoding="utf-8")
