"""Whole models: the sum of their layers, each with its input just written by the one before, and a gap between kernels.

The gap is what a recorded graph spends between two kernels; it is fitted on the networks that training sweeps are taken
from, and nothing else of a network is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from attrs import frozen

from ..ir import Graph
from .graph_layers import graph_layers
from .networks import KNOWN, Network
from .operations import LayerOperation, ModelLayer
from .predictor import Prediction

#: Microseconds between two kernels of a recorded graph, where no network was measured.
_GAP = 0.45


class OperationPredictor(Protocol):
    """What predicts operations: of a library's kernels or of ours."""

    def operations(self, wanted: Sequence[LayerOperation]) -> tuple[Prediction, ...]:
        """Predict operations of any kind."""


@frozen
class LayerPrediction:
    """A layer of a model and what is predicted for all of it."""

    layer: ModelLayer
    prediction: Prediction


@frozen
class ModelPrediction:
    """A whole model: microseconds with an interval, its layers, and how many kernels are expected."""

    us: float
    low: float
    high: float
    launches: int
    layers: tuple[LayerPrediction, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes layers doubtful, each sentence once."""
        return tuple(dict.fromkeys(text for each in self.layers for text in each.prediction.warnings))


def predict_model(graph: Graph, asked: OperationPredictor, gap: float = _GAP) -> ModelPrediction:
    """Predict a graph of ours, node by node."""
    return predict_layers(graph_layers(graph), asked, gap)


def predict_layers(layers: Sequence[ModelLayer], asked: OperationPredictor, gap: float = _GAP) -> ModelPrediction:
    """Predict layers in order, all operations of all layers asked at once."""
    predictions = asked.operations([each for layer in layers for each in layer.operations])
    found, position = [], 0
    for layer in layers:
        own = predictions[position : position + len(layer.operations)]
        position += len(layer.operations)
        found.append(LayerPrediction(layer, _together(own)))
    launches = sum(max(1, len(each.kernels)) for each in predictions if each.us > 0)
    us = sum(each.term for each in predictions) + gap * launches
    # errors of layers are not all of one sign: half of the interval is taken as common to all, the rest as independent
    common = sum(each.high - each.us for each in predictions) / 2
    alone = float(np.sqrt(sum((each.high - each.us) ** 2 for each in predictions)))
    return ModelPrediction(
        us, us / (1 + (common + alone) / us) if us else 0.0, us + common + alone, launches, tuple(found)
    )


def _together(parts: Sequence[Prediction]) -> Prediction:
    """Return the sum of the operations of one layer."""
    return Prediction(
        sum(each.us for each in parts),
        sum(each.low for each in parts),
        sum(each.high for each in parts),
        tuple(kernel for each in parts for kernel in each.kernels),
        parts[0].blocks if parts else 0,
        min((each.confidence for each in parts), default=1.0),
        tuple(text for each in parts for text in each.warnings),
        sum(each.term for each in parts),
    )


def fitted_gap(networks: Sequence[Network]) -> float:
    """Return the microseconds between kernels: the median over the known networks of what a whole takes beyond its
    kernels.
    """
    gaps = [(each.whole - sum(each.us)) / sum(each.kernels) for each in networks if each.name in KNOWN]
    return max(0.0, float(np.median(gaps))) if gaps else _GAP
