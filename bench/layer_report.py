"""How good the latency models are: layers, whole cases, sweeps, networks, against baselines and with parts switched
off.

    python -m cuts.bench.layer_report [--intervals] [--quick]

Nothing that is scored was trained on: `held` has numbers of input channels that training sweeps of the same case have
not; whole cases are left out in turn. `--intervals` writes the table that intervals are made of.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from cuts.latency.baselines import all_baselines
from cuts.latency.calibration import Calibration, half_widths
from cuts.latency.dataset import Profile, Samples, load_profile, trained_on
from cuts.latency.layer_model import LayerModel, Options, ablations, unseen
from cuts.latency.metrics import Score, score
from cuts.latency.models import fitted_gap, predict_layers
from cuts.latency.networks import KNOWN, load_networks
from cuts.latency.predictor import PRECISIONS, STATES, predictor

HEADER = f"{'':52}{'rows':>6}  {'<10 %':>6}   {'<5 %':>6}      {'RMSE':>6}     {'median':>6}   {'p90':>6}"


def show(name: str, found: Score) -> None:
    """Print one line of a table."""
    print(f"{name:<52}{found.line()}", flush=True)


def layers(profile: Profile, precision: str, quick: bool) -> None:
    """Score layers whose case with that number of input channels was not trained on."""
    samples = profile.convolutions(precision)
    train, test = trained_on(samples), samples.of("held")
    print(f"\n{precision}: {len(train)} layers train, cold cache\n{HEADER}")
    for name, options in ablations(Options()).items():
        begin = time.monotonic()
        model = LayerModel(options).fit(train, "cold", profile.kernels)
        us, chosen, confidence = model.predict(test.layers)
        show(name, score(us, test.cold))
        print(
            f"    the kernels are right in {100 * np.mean(chosen == test.choices):.1f} %; "
            f"{time.monotonic() - begin:.1f} s"
        )
        if name == "all":
            details(model, test, us, confidence, Calibration.load(profile, precision, "cold", "dense"))
            show(
                "sweeps of one case with unseen C",
                score(model.predict(samples.of("sweep").layers)[0], samples.of("sweep").cold),
            )
        if quick:
            break
    for baseline in all_baselines():
        show(
            baseline.name, score(baseline.fit(train.layers, train.choices, train.cold).predict(test.layers), test.cold)
        )


def details(model: LayerModel, test: Samples, us: np.ndarray, confidence: np.ndarray, calibration: Calibration) -> None:
    """Print what the whole number hides: each network's cases, the true kernels given, sure and unsure, coverage."""
    for network, mark in (("ResNet-50 V2", "r"), ("Inception v3", "i")):
        own = np.char.startswith(test.cases, mark)
        show(f"    cases of {network}", score(us[own], test.cold[own]))
    known = np.isin(test.choices, list(model.choices))
    features = model._features(test.layers[known])
    show(
        "    if it were told the kernels",
        score(model._time(features, test.layers[known], test.choices[known]), test.cold[known]),
    )
    sure = confidence >= 0.8
    show("    where it is sure (0.8 and above)", score(us[sure], test.cold[sure]))
    inside = np.abs(np.log(us / test.cold)) <= half_widths(calibration, confidence)
    print(f"    {100 * inside.mean():.1f} % lie in their 90 % interval")


def timed(profile: Profile, precision: str) -> None:
    """Compare with layers for which cuDNN timed its algorithms: how much faster its choice is, and what the argmin
    makes of it.
    """
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
    model = LayerModel(Options(select="argmin", correct=False)).fit(trained_on(samples), "cold", profile.kernels)
    us, kernels, _ = model.predict(chosen.layers)
    print(f"    the argmin names the timed kernels in {100 * np.mean(kernels == chosen.choices):.0f} %")
    show("    the argmin's time against the timed choice", score(us, chosen.cold))


def whole_cases(profile: Profile, precision: str, turns: int = 4) -> None:
    """Score cases of which nothing was trained on, a quarter of all cases at a time."""
    samples = profile.convolutions(precision)
    cases = sorted(set(samples.of("held").cases))
    predicted, measured = [], []
    for turn in range(turns):
        out = np.isin(samples.cases, cases[turn::turns])
        model = LayerModel(Options()).fit(trained_on(samples.where(~out)), "cold", profile.kernels)
        test = samples.where(out).of("held")
        predicted.append(model.predict(test.layers)[0])
        measured.append(test.cold)
    show(f"{precision}: whole cases never seen", score(np.concatenate(predicted), np.concatenate(measured)))


def networks(profile: Profile, precision: str) -> None:
    """Compare whole networks with what was measured as one recorded graph."""
    measured = [each for each in load_networks(profile.name) if each.precision == precision]
    gap = fitted_gap(measured)
    print(f"\n{precision}: networks, {gap:.2f} us between kernels (fitted on {', '.join(KNOWN)})")
    for batch in sorted({each.batch for each in measured}, reverse=True):
        good = []
        for each in (each for each in measured if each.batch == batch):
            found = predict_layers(each.layers, predictor(profile.name, precision, "warm"), gap)
            error = found.us / each.whole - 1
            mark = " (its sweeps train the model)" if each.name in KNOWN else ""
            print(
                f"{each.name:<18} batch {batch:<3} measured {each.whole * 1e-3:7.3f} ms  "
                f"predicted {found.us * 1e-3:7.3f} ms  {100 * error:+6.1f} %{mark}"
            )
            good += [] if each.name in KNOWN else [abs(error) <= 0.1]
        print(f"batch {batch}: {sum(good)} of {len(good)} within 10 %", flush=True)


def intervals(profile: Profile, path: Path) -> None:
    """Write how far off predictions of unseen samples are."""
    found = {}
    for precision in PRECISIONS:
        parts = {"dense": trained_on(profile.convolutions(precision)), "linear": profile.products(precision)}
        for name, samples in {**parts, "depthwise": profile.convolutions("fp32", depthwise=True)}.items():
            for state in STATES:
                test, us, confidence = unseen(samples, state, profile.kernels, Options())
                found[f"{name}/{precision}/{state}"] = Calibration.of(us, test.us(state), confidence).widths
                show(f"{name} {precision} {state}, a fifth held out", score(us, test.us(state)))
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
    options = parser.parse_args()
    profile = load_profile(options.profile)
    if options.intervals:
        intervals(profile, Path(__file__).parents[1] / "latency" / "data" / f"{profile.name}-intervals.json")
        return 0
    for precision in options.precision.split(","):
        if options.only in (None, "layers"):
            layers(profile, precision, options.quick)
        if options.only in (None, "cases") and not options.quick:
            whole_cases(profile, precision)
        if options.only in (None, "timed") and not options.quick:
            timed(profile, precision)
        if options.only in (None, "networks") and not options.quick:
            networks(profile, precision)
    return 0


if __name__ == "__main__":
    sys.exit(main())
