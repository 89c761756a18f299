"""Networks predicted without their times, beside tuned and timed ones.

The compiler plans each network for the GPU without a measurement, from the packs of the database; the shares of its
estimates are those of other networks. `python -m cuts.bench.paper.own_plans` writes the rows to the profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic

from attrs import asdict, fields
from cuts.backends import find_target
from cuts.bench.networks.models import BY_NAME
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import RESULTS, Row, is_stale, read_rows
from cuts.compile import build_graph, load_model, load_spec
from cuts.ir import CompileOptions
from cuts.latency import planned_launches
from cuts.latency.compiled_kernels.own_plans import PlannedLaunch, TimedPlan, fit_own_plans, summarise
from cuts.latency.profiling.tables import write_table

from .registry import TableRequest, row_of

#: Profile that the plans belong to, and the system of the measured plans.
PROFILE_NAME, SYSTEM = "h200", "cuts mixed"
#: Rows of the table, and the profile's table of them.
ROWS, PLANS = RESULTS / "paper" / "latency-own.json", Path("latency", "data", f"{PROFILE_NAME}-plans.csv.xz")


def timed_networks() -> Mapping[str, Row]:
    """Return the present measured plans of inference, by network and batch."""
    rows = [row for row in read_rows(RESULTS / "evaluation.json") if not is_stale(row)]
    chosen = [row for row in rows if row.get("system") == SYSTEM and row.get("task") == "inference"]
    return {f"{row['model']}, batch {row['batch']}": row for row in chosen}


def planned_networks(request: TableRequest) -> Iterator[Row]:
    """Yield the estimates and the measured time of each requested network."""
    timed, begin = timed_networks(), monotonic()
    for name in request.names:
        if monotonic() - begin > request.limit:
            return
        row = timed[name]
        planned = _plan_network(row["model"], row["batch"])
        found = summarise(row["model"], row["batch"], planned, 1e3 * row["ms"])
        facts = {"measured": row["ms"], "launches": len(planned), "measured_commit": row["commit"]}
        yield row_of("own", name, "", facts | asdict(found), request.commit) | {"batch": row["batch"]}


def _plan_network(name: str, batch: int) -> list[PlannedLaunch]:
    """Return a network's launches as the compiler plans it without measurements."""
    torch = import_module("torch")
    module, inputs = BY_NAME[name.lower()].make(batch, False)
    with torch.no_grad():
        program = torch.export.export(module, inputs)
    spec, target = load_spec([]), find_target(f"cuda:{PROFILE_NAME}")
    return planned_launches(build_graph(load_model(program, spec, None, ()), spec, target, CompileOptions()).plan)


def plans_of(rows: Sequence[Row]) -> list[TimedPlan]:
    """Return the timed plans of the table's rows."""
    names = [each.name for each in fields(TimedPlan)]
    return [TimedPlan(*(row[name] for name in names)) for row in rows if "straight" in row]


def networks_text(rows: Sequence[Row]) -> str:
    """Return the table of networks, each predicted by the others."""
    rows = [row for row in rows if "straight" in row]
    plans, lines, close = plans_of(rows), [], 0
    for row, plan in zip(rows, plans, strict=True):
        model = fit_own_plans(plans, without=plan.network)
        off = model.microseconds(plan) / plan.us - 1
        inside = "yes" if abs(off) <= 0.1 else "no"
        close += inside == "yes"
        times = (f"{plan.us * 1e-3:.3g}", f"{model.microseconds(plan) * 1e-3:.3g}", f"{off:+.1%}")
        lines.append([row["name"], row["launches"], *times, inside])
    lines.append(["all", None, None, None, None, f"{close} of {len(rows)}"])
    return markdown_table(
        ["network, without its times", "launches", "measured, ms", "predicted, ms", "error", "within 10 %"], lines
    )


def main() -> None:
    """Write the plans of the table's rows to the profile."""
    header = [each.name for each in fields(TimedPlan)]
    write_table(PLANS, header, [[getattr(plan, name) for name in header] for plan in plans_of(read_rows(ROWS))])


if __name__ == "__main__":
    main()
