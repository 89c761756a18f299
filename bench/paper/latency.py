"""Tables of the latency model of convolutional layers (Li et al.)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import RESULTS, Row
from cuts.latency.dataset import Samples, load_profile, packaged_profiles, training_samples
from cuts.latency.predictors.layer_model import LayerModel, Options

from .own_plans import networks_text, planned_networks, timed_networks
from .registry import PaperTable, stamp_rows

#: Share within 10 % and RMSE in milliseconds that the paper prints, by network on its platform P1.
PRINTED_ACCURACY: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "ResNet50 V2": {"model": (91.34, 0.10), "FLOPs": (2.25, 4.70), "FastDeepIoT": (11.90, 1.90)},
    "Inception V3": {"model": (91.22, 0.03), "FLOPs": (2.87, 2.31), "FastDeepIoT": (32.60, 0.40)},
}
#: Baselines of the paper in Figure 6.
BASELINES = ("linear in operations", "FastDeepIoT: tree of linear models")
#: Rows of the report, and the paper's rows beside them.
_ROWS = (
    ("cases of ResNet-50 V2", "ResNet50 V2", "model"),
    ("cases of Inception v3", "Inception V3", "model"),
    ("as in the paper: equations 1 to 4, learned selection", "", "model"),
    ("linear in operations", "", "FLOPs"),
    ("FastDeepIoT: tree of linear models", "", "FastDeepIoT"),
)


# ---- Table I


def _accuracy() -> Iterator[tuple[str, dict[str, Any]]]:
    report = json.loads((RESULTS / "latency.json").read_text(encoding="utf-8"))
    for precision in ("fp32", "tf32"):
        for label, network, system in _ROWS:
            found = report[precision]["layers"][label]
            printed = [each[system] for name, each in PRINTED_ACCURACY.items() if network in ("", name)]
            fields = {"precision": precision, "label": label, "printed": [list(each) for each in printed]}
            yield f"{precision}: {label}", {**fields, "within": found["within"], "rmse": found["rmse"]}


def _accuracy_text(rows: Sequence[Row]) -> str:
    lines = [
        [
            *(row["precision"], row["label"], f"{100 * row['within']:.1f} %", f"{row['rmse']:.3f}"),
            ", ".join(f"{share:g} %" for share, _ in row["printed"]),
            ", ".join(f"{rmse:g}" for _, rmse in row["printed"]),
        ]
        for row in rows
    ]
    heads = ["precision", "model", "within 10 %", "RMSE, ms", "paper, P1: within 10 %"]
    return markdown_table([*heads, "paper, P1: RMSE, ms"], lines)


# ---- sets of a profile


def _sets() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in packaged_profiles():
        counts = Counter((row["kind"], row["op"], row["precision"]) for row in load_profile(name).rows)
        for kind in sorted({kind for kind, _, _ in counts}):
            own = {key: count for key, count in counts.items() if key[0] == kind}
            found = {p: sum(count for key, count in own.items() if key[2] == p) for p in ("fp32", "tf32")}
            operations = len({op for _, op, _ in own})
            yield f"{name} {kind}", {"profile": name, "kind": kind, "operations": operations, **found}


def _sets_text(rows: Sequence[Row]) -> str:
    lines = [[row["profile"], f"`{row['kind']}`", row["operations"], row["fp32"], row["tf32"]] for row in rows]
    return markdown_table(["profile", "set", "operations", "layers, fp32", "layers, tf32"], lines)


# ---- Figures 1, 4 and 6: sweeps of output channels


def sweeps(precision: str = "fp32") -> dict[str, Samples]:
    """Return the dense sweeps of the profile, by case and input channels.

    Their layers are in the order of output channels.
    """
    samples = load_profile("h200").convolutions(precision).of("sweep")
    found = {}
    for label in dict.fromkeys(samples.groups):
        own = samples.where(samples.groups == label)
        found[str(label)] = own.where(np.argsort(own.layers.column("K")))
    return found


def _steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for label, samples in sweeps().items():
        blocks = np.array([each.max() for each in samples.blocks])
        changes = int((samples.choices[1:] != samples.choices[:-1]).sum())
        same = samples.choices[1:] == samples.choices[:-1]
        rises = blocks[1:] > blocks[:-1]
        ratios = samples.cold[1:] / samples.cold[:-1]
        falls = int((ratios < 0.97).sum())
        fields = {"layers": len(samples), "kernels": len(set(samples.choices)), "switches": changes, "falls": falls}
        within = {
            "at a new block": float(np.median(ratios[same & rises])) if (same & rises).any() else None,
            "on a plateau": float(np.median(ratios[same & ~rises])) if (same & ~rises).any() else None,
        }
        yield label, {**fields, **within}


def _steps_text(rows: Sequence[Row]) -> str:
    lines = [
        [
            *(row["name"], row["layers"], row["kernels"], row["switches"], row["falls"]),
            *(None if row[key] is None else f"{row[key]:.3f}" for key in ("at a new block", "on a plateau")),
        ]
        for row in rows
    ]
    heads = ["sweep", "layers", "choices of kernels", "switches", "falls of more than 3 %"]
    return markdown_table([*heads, "time ratio at a new block", "time ratio on a plateau"], lines)


def predict_sweeps(found: Mapping[str, Samples]) -> dict[str, dict[str, Any]]:
    """Return predictions of each model by sweep."""
    profile, baselines = load_profile("h200"), import_module("cuts.tests.latency.baselines")  # of a checkout
    seen = training_samples(profile.convolutions("fp32"))
    model = LayerModel(Options()).fit(seen, "cold", profile.kernels)
    known = {"this model": {label: model.predict(samples.layers)[0] for label, samples in found.items()}}
    for baseline in (each for each in baselines.all_baselines() if each.name in BASELINES):
        fitted = baseline.fit(seen.layers, seen.choices, seen.cold)
        known[baseline.name.partition(":")[0]] = {n: fitted.predict(samples.layers) for n, samples in found.items()}
    return known


def _fits() -> Iterator[tuple[str, dict[str, Any]]]:
    found = sweeps()
    predicted = predict_sweeps(found)
    for label, samples in found.items():
        errors = {name: each[label] - samples.cold for name, each in predicted.items()}
        within = {name: float(np.mean(np.abs(error) <= 0.1 * samples.cold)) for name, error in errors.items()}
        rmse = {name: 1e-3 * float(np.sqrt(np.mean(error**2))) for name, error in errors.items()}
        yield label, {"layers": len(samples), "within": within, "rmse": rmse}


def _fits_text(rows: Sequence[Row]) -> str:
    names = list(rows[0]["within"])
    lines = [
        [row["name"], row["layers"], *(f"{100 * row['within'][n]:.1f} %, {row['rmse'][n]:.3f}" for n in names)]
        for row in rows
    ]
    return markdown_table(["sweep", "layers", *(f"{name}: within 10 %, RMSE in ms" for name in names)], lines)


TABLES = (
    PaperTable(
        "I", "share within 10 % and RMSE of held-out layers", _accuracy_text,
        lambda: [f"{precision}: {label}" for precision in ("fp32", "tf32") for label, _, _ in _ROWS],
        lambda request: stamp_rows("I", request, _accuracy()),
    ),
    PaperTable(
        "sets", "layers of each profile", _sets_text,
        lambda: [name for name, _ in _sets()], lambda request: stamp_rows("sets", request, _sets()),
    ),
    PaperTable(
        "figure-1", "steps and switches of kernels along the output channels (Figures 1 and 4)", _steps_text,
        lambda: list(sweeps()), lambda request: stamp_rows("figure-1", request, _steps()), also=("figure-4",),
    ),
    PaperTable(
        "figure-6", "predictions along the output channels, input channels unseen", _fits_text,
        lambda: list(sweeps()), lambda request: stamp_rows("figure-6", request, _fits()),
    ),
    PaperTable(
        "own", "networks of cuts, without their times; the model has not seen the network", networks_text,
        lambda: list(timed_networks()), planned_networks,
    ),
)  # fmt: skip
