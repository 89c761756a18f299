"""Algorithms of gradients, which follow from those of the operation."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry, evaluate_graph
from cuts.ops.gradient.gradients import Gradients
from cuts.passes.graph import prune
from cuts.passes.partitioning.algorithm_graphs import replace_node

from ..needs import needs_opencl

SAME = {"pads": (1, 1, 1, 1)}
USES = {
    "same": ((2, 3, 6, 5), (4, 3, 3, 3), SAME, {"x": "winograd", "w": "winograd"}),
    "no pads": ((2, 3, 6, 7), (4, 3, 3, 3), {}, {"x": "winograd", "w": "winograd"}),
    "five taps": ((1, 2, 9, 8), (2, 2, 5, 5), {"pads": (2, 2, 2, 2)}, {"x": "fourier", "w": "fourier"}),
    "a row of taps": ((1, 2, 6, 9), (3, 2, 1, 7), {"pads": (0, 3, 0, 3)}, {"x": "winograd_line", "w": "winograd_line"}),
    "a long row": ((1, 2, 6, 11), (3, 2, 1, 9), {"pads": (0, 4, 0, 4)}, {"x": "fourier", "w": "fourier"}),
    "steps": ((2, 3, 8, 8), (4, 3, 3, 3), {"strides": (2, 2), **SAME}, {"x": "steps", "w": "steps"}),
}


def _graph(
    shapes: tuple[tuple[int, ...], ...], attributes: dict[str, tuple[int, ...]], operand: str
) -> tuple[Graph, Registry]:
    """Return the gradient of one operand of a convolution as a graph."""
    gradients = Gradients(Registry.builtin())
    instance = gradients.registry["conv"].instantiate([TensorType(DType.F32, s) for s in shapes], attributes)
    (step,) = gradients.steps(instance, (operand,), ("y",))
    known = {"x": instance.program.tensors["x"], "w": instance.program.tensors["w"], "dy": instance.output_types[0]}
    types = {name: known[name] for name in step.operands} | {f"d{operand}": known[operand]}
    node = Node("n", step.op, step.inputs, step.outputs)
    return Graph("g", step.operands, step.outputs, types, (node,)), gradients.registry


@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("name", USES)
def test_every_algorithm_computes_the_gradient(name: str, operand: str) -> None:
    image, weight, attributes, kinds = USES[name]
    graph, registry = _graph((image, weight), attributes, operand)
    instances = registry.instances
    found = instances.of_node(graph.nodes[0], graph).algorithms
    assert found and all(algorithm.startswith(kinds[operand]) for algorithm in found)
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(graph.types[name].shape) for name in graph.inputs}
    (wanted,) = evaluate_graph(graph, registry, arrays).values()
    for algorithm in found:
        changed = prune(replace_node(graph, graph.nodes[0], algorithm, instances))
        (result,) = evaluate_graph(changed, registry, arrays).values()
        np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-9, err_msg=algorithm)


@needs_opencl
@pytest.mark.parametrize("operand", ["x", "w"])
def test_gradients_by_winograd_on_a_device(operand: str) -> None:
    graph, registry = _graph(((2, 4, 9, 8), (8, 4, 3, 3)), SAME, operand)
    changed = prune(replace_node(graph, graph.nodes[0], "winograd_4x4", registry.instances))
    plan = build_graph(changed, Spec(registry, {}), find_target("opencl"), CompileOptions())
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    (wanted,), (found,) = evaluate_graph(graph, registry, arrays).values(), plan.run(arrays).values()
    # Errors are up to 5e-7 of the greatest element: the transforms lose eight times the error of a sum of products.
    assert np.abs(found - wanted).max() < 16 * np.finfo(np.float32).eps * np.abs(wanted).max()


def test_data_gradients_are_convolutions_of_turned_filters() -> None:
    """Its algorithms are those of a convolution.

    The input transform reads the gradient of the result.
    """
    graph, registry = _graph((USES["same"][0], USES["same"][1]), SAME, "x")
    steps = registry.instances.of_node(graph.nodes[0], graph).algorithms["winograd_4x4"]
    assert [n.op for n in steps][1:] == [
        "winograd_filter", "winograd_input", "reshape", "matmul", "reshape", "winograd_output"
    ]  # fmt: skip
    turned = registry[steps[0].op].instantiate([graph.types["w"]]).program
    assert turned.tensors[turned.outputs[0]].shape == (3, 4, 3, 3)


def test_dims_of_one_element_stay_where_they_are() -> None:
    image, weight, attributes, _ = USES["a long row"]
    graph, registry = _graph((image, weight), attributes, "x")
    (steps,) = registry.instances.of_node(graph.nodes[0], graph).algorithms.values()
    assert steps[-1].op == "fourier_output"


def test_gradients_without_algorithms_stay_one_operation() -> None:
    gradients = Gradients(Registry.builtin())
    types = [TensorType(DType.F32, s) for s in ((2, 3, 5, 5), (4, 3, 1, 1))]
    (step,) = gradients.steps(gradients.registry["conv"].instantiate(types), ("x", "w"), ("y",))
    assert step.outputs == ("dx", "dw")
