"""Training graphs of all models of the `onnx` package.

Their work is the cost of backpropagation.
"""

from __future__ import annotations

from pathlib import Path

import cuts
import pytest
from cuts.compile.loading import load_model, load_spec
from cuts.ir.graph import Graph, Node
from cuts.ops.costs import program_costs
from cuts.ops.language.inference import Instances
from cuts.tests.models import light_models

SMALL_MODELS = ("light_squeezenet", "light_shufflenet", "light_resnet50")


def flops(graph: Graph, nodes: tuple[Node, ...], instances: Instances) -> int:
    return sum(program_costs(instances.of_node(node, graph).program).flops for node in nodes)


@pytest.mark.parametrize("path", [p for p in light_models() if p.stem in SMALL_MODELS], ids=lambda p: p.stem)
def test_backward_costs_about_twice_forward(path: Path) -> None:
    graph = cuts.with_loss(load_model(str(path), load_spec([])), "mse_loss")
    training = cuts.grad(graph, loss="loss")
    instances = training.spec.registry.instances
    forward = flops(training.graph, graph.nodes, instances)
    whole = flops(training.graph, training.graph.nodes, instances)
    assert 2.4 < whole / forward < 3.3
    assert set(training.gradients) == {
        name for name, array in graph.constants.items() if array.dtype.kind == "f" and array.ndim
    }
