"""Model of convolutions on one machine: kernels, times and intervals.

It has three parts that can be switched off:

1. a latency model for each choice of kernels (equations 1 to 4, and waves); 2. the selection: forests over the paper's
features (`selection.py`), or the straight argmin of equations 5 and 6; 3. a correction, not of the paper: boosted trees
over the same features predict the logarithm of measured over modelled time, for effects beyond the four terms
(transforms around the kernel, split sums, caches).

The interval is that of samples which were predicted by models that had not seen their case and number of input
channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import asdict, define, field, frozen

from ...ir import UsageError
from ..convolution import Convolutions, Floats
from ..dataset import Samples, Strings
from .features import selection_features
from .fitting import library, one_thread
from .kernel_model import KernelFit, KernelModel, has_tile
from .selection import LEARNED_FACETS, ChoiceFacets, Selection
from .tiles import Tiles
from .trees import Trees

#: Samples that a choice needs for a model of its own; other samples are left to those that have one.
MIN_CHOICE_SAMPLES = 3
#: Times that differ by no more count as the same.
_SAME_TIME_TOLERANCE = 0.1
#: The part of samples in which a choice must run for the argmin to consider it: models of rare ones extrapolate badly.
_MIN_COMMON_PART = 0.01
#: Samples that a kernel's model for one choice alone needs.
_MIN_POSITION_SAMPLES = 20


@frozen
class Options:
    """Parts of the fit.

    `select` is "forest" or "argmin"; `correct` adds the correction; `extended` the features that are not the paper's.
    `trees` are those of each forest, `rounds` those of the correction.
    """

    fit: KernelFit = field(factory=KernelFit)
    select: str = "forest"
    correct: bool = True
    extended: bool = True
    trees: int = 16
    rounds: int = 1000
    likely: int = 6


@frozen(eq=False)
class Correction:
    """Boosted trees, whose sum begins with `base`."""

    base: float
    trees: Trees

    def values(self, columns: Floats) -> Floats:
        """Return a logarithm for each row."""
        return np.asarray(self.base + self.trees.values(columns).sum(axis=1))


@define
class LayerModel:
    """Model fitted to one precision and one state of the cache.

    `names` are the kernels' own names, `parts` their models. A choice may be several kernels, one after another: its
    time is the sum of theirs.
    """

    options: Options
    parts: dict[str, KernelModel] = field(factory=dict)
    choices: dict[str, int] = field(factory=dict)
    common: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    facets: Mapping[str, ChoiceFacets] = field(factory=dict)
    _selection: Selection | None = None
    _correction: Correction | None = None

    def fit(self, samples: Samples, state: str, names: Mapping[int, str]) -> LayerModel:
        """Fit all parts and return itself.

        Raises `UsageError` without samples.
        """
        if not len(samples):
            raise UsageError("no such layer was profiled", hint="`cuts latency profile` goes on with the profile")
        self.parts = fit_parts(samples, state, names, self.options.fit)
        self.usual = _frequent_kernels(samples)
        labels, counts = np.unique(samples.choices, return_counts=True)
        least = min(MIN_CHOICE_SAMPLES, int(counts.max()))  # a small profile has few samples of any choice
        self.choices = {str(label): number for number, label in enumerate(labels[counts >= least])}
        self.common = tuple(str(label) for label in labels[counts >= max(least, _MIN_COMMON_PART * len(samples))])
        known = samples.where(np.isin(samples.choices, list(self.choices)))
        self.facets = {choice: ChoiceFacets.of(choice, names) for choice in self.choices}
        if self.options.select == "forest":
            features = self._features(known.layers)
            self._selection = Selection(self.options.trees).fit(features, known.choices, self.facets)
        if self.options.correct:
            self._fit_correction(known, state)
        return self

    def _fit_correction(self, known: Samples, state: str) -> None:
        features, modelled = self._features(known.layers), self._model_times(known.layers, known.choices)
        with one_thread():
            columns = self._corrections(features, known.layers, modelled, known.choices)
            boosted = _boosting(self.options.rounds).fit(columns, np.log(known.us(state) / modelled))
        self._correction = Correction(float(boosted._baseline_prediction.item()), Trees.of_boosted(boosted))

    def predict(self, layers: Convolutions) -> tuple[Floats, Strings, Floats]:
        """Return microseconds, choices, and confidence.

        Confidence is the probability of all choices that take as long.
        """
        return self.answers(layers)[:3]

    def answers(self, layers: Convolutions) -> tuple[Floats, Strings, Floats, Floats]:
        """Return `predict`'s results, and the geometric mean of likely times.

        The mean counts in a sum over layers. (Some choices are tens of times slower than others; in an arithmetic mean
        they count though they hardly ever run.)
        """
        features = self._features(layers)
        options, shares = self._choose(features, layers)
        every = np.stack([self._time(features, layers, each) for each in options.T], axis=1)
        means = np.exp((np.log(every) * shares).sum(axis=1) / shares.sum(axis=1))
        return *_agree(every, options, shares), means

    def _time(self, features: Floats, layers: Convolutions, chosen: Strings) -> Floats:
        """Return the microseconds that choices take, corrected."""
        us = self._model_times(layers, chosen)
        if self._correction is None:
            return us
        return np.asarray(us * np.exp(self._correction.values(self._corrections(features, layers, us, chosen))))

    def state(self) -> dict[str, Any]:
        """Return the fitted state, as arrays and JSON values."""
        values: dict[str, Any] = {"choices": self.choices, "common": self.common, "usual": self.usual}
        values |= {"facets": {choice: asdict(each) for choice, each in self.facets.items()}}
        values |= {"parts": {part: asdict(each) for part, each in self.parts.items()}}
        if self._selection is not None:
            values |= {"selected": self._selection.choices}
            for number, (forest, places) in enumerate(
                zip(self._selection.forests, self._selection.places, strict=True)
            ):
                values |= {f"forest{number}": places} | forest.arrays(f"forest{number}.")
        if self._correction is not None:
            values |= {"base": self._correction.base} | self._correction.trees.arrays("correction.")
        return values

    @classmethod
    def of_state(cls, options: Options, values: Mapping[str, Any]) -> LayerModel:
        """Return the model of a `state`."""
        parts = {}
        for part, each in values["parts"].items():
            tiles, coefficients = Tiles(**each["tiles"]), tuple(each["coefficients"])
            parts[part] = KernelModel(**{**each, "tiles": tiles, "coefficients": coefficients})
        facets = {choice: ChoiceFacets(**each) for choice, each in values["facets"].items()}
        model = cls(options, parts, dict(values["choices"]), tuple(values["common"]), tuple(values["usual"]), facets)
        if "selected" in values:
            numbers = [n for n in range(len(LEARNED_FACETS)) if f"forest{n}" in values]
            forests = [Trees.of_arrays(values, f"forest{number}.") for number in numbers]
            places = [values[f"forest{number}"] for number in numbers]
            model._selection = Selection(options.trees, values["selected"], forests, places)
        if "base" in values:
            model._correction = Correction(values["base"], Trees.of_arrays(values, "correction."))
        return model

    def main(self, choice: str) -> KernelModel:
        """Return the model of a choice's dominant kernel.

        It is the one that takes longest for each term of its sums.
        """
        return max(self.models(choice), key=lambda model: model.t_k + model.coefficients[-2])

    def models(self, choice: str) -> list[KernelModel]:
        """Return the model of each kernel of a choice."""
        parts = choice.split("+")
        return [self.parts.get(f"{choice}|{position}", self.parts[part]) for position, part in enumerate(parts)]

    def _features(self, layers: Convolutions) -> Floats:
        return selection_features(layers, {part: self.parts[part] for part in self.usual}, self.options.extended)

    def _choose(self, features: Floats, layers: Convolutions) -> tuple[Strings, Floats]:
        """Return the likely choices of each convolution, the likeliest first, and their probabilities."""
        if self._selection is None:  # equations (5) and (6)
            names = np.array(self.common)
            every = np.stack([self._model_times(layers, np.full(len(layers), name)) for name in names])
            return names[every.argmin(axis=0)][:, None], np.ones((len(layers), 1))
        shares = self._selection.shares(features)
        likely = np.argsort(-shares, axis=1)[:, : self.options.likely]
        return self._selection.choices[likely], np.take_along_axis(shares, likely, axis=1)

    def _model_times(self, layers: Convolutions, chosen: Strings) -> Floats:
        us = np.zeros(len(layers))
        for name in np.unique(chosen):
            own = chosen == name
            us[own] = sum(model.predict(layers[own]) for model in self.models(str(name)))
        return np.maximum(us, 0.5)  # no kernel is faster than its launch

    def _corrections(self, features: Floats, layers: Convolutions, modelled: Floats, chosen: Strings) -> Floats:
        """Return the features of the correction: the selection's, and of the chosen kernels the model's time, tile,
        waves and companions.
        """
        own = np.zeros((len(layers), 11))
        for name in np.unique(chosen):
            rows, main = np.flatnonzero(chosen == name), self.main(str(name))
            waves = main.tiles.blocks(layers[rows]) / (main.at_once or main.multiprocessors)
            alone = main.predict(layers[rows]) / modelled[rows]
            own[rows, :3] = np.stack([waves, np.ceil(waves) / waves, alone], axis=1)
            own[rows, 3:] = self._facts(str(name), main)
        return np.column_stack([features, modelled, own])

    def _facts(self, choice: str, main: KernelModel) -> list[float]:
        """Return a choice in numbers: its place among all, its kernel with tile and pace, and the kernels around it."""
        facets = self.facets[choice]
        kernel = float(facets.kernel.partition(".")[0])
        tile = [main.tiles.blk_m, main.tiles.blk_n, main.t_k]
        return [self.choices[choice], kernel, *tile, choice.count("+"), facets.resets, facets.split]


def _agree(every: Floats, options: Strings, shares: Floats) -> tuple[Floats, Strings, Floats]:
    """Return the time with the most probability, the likeliest choice that takes as long, and that probability.

    Interchangeable kernels of a library often differ little in time: two choices of 30 % each within 10 % of each other
    make a better guess than a third one of 40 % that takes twice as long.
    """
    close = np.abs(every[:, None, :] / every[:, :, None] - 1) <= _SAME_TIME_TOLERANCE
    support = (close * shares[:, None, :]).sum(axis=2)
    best = (support + 1e-6 * shares).argmax(axis=1)
    rows = np.arange(len(every))
    weights = close[rows, best] * shares
    us = np.exp((np.log(every) * weights).sum(axis=1) / weights.sum(axis=1))
    return us, options[rows, weights.argmax(axis=1)], support[rows, best]


def _frequent_kernels(samples: Samples, share: float = 0.03) -> tuple[str, ...]:
    """Return the kernels that run in at least that part of samples: those that have columns among the features."""
    counts = Counter(part for choice in samples.choices for part in set(str(choice).split("+")))
    # Sorted, as sets have no fixed order: columns that change places make other trees.
    return tuple(sorted(part for part, count in counts.items() if count >= share * len(samples)))


def fit_parts(samples: Samples, state: str, names: Mapping[int, str], fit: KernelFit) -> dict[str, KernelModel]:
    """Return the model of every kernel, fitted to all its choices.

    Kernels that only move memory have another job in each choice (the image, the filter, room for a border), so with
    enough samples these have a model for each choice too, by the choice and its position.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for row, choice in enumerate(samples.choices):
        for place, part in enumerate(str(choice).split("+")):
            places.setdefault(part, []).append((row, place))
            if not has_tile(names.get(int(part.partition(".")[0]), "")):
                places.setdefault(f"{choice}|{place}", []).append((row, place))
    found = {}
    for key, where in places.items():
        if "|" not in key or len(where) >= _MIN_POSITION_SAMPLES:
            choice, _, position = key.partition("|")
            part = choice.split("+")[int(position or 0)]
            found[key] = _fit_part(samples, state, where, names.get(int(part.partition(".")[0]), ""), fit)
    return found


def _fit_part(samples: Samples, state: str, where: list[tuple[int, int]], name: str, fit: KernelFit) -> KernelModel:
    times = samples.parts(state)
    rows = np.array([row for row, _ in where])
    blocks = np.array([samples.blocks[row][position] for row, position in where], np.int64)
    us = np.maximum([times[row][position] for row, position in where], 0.1)
    return fit.kernel(samples.layers[rows], blocks, us, name)


def _boosting(rounds: int) -> Any:
    ensemble = library("sklearn.ensemble")
    return ensemble.HistGradientBoostingRegressor(
        max_iter=rounds, learning_rate=0.04, max_leaf_nodes=48, min_samples_leaf=5, random_state=0
    )
