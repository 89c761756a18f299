"""Selection of a library's kernels, learned by facets of a choice.

A choice of several kernels is one of hundreds, but most of it follows from few facets: the kernel that computes the
product, its family and tile, and the kernels around it (transforms of the image and the filter, resets of memory). Each
is learned by a forest of extremely randomised trees of its own (the paper leaves the learner open) and votes for the
choices that have it; only choices that were seen count. A forest over whole choices has to find each border again in
every one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field, frozen

from ..convolution import Floats, Ints
from ..dataset import Strings
from .fitting import library
from .kernel_model import has_tile
from .trees import Trees

#: Probability that a forest gives to classes that it has not seen, and the weight of the sum of logarithms: forests
#: that agree are not independent witnesses.
_MIN_PROBABILITY, _WEIGHT = 1e-3, 0.5
_TILE = re.compile(r"(\d+)x(\d+)(x\d+|_\d+x\d+)?")
_RESET = "Memset"


@frozen
class ChoiceFacets:
    """Facets of a choice: product kernel, family, tile, and kernels around it."""

    kernel: str
    family: str
    tile: str
    around: str
    place: int = 0
    resets: int = 0
    split: bool = False

    @classmethod
    def of(cls, choice: str, names: Mapping[int, str]) -> ChoiceFacets:
        """Return the facets of a choice.

        `names` are the kernels' own names. Memory that is reset right before the product marks split-K: parts of its
        sums are added there.
        """
        parts = choice.split("+")
        called = [names.get(int(part.partition(".")[0]), "") for part in parts]
        tiled = [place for place, name in enumerate(called) if name and has_tile(name)]
        place = tiled[-1] if tiled else len(parts) - 1
        found = _TILE.search(called[place])
        around = "+".join("product" if at == place else part for at, part in enumerate(parts))
        resets = [at for at, name in enumerate(called) if _RESET in name]
        family = re.sub(r"\d+", "0", _TILE.sub("", called[place], count=1))
        return cls(parts[place], family, found[0] if found else "", around, place, len(resets), place - 1 in resets)


#: Facets with a forest.
LEARNED_FACETS = ("kernel", "family", "tile", "around")


@define
class Selection:
    """Forests over features.

    `choices` are those that were seen often enough to have a model, `places` the class that each of them has in each
    forest.
    """

    trees: int
    choices: Strings = field(factory=lambda: np.array([], np.str_))
    forests: list[Trees] = field(factory=list)
    places: list[Ints] = field(factory=list)

    def fit(self, features: Floats, chosen: Strings, facets: Mapping[str, ChoiceFacets]) -> Selection:
        """Grow the forests and return itself."""
        self.choices = np.unique(chosen)
        for number, name in enumerate(LEARNED_FACETS):
            seen = {choice: str(getattr(facets[str(choice)], name)) for choice in self.choices}
            if len(set(seen.values())) > 1:
                forest = _forest(self.trees, number).fit(features, _map_choices(chosen, seen))
                self.forests.append(Trees.of_forest(forest, range(len(forest.classes_))))
                self.places.append(np.searchsorted(forest.classes_, [seen[choice] for choice in self.choices]))
        return self

    def shares(self, features: Floats) -> Floats:
        """Return the probability of each choice, by row of features."""
        total = np.zeros((len(features), len(self.choices)))
        for forest, places in zip(self.forests, self.places, strict=True):
            total += np.log(forest.shares(features, int(places.max()) + 1)[:, places] + _MIN_PROBABILITY)
        total = np.exp(_WEIGHT * (total - total.max(axis=1, keepdims=True)))
        return np.asarray(total / total.sum(axis=1, keepdims=True))


def _map_choices(chosen: Sequence[str] | Strings, seen: Mapping[Any, str]) -> Strings:
    return np.array([seen[choice] for choice in chosen], np.str_)


def _forest(trees: int, seed: int) -> Any:
    return library("sklearn.ensemble").ExtraTreesClassifier(trees, max_features=1.0, random_state=seed, n_jobs=-1)
