"""Prediction of whole models: a sum of layers and gaps.

Each layer has its input just written by the one before. The gap is the time of a recorded graph between two kernels; it
is fitted on the networks of the training sweeps, the only use of networks in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from attrs import frozen

from ..ir import Graph
from .graph_layers import graph_layers
from .operations import LayerOperation, ModelLayer
from .predictor import Prediction

#: Microseconds between two kernels of a recorded graph, where no network was measured.
_GAP = 0.45


class OperationPredictor(Protocol):
    """Predictor of operations, by a library's kernels or by generated ones."""

    def operations(self, wanted: Sequence[LayerOperation]) -> tuple[Prediction, ...]:
        """Predict operations of any kind."""


@frozen
class LayerPrediction:
    """Layer of a model and the prediction for all of it."""

    layer: ModelLayer
    prediction: Prediction


@frozen
class ModelPrediction:
    """Prediction of a whole model.

    It has microseconds with an interval, the layers, and the expected number of kernels.
    """

    us: float
    low: float
    high: float
    launches: int
    layers: tuple[LayerPrediction, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of all layers, each sentence once."""
        return tuple(dict.fromkeys(text for each in self.layers for text in each.prediction.warnings))


def predict_model(graph: Graph, asked: OperationPredictor, gap: float = _GAP) -> ModelPrediction:
    """Predict a graph, node by node."""
    return predict_layers(graph_layers(graph), asked, gap)


def predict_layers(layers: Sequence[ModelLayer], asked: OperationPredictor, gap: float = _GAP) -> ModelPrediction:
    """Predict layers in order, all operations in one batch."""
    predictions = asked.operations([each for layer in layers for each in layer.operations])
    found, position = [], 0
    for layer in layers:
        own = predictions[position : position + len(layer.operations)]
        position += len(layer.operations)
        found.append(LayerPrediction(layer, _sum_predictions(own)))
    launches = sum(max(1, len(each.kernels)) for each in predictions if each.us > 0)
    us = sum(each.term for each in predictions) + gap * launches
    # errors of layers are not all of one sign: half of the interval is taken as common to all, the rest as independent
    common = sum(each.high - each.us for each in predictions) / 2
    alone = float(np.sqrt(sum((each.high - each.us) ** 2 for each in predictions)))
    return ModelPrediction(
        us, us / (1 + (common + alone) / us) if us else 0.0, us + common + alone, launches, tuple(found)
    )


def _sum_predictions(parts: Sequence[Prediction]) -> Prediction:
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
