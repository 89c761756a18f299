"""Whole networks by kernels of `cuts`: how long plans were predicted to take, and how long they took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from attrs import asdict
from cuts.backends import find_target
from cuts.bench.plan_data import NAMES
from cuts.compile import compile_model, load_model, load_spec
from cuts.ir import CompileOptions
from cuts.latency.dataset import Profile
from cuts.latency.own_plans import PlannedLaunch, learned_plans, planned_launches, read_plans, unseen_plans

RESULTS = Path(__file__).parent / "results" / "evaluation.json"


class RowsReport(Protocol):
    """Where rows go."""

    def add(self, precision: str, kind: str, name: str, values: Mapping[str, Any]) -> None:
        """Add one line of a table."""


def own_networks(profile: Profile, report: RowsReport, kept: Path | None) -> None:
    """Predict tuned plans, launch by launch, and what `bench/networks` measured, from the plan that is made without
    measurements; by trees that have seen no plan of the network at any batch. `kept` has plans that were made, as
    making all takes a quarter of an hour.
    """
    plans = read_plans(profile)
    for number, (plan, found) in enumerate(unseen_plans(plans), 1):
        name = f"{number}: {plan.network}, batch {plan.batch}, {len(plan.launches)} launches"
        _show(report, "plans of cuts", name, plan.whole * 1e-3, found.us * 1e-3)
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        if row["system"].startswith("cuts") and row["task"] == "inference":
            planned = _kept(kept, f"{row['model']}:{row['batch']}".lower(), profile)
            us = learned_plans(plans, NAMES.get(row["model"], "")).predict(planned).us
            _show(report, "networks, kernels of cuts", f"{row['model']}, batch {row['batch']}", row["ms"], us * 1e-3)


def _show(report: RowsReport, kind: str, name: str, measured: float, predicted: float) -> None:
    error = predicted / measured - 1
    report.add("fp32", kind, name, {"measured": measured, "predicted": predicted, "off": error})
    print(f"{name:<44} measured {measured:7.3f} ms  predicted {predicted:7.3f} ms  {100 * error:+6.1f} %", flush=True)


def _kept(path: Path | None, workload: str, profile: Profile) -> list[PlannedLaunch]:
    """Return the launches of a workload's plan, from a file of plans where it has them."""
    known = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    if workload not in known:
        known[workload] = [asdict(each) for each in _planned(workload, f"cuda:{profile.name}")]
        if path:
            path.write_text(json.dumps(known), encoding="utf-8")
    return [PlannedLaunch(**each) for each in known[workload]]


def _planned(workload: str, target: str) -> list[PlannedLaunch]:
    import torch
    from cuts.bench.networks.ledger import parse_workload
    from cuts.bench.networks.systems import Case

    found = parse_workload(workload)
    case = Case(found, found.model.make(found.batch, False), torch, 0.0)
    spec = load_spec([])
    compiled = compile_model(load_model(case.program, spec), spec, find_target(target), CompileOptions())
    return planned_launches(compiled)
