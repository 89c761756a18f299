"""Training steps through `torch.compile` beside eager PyTorch and Inductor, with peak memory.

    python -m cuts.bench steps [--only vit-b16:bf16 resnet-50:fp32:32] [--ways eager inductor autotuned cuts]

A workload is a model, a precision and optionally a batch; without a list, all models run in autocast `bf16`, strict
`fp32` and `fp32x3`, whose peers are strict. A row has the milliseconds of a whole step (Python included), those of its
kernels, the megabytes at the peak with parameters and their momentum, and the losses of the first steps. `--budget`
searches for seconds in each module.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from time import perf_counter
from typing import Any, TypeAlias

from cuts.bench.tools import records
from cuts.bench.tools.records import Row, fresh_keys, is_stale, keep_row, key_of, read_rows
from cuts.ir import CutsError

from .models import MODELS_BY_NAME
from .steps import WAYS, measure, prepare
from .tables import steps_table

PRECISIONS = ("bf16", "fp32", "fp32x3")
#: Model, precision and batch.
Workload: TypeAlias = tuple[str, str, int]
USUAL = ("cuts", "eager", "inductor")


def identity(case: Workload, way: str) -> Row:
    """Return the fields of a row that identify it."""
    name, precision, batch = case
    return {"suite": "steps", "class": way, "name": name, "batch": batch, "precision": precision}


def parse_case(text: str) -> Workload:
    """Read a workload such as `vit-b16:bf16:32`; argparse reports others."""
    name, precision, *batch = text.split(":")
    if name not in MODELS_BY_NAME or precision not in PRECISIONS:
        raise ValueError(
            f"expected MODEL:PRECISION of {', '.join(MODELS_BY_NAME)} and {', '.join(PRECISIONS)}, found {text}"
        )
    return name, precision, int(batch[0]) if batch else MODELS_BY_NAME[name].batch


def run_case(torch: Any, case: Workload, ways: Sequence[str], budget: float | None) -> dict[str, Row]:
    """Measure a workload; a way that fails costs the others nothing."""
    name, precision, batch = case
    made, rows = MODELS_BY_NAME[name].case("cuda", batch), dict[str, Row]()
    for way in ways:
        try:
            found = measure(torch, prepare(torch, made, way, precision, budget))
        except (RuntimeError, CutsError) as error:
            rows[way] = {"failure": str(error)[:300]}
            print(f"{name} {precision} {way}: {str(error)[:400]}", file=sys.stderr)
            continue
        facts = {key: value for key, value in found.items() if key != "kernels"}
        ours = {"cuts_ms": found["ms"], "budget_s": budget} if way == "cuts" else {"peers": {way: found["ms"]}}
        rows[way] = {**facts, **ours}
    return rows


def main() -> int:
    """Measure missing rows and print the table; return 1 after failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", type=parse_case, metavar="MODEL:PRECISION[:BATCH]")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(USUAL))
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of tuning, for each module")
    records.add_row_options(parser, "steps.json")
    options = parser.parse_args()
    rows, failed, end = read_rows(options.out), False, perf_counter() + options.limit
    every = [(model.name, precision, model.batch) for precision in PRECISIONS for model in MODELS_BY_NAME.values()]
    for case in () if options.table else options.only or every:
        known = set() if options.again else fresh_keys(rows)
        missing = [way for way in options.ways if key_of(identity(case, way)) not in known]
        if not missing or perf_counter() > end:
            continue
        torch = import_module("torch")
        for way, row in run_case(torch, case, options.ways, options.budget).items():
            failed |= "failure" in row
            about = records.circumstances(torch.cuda.get_device_name(), options.commit)
            rows = keep_row(options.out, identity(case, way) | row | about)
    print(steps_table([row for row in rows if not is_stale(row)]))
    return int(failed)
