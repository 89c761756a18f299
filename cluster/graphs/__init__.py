"""Graphs of a run: blocks, parameters, loss and optimiser step."""

from .blocks import block_passes
from .drafts import f32
from .ends import embedding_graphs, head_graph
from .parameters import (
    initial_weights,
    layer_kind,
    parameter_shapes,
    partition_parameter,
    replicated_parameters,
)
from .step_graphs import adam_graph, loss_graph, sum_graph
