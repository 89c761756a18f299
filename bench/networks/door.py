"""Wall time of calls through `torch.compile(model, backend="cuts")` and other ways.

    python -m cuts.bench door [--only resnet-50:1 bert-base:1] [--ways eager default cuts] [--budget 20]

Networks are those of `python -m cuts.bench networks`. A row has the milliseconds of a call among calls that follow one
another and of a synchronised call, the time until a call returns, and for `cuts` the time of a captured call, which is
that of the plan on the GPU. `nothing` is a backend that computes nothing: the overhead of Dynamo. No gradients, and the
parameters of `frozen` are constants. Errors are relative to the largest value of eager PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any

from cuts.bench.operators.timing import capture_graph, set_precision, time_calls
from cuts.bench.tools.markdown import digits, markdown_table
from cuts.bench.tools.records import (
    Row,
    add_row_options,
    circumstances,
    fresh_keys,
    is_stale,
    keep_row,
    key_of,
    read_rows,
)
from cuts.compile.torch_backend import cuts_backend
from cuts.ir import CutsError

from .ledger import parse_workload
from .models import Made, ModelWorkload

ROUNDS, CALLS = 7, 50
WAYS = ("eager", "nothing", "default", "reduce", "cuts", "frozen")
OURS = ("cuts", "frozen")


def walls(torch: Any, call: Callable[[], Any]) -> dict[str, float]:
    """Return a call's milliseconds: among others, synchronous, and until it returns."""
    following, waited, returned = [], [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        following.append((perf_counter() - start) / CALLS)
        for _ in range(CALLS):
            start = perf_counter()
            call()
            returned.append(perf_counter() - start)
            torch.cuda.synchronize()
            waited.append(perf_counter() - start)
    samples = {"wall": following, "waited": waited, "returned": returned}
    return {name: statistics.median(each) * 1e3 for name, each in samples.items()}


def nothing(module: Any, examples: Any) -> Any:
    """Compile to a function that returns the same tensors at each call."""
    torch = import_module("torch")
    output = next(node for node in module.graph.nodes if node.op == "output").args[0]
    found = tuple(torch.empty(node.meta["example_value"].shape, device="cuda") for node in output)
    return lambda *_: found


def caller(torch: Any, model: Any, way: str, budget: float | None) -> Any:
    """Return a model as it is called in a way."""
    torch._dynamo.reset()
    tuned = {} if budget is None else {"budget": budget}
    options: dict[str, dict[str, Any]] = {
        "nothing": {"backend": nothing},
        "default": {},
        "reduce": {"mode": "reduce-overhead"},
        "cuts": {"backend": cuts_backend, "options": tuned},
        "frozen": {"backend": cuts_backend, "options": {**tuned, "freeze": True}},
    }
    return model if way == "eager" else torch.compile(model, **options[way])


def measure(torch: Any, made: Made, way: str, budget: float | None) -> Row:
    """Compile a network on the GPU and time its calls."""
    set_precision(torch)
    model, given = made
    with torch.no_grad():
        expected = model(*given)
        start = perf_counter()
        call = partial(caller(torch, model, way, budget), *given)
        found = call().clone()
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        row: Row = {"compiling": perf_counter() - start, **walls(torch, call)}
        row["error"] = float((found - expected).abs().max() / expected.abs().max())
        if way not in OURS:
            return row | {"peers": {way: row["wall"]}}
        plan = time_calls(torch, capture_graph(torch, [call])).median
        return row | {"cuts_ms": row["wall"], "plan": plan * 1e3}


def identity(workload: ModelWorkload, way: str) -> Row:
    """Return the fields of a row that identify it."""
    return {"suite": "door", "class": way, "name": workload.model.name.lower(), "batch": workload.batch}


def calls_table(rows: Sequence[Row], note: Callable[[Row], object] = lambda _: None) -> str:
    """Return rows as a table, each with a note."""
    times = ("wall", "waited", "returned", "plan")
    lines = [
        [
            *(row["name"], row["batch"], row["class"], *(digits(row.get(each)) for each in times)),
            *(row.get("launches"), digits(row["compiling"]), note(row)),
        ]
        for row in rows
    ]
    return markdown_table(["network", "batch", "backend", *times, "launches", "compilation, s", "no."], lines)


def main() -> int:
    """Measure missing rows and print the table; return 1 after failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["resnet-50:1", "bert-base:1"], metavar="MODEL:BATCH")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of tuning, for each graph")
    add_row_options(parser, "door.json")
    options = parser.parse_args()
    rows, failed, end = read_rows(options.out), 0, perf_counter() + options.limit
    for workload in () if options.table else map(parse_workload, options.only):
        known = set() if options.again else fresh_keys(rows)
        ways = [way for way in options.ways if key_of(identity(workload, way)) not in known]
        if not ways:
            continue
        torch = import_module("torch")
        model, inputs = workload.model.make(workload.batch, False)
        made = model.to("cuda"), tuple(x.to("cuda") for x in inputs)
        for way in (way for way in ways if perf_counter() < end):
            try:
                row = identity(workload, way) | measure(torch, made, way, options.budget)
            except (RuntimeError, CutsError) as error:
                print(f"{workload.label} {way}: {str(error)[:400]}", file=sys.stderr)
                failed += 1
                continue
            facts = {"budget_s": options.budget, **circumstances(torch.cuda.get_device_name(), options.commit)}
            rows = keep_row(options.out, row | facts)
    print(calls_table([row for row in rows if not is_stale(row)]))
    return int(failed > 0)
