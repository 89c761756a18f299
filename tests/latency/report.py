"""Accuracy of the latency models against baselines and ablations.

It covers layers, whole cases and networks.

    python -m cuts.tests.latency.report [--intervals] [--quick] [-o bench/results/latency.json]

Test samples are not in the training set: `held` has numbers of input channels that the training sweeps of the same case
lack; whole cases are left out in turn. `--intervals` writes the widths of prediction intervals, `-o` the printed
figures; `docs/make_results.py` makes tables from these.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, define, field
from cuts.latency.calibration import Calibration, half_widths
from cuts.latency.dataset import GAP_NETWORKS, Profile, Samples, load_profile, training_samples
from cuts.latency.models import predict_layers
from cuts.latency.predictor import PRECISIONS, STATES, predictor
from cuts.latency.predictors.layer_model import LayerModel, Options
from cuts.tests.latency.ablations import ablations, unseen
from cuts.tests.latency.baselines import all_baselines
from cuts.tests.latency.metrics import Score, score
from cuts.tests.latency.networks import fit_gap, load_networks

HEADER = f"{'':52}{'rows':>6}  {'<10 %':>6}   {'<5 %':>6}      {'RMSE':>6}     {'median':>6}   {'p90':>6}"

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "latency.json"


@define
class LatencyReport:
    """Results by precision and kind of table, rewritten at every addition."""

    path: Path | None
    values: dict[str, dict[str, dict[str, Any]]] = field(factory=dict)

    def add(self, precision: str, kind: str, name: str, values: Mapping[str, Any]) -> None:
        """Add one line of a table."""
        known = self.values.setdefault(precision, {}).setdefault(kind, {}).setdefault(name, {})
        known |= {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}
        if self.path:
            self.path.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")

    def show(self, precision: str, name: str, found: Score) -> None:
        """Print one line of a table of layers, and add it."""
        print(f"{name:<52}{found.line()}", flush=True)
        self.add(precision, "layers", name.strip(), asdict(found))


def layers(profile: Profile, precision: str, quick: bool, report: LatencyReport) -> None:
    """Score layers of cases without training at their input channels."""
    samples = profile.convolutions(precision)
    train, test = training_samples(samples), samples.of("held")
    print(f"\n{precision}: {len(train)} layers train, cold cache\n{HEADER}")
    for name, options in ablations(Options()).items():
        begin = time.monotonic()
        model = LayerModel(options).fit(train, "cold", profile.kernels)
        us, chosen, confidence = model.predict(test.layers)
        report.show(precision, name, score(us, test.cold))
        right = float(np.mean(chosen == test.choices))
        report.add(precision, "layers", name, {"right": right})
        print(f"    the kernels are right in {100 * right:.1f} %; {time.monotonic() - begin:.1f} s")
        if name == "all":
            calibration = Calibration.load(profile, precision, "cold", "dense")
            report.add(
                precision, "layers", name, details(model, test, (us, confidence), calibration, precision, report)
            )
            report.show(
                precision,
                "sweeps of one case with unseen C",
                score(model.predict(samples.of("sweep").layers)[0], samples.of("sweep").cold),
            )
        if quick:
            break
    for baseline in all_baselines():
        us = baseline.fit(train.layers, train.choices, train.cold).predict(test.layers)
        report.show(precision, baseline.name, score(us, test.cold))


def details(
    model: LayerModel,
    test: Samples,
    found: tuple[np.ndarray, np.ndarray],
    calibration: Calibration,
    precision: str,
    report: LatencyReport,
) -> dict[str, float]:
    """Print the parts of the total score; return the interval's coverage.

    Parts are each network's cases, the true kernels given, sure and unsure predictions.
    """
    us, confidence = found

    def show(name: str, found: Score) -> None:
        report.show(precision, name, found)

    for network, mark in (("ResNet-50 V2", "r"), ("Inception v3", "i")):
        own = np.char.startswith(test.cases, mark)
        show(f"    cases of {network}", score(us[own], test.cold[own]))
    known = np.isin(test.choices, list(model.choices))
    features = model._features(test.layers[known])
    show(
        "    with the kernels known",
        score(model._time(features, test.layers[known], test.choices[known]), test.cold[known]),
    )
    sure = confidence >= 0.8
    show("    where it is sure (0.8 and above)", score(us[sure], test.cold[sure]))
    inside = np.abs(np.log(us / test.cold)) <= half_widths(calibration, confidence)
    print(f"    {100 * inside.mean():.1f} % lie in their 90 % interval")
    return {"inside": float(inside.mean())}


def compare_timed(profile: Profile, precision: str, report: LatencyReport) -> None:
    """Compare with cuDNN's timed algorithms: its choice, and the argmin's score."""
    samples = profile.convolutions(precision)
    chosen, guessed = (
        samples.of("timed"),
        {tuple(row): i for i, row in enumerate(samples.layers.table) if samples.kinds[i] == "held"},
    )
    both = np.array([guessed[tuple(row)] for row in chosen.layers.table])
    ratio = samples.cold[both] / chosen.cold
    same = np.mean(samples.choices[both] == chosen.choices)
    print(f"{precision}: timed choice, {len(chosen)} layers: the same kernels in {100 * same:.0f} %, "
          f"{np.exp(np.log(ratio).mean()):.2f} times as fast (geometric mean), at most {ratio.max():.1f}")  # fmt: skip
    model = LayerModel(Options(select="argmin", correct=False)).fit(training_samples(samples), "cold", profile.kernels)
    us, kernels, _ = model.predict(chosen.layers)
    print(f"    the argmin names the timed kernels in {100 * np.mean(kernels == chosen.choices):.0f} %")
    report.show(precision, "    the argmin's time against the timed choice", score(us, chosen.cold))


def whole_cases(profile: Profile, precision: str, report: LatencyReport, turns: int = 4) -> None:
    """Score wholly held-out cases, a quarter of all at a time."""
    samples = profile.convolutions(precision)
    cases = sorted(set(samples.of("held").cases))
    predicted, measured = [], []
    for turn in range(turns):
        out = np.isin(samples.cases, cases[turn::turns])
        model = LayerModel(Options()).fit(training_samples(samples.where(~out)), "cold", profile.kernels)
        test = samples.where(out).of("held")
        predicted.append(model.predict(test.layers)[0])
        measured.append(test.cold)
    report.show(precision, "whole cases never seen", score(np.concatenate(predicted), np.concatenate(measured)))


def networks(profile: Profile, precision: str, report: LatencyReport) -> None:
    """Compare whole networks with the measured recorded graph."""
    measured = [each for each in load_networks(profile.name) if each.precision == precision]
    gap = fit_gap(measured)
    print(f"\n{precision}: networks, {gap:.2f} us between kernels (fitted on {', '.join(GAP_NETWORKS)})")
    for batch in sorted({each.batch for each in measured}, reverse=True):
        good = []
        for each in (each for each in measured if each.batch == batch):
            found = predict_layers(each.layers, predictor(profile.name, precision, "warm"), gap)
            error = found.us / each.whole - 1
            mark = " (its sweeps train the model)" if each.name in GAP_NETWORKS else ""
            print(
                f"{each.name:<18} batch {batch:<3} measured {each.whole * 1e-3:7.3f} ms  "
                f"predicted {found.us * 1e-3:7.3f} ms  {100 * error:+6.1f} %{mark}"
            )
            ours = {"measured": each.whole * 1e-3, "predicted": found.us * 1e-3, "off": error}
            report.add(precision, f"networks, batch {batch}", each.name, ours)
            good += [] if each.name in GAP_NETWORKS else [abs(error) <= 0.1]
        print(f"batch {batch}: {sum(good)} of {len(good)} within 10 %", flush=True)


def intervals(profile: Profile, path: Path) -> None:
    """Write how far off predictions of unseen samples are."""
    found = {}
    for precision in PRECISIONS:
        parts = {"dense": training_samples(profile.convolutions(precision)), "linear": profile.products(precision)}
        for name, samples in {**parts, "depthwise": profile.convolutions("fp32", depthwise=True)}.items():
            for state in STATES:
                test, us, confidence = unseen(samples, state, profile.kernels, Options())
                found[f"{name}/{precision}/{state}"] = Calibration.of(us, test.us(state), confidence).widths
                LatencyReport(None).show(precision, f"{name} {state}, a fifth held out", score(us, test.us(state)))
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--profile", default="h200")
    parser.add_argument("--precision", default="fp32,tf32")
    parser.add_argument(
        "--intervals", action="store_true", help="write the table that intervals are made of, and no more"
    )
    parser.add_argument("--quick", action="store_true", help="leave out ablations, whole cases and networks")
    parser.add_argument("--only", choices=("layers", "cases", "networks", "timed"))
    parser.add_argument(
        "-o", "--output", type=Path, metavar="JSON", help="write what is printed; what the file has stays"
    )
    options = parser.parse_args()
    report = LatencyReport(options.output)
    if options.output and options.output.exists():
        report.values = json.loads(options.output.read_text(encoding="utf-8"))
    profile = load_profile(options.profile)
    if options.intervals:
        intervals(profile, ROOT / "latency" / "data" / f"{profile.name}-intervals.json")
        return 0
    for precision in options.precision.split(","):
        if options.only in (None, "layers"):
            layers(profile, precision, options.quick, report)
        if options.only in (None, "cases") and not options.quick:
            whole_cases(profile, precision, report)
        if options.only in (None, "timed") and not options.quick:
            compare_timed(profile, precision, report)
        if options.only in (None, "networks") and not options.quick:
            networks(profile, precision, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
