"""Layer models with parts switched off, and predictions of unseen samples."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve
from cuts.latency.convolution import Floats
from cuts.latency.dataset import Samples
from cuts.latency.predictors.fitting import library
from cuts.latency.predictors.kernel_model import KernelFit
from cuts.latency.predictors.layer_model import LayerModel, Options


def unseen(samples: Samples, state: str, names: Mapping[int, str], options: Options) -> tuple[Samples, Floats, Floats]:
    """Return a fifth of the samples, with predictions by unbiased models.

    Times and confidence come from a model that has not seen their cases with their numbers of input channels.
    """
    split = library("sklearn.model_selection").GroupShuffleSplit(1, test_size=0.2, random_state=0)
    train, test = next(split.split(samples.cold, groups=samples.groups))
    us, _, confidence = LayerModel(options).fit(samples.where(train), state, names).predict(samples.layers[test])
    return samples.where(test), us, confidence


def ablations(options: Options) -> Mapping[str, Options]:
    """Return the model with parts switched off, by the remaining parts."""
    paper = KernelFit(waves=False, relative=False, named=False, forms=("flat",))
    return {
        "all": options,
        "without the correction": evolve(options, correct=False),
        "without waves": evolve(options, fit=evolve(options.fit, waves=False)),
        "argmin, no correction (equations 5, 6)": evolve(options, select="argmin", correct=False),
        "as in the paper: equations 1 to 4, learned selection": Options(paper, "forest", correct=False, extended=False),
        "as in the paper, argmin": Options(paper, "argmin", correct=False, extended=False),
    }
