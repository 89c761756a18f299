"""Whole model on an artificial library with suboptimal choices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the selection is learned by scikit-learn")
from cuts.ir.errors import CutsWarning
from cuts.latency.calibration import Calibration, half_widths
from cuts.latency.dataset import Samples
from cuts.latency.model_cache import cached_fit
from cuts.latency.predictors.layer_model import Correction, LayerModel, Options, _agree
from cuts.latency.predictors.trees import Trees
from cuts.tests.latency.ablations import ablations, unseen
from cuts.tests.latency.baselines import all_baselines
from cuts.tests.latency.metrics import score
from cuts.tests.latency.simulator import KERNELS, choice, layers, profile

NAMES = dict(enumerate(KERNELS))
#: Enough for a library of a few kernels.
FEW_TREES = Options(trees=12, rounds=80)


def samples(count: int = 1500, seed: int = 0) -> Samples:
    """Return a profile of the made-up library, one kernel a layer."""
    each = layers(count, seed)
    names, blocks, us = profile(each)
    cases = np.array([f"{row[2]}/{row[5]}/{row[7]}" for row in each.table])
    numbers = np.array([f"{list(KERNELS).index(name)}.0" for name in names])
    ragged = [np.empty(count, object) for _ in range(3)]
    for part, values in zip(ragged, (blocks, us, us * 0.9), strict=True):
        part[:] = [np.array([value]) for value in values]
    return Samples(each, np.full(count, "edges"), cases, numbers, *ragged, us, us * 0.9)


def name_choices(choices: np.ndarray) -> np.ndarray:
    return np.array([NAMES[int(each.split(".")[0])] for each in choices])


@pytest.fixture(scope="module")
def fitted_model() -> LayerModel:
    return LayerModel(FEW_TREES).fit(samples(), "cold", NAMES)


def test_kernels_and_times_of_unseen_layers_are_found(fitted_model: LayerModel) -> None:
    others = layers(500, seed=7)
    _, _, us = profile(others, noise=0.0)
    predicted, chosen, _ = fitted_model.predict(others)
    assert np.mean(name_choices(chosen) == choice(others)) > 0.95
    assert score(predicted, us).within > 0.95


def test_every_baseline_is_worse_on_stepped_curves(fitted_model: LayerModel) -> None:
    others = layers(500, seed=7)
    _, _, us = profile(others, noise=0.0)
    train = samples()
    ours = score(fitted_model.predict(others)[0], us).within
    for baseline in all_baselines():
        assert score(baseline.fit(train.layers, train.choices, train.cold).predict(others), us).within < ours, (
            baseline.name
        )


def test_the_argmin_mispredicts_suboptimal_libraries() -> None:
    others = layers(500, seed=7)
    train = samples()
    naive = LayerModel(ablations(Options())["as in the paper, argmin"]).fit(train, "cold", NAMES)
    assert np.mean(name_choices(naive.predict(others)[1]) == choice(others)) < 0.8


def test_intervals_come_from_held_out_data() -> None:
    train = samples(600)
    test, us, confidence = unseen(train, "cold", NAMES, FEW_TREES)
    assert 0 < len(test) < len(train)
    assert score(us, test.cold).within > 0.7
    widths = half_widths(Calibration.of(us, test.cold, confidence), confidence)
    assert np.mean(np.abs(np.log(us / test.cold)) <= widths) >= 0.85


def test_an_unsure_choice_averages_both_kernels() -> None:
    train = samples()
    twice = np.array([f"{each}+9.0" for each in train.choices])
    for parts, share in ((train.cold_parts, 1.0), (train.warm_parts, 0.9), (train.blocks, 1.0)):
        parts[:] = [np.append(each, 7.0 * share) for each in parts]
    both = Samples(train.layers, train.kinds, train.cases, twice, train.blocks, train.cold_parts, train.warm_parts,
                   train.cold + 7, train.warm + 6.3)  # fmt: skip
    model = LayerModel(Options(trees=12, correct=False)).fit(both, "cold", NAMES | {9: "Memset (Device)"})
    assert score(model.predict(both.layers)[0], both.cold).within > 0.95


def test_likely_choices_of_equal_times_are_joined() -> None:
    every = np.array([[200.0, 100.0, 101.0]])
    options = np.array([["a", "b", "c"]])
    us, chosen, confidence = _agree(every, options, np.array([[0.4, 0.35, 0.25]]))
    assert us[0] == pytest.approx(100.4, abs=0.2)
    assert chosen[0] == "b"
    assert confidence[0] == pytest.approx(0.6)


def test_a_model_that_was_kept_is_the_model(
    fitted_model: LayerModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    others, asked = layers(200, seed=8), []

    def fit() -> Mapping[str, Any]:
        asked.append(1)
        return fitted_model.state()

    def is_equal_when_read() -> bool:
        found = LayerModel.of_state(FEW_TREES, cached_fit(("digest", "made up"), fit)).predict(others)
        return all((one == other).all() for one, other in zip(found, fitted_model.predict(others), strict=True))

    assert is_equal_when_read() and len(asked) == 1
    assert is_equal_when_read() and len(asked) == 1
    (entry,) = (tmp_path / "cache" / "entries" / "fit").iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])  # cut short
    with pytest.warns(CutsWarning, match="set aside"):
        assert is_equal_when_read() and len(asked) == 2
    cached_fit(("other data", "made up"), fit)
    assert len(asked) == 3


def test_trees_as_arrays_equal_the_librarys() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    draw = np.random.default_rng(0)
    rows, labels = draw.normal(size=(300, 5)), draw.integers(0, 4, 300)
    sums, others = rows @ np.arange(5.0) + labels, draw.normal(size=(70, 5))
    classes = ensemble.ExtraTreesClassifier(7, random_state=0).fit(rows, labels)
    assert (Trees.of_forest(classes, range(4)).shares(others, 4) == classes.predict_proba(others)).all()
    means = ensemble.ExtraTreesRegressor(7, random_state=0).fit(rows, sums)
    assert Trees.of_forest(means).means(others) == pytest.approx(means.predict(others), rel=1e-12)
    boosted = ensemble.HistGradientBoostingRegressor(max_iter=20).fit(rows, sums)
    correction = Correction(float(boosted._baseline_prediction.item()), Trees.of_boosted(boosted))
    assert correction.values(others) == pytest.approx(boosted.predict(others), rel=1e-12)
