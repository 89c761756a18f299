"""Graphs of a run: blocks, parameters, loss and optimiser step."""

from .blocks import BlockGraphs, block_passes
from .drafts import GraphDraft, f32
from .parameters import initial_weights, parameter_shapes, partition_parameter, replicated_parameters
from .step_graphs import adam_graph, loss_graph

__all__ = [
    "BlockGraphs",
    "GraphDraft",
    "adam_graph",
    "block_passes",
    "f32",
    "initial_weights",
    "loss_graph",
    "parameter_shapes",
    "partition_parameter",
    "replicated_parameters",
]
