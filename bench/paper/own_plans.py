"""Networks predicted without their plans, beside tuned and timed ones.

The compiler plans each network for the GPU without a measurement; the model of launches has not seen the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from time import monotonic
from typing import Any

from cuts.backends import find_target
from cuts.bench.networks.models import BY_NAME
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import RESULTS, Row, is_stale, read_rows
from cuts.compile import compile_model, load_model, load_spec
from cuts.ir import CompileOptions
from cuts.latency import planned_launches
from cuts.latency.compiled_kernels.own_plans import fit_own_plans, read_plans
from cuts.latency.dataset import load_profile

from .registry import TableRequest, row_of

#: Profile whose launches the model is fitted to, and the system of the measured plans.
PROFILE_NAME, SYSTEM = "h200", "cuts mixed"


def timed_networks() -> Mapping[str, Row]:
    """Return the present measured plans of inference, by network and batch."""
    rows = [row for row in read_rows(RESULTS / "evaluation.json") if not is_stale(row)]
    chosen = [row for row in rows if row.get("system") == SYSTEM and row.get("task") == "inference"]
    return {f"{row['model']}, batch {row['batch']}": row for row in chosen}


def predicted_networks(request: TableRequest) -> Iterator[Row]:
    """Yield the prediction of each network that a request names."""
    timed, plans, begin = timed_networks(), read_plans(load_profile(PROFILE_NAME)), monotonic()
    for name in request.names:
        if monotonic() - begin > request.limit:
            return
        row = timed[name]
        own = next((each.network for each in plans if _plain(each.network) == _plain(row["model"])), "")
        model = fit_own_plans(plans, without=own)
        found = model.predict(planned_launches(_compile_network(row["model"], row["batch"])))
        fields = {"measured": row["ms"], "predicted": found.us * 1e-3, "launches": found.launches}
        fields |= {"low": found.low * 1e-3, "high": found.high * 1e-3, "measured_commit": row["commit"]}
        yield row_of("own", name, "", fields, request.commit)


def _compile_network(name: str, batch: int) -> Any:
    """Return a network's graph as the compiler plans it without measurements."""
    torch = import_module("torch")
    module, inputs = BY_NAME[name.lower()].make(batch, False)
    with torch.no_grad():
        program = torch.export.export(module, inputs)
    spec, target = load_spec([]), find_target(f"cuda:{PROFILE_NAME}")
    return compile_model(load_model(program, spec, None, ()), spec, target, CompileOptions())


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def networks_text(rows: Sequence[Row]) -> str:
    """Return the table of networks, with the number within 10 %."""
    lines = []
    for row in rows:
        off = row["predicted"] / row["measured"] - 1
        inside = "yes" if row["low"] <= row["measured"] <= row["high"] else "no"
        lines.append(
            [row["name"], row["launches"], f"{row['measured']:.3g}", f"{row['predicted']:.3g}", f"{off:+.1%}", inside]
        )
    close = sum(abs(row["predicted"] / row["measured"] - 1) <= 0.1 for row in rows)
    lines.append(["within 10 %", None, None, None, f"{close} of {len(rows)}", None])
    heads = ["network, without its plan", "launches", "measured, ms", "predicted, ms", "error", "in the interval"]
    return markdown_table(heads, lines)
