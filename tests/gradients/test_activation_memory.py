"""Memory rules of docs/training.md.

They define the values kept for the backward pass and the rematerialised ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import cuts
import pytest

from .bert import bert
from .networks import Network, lstm_classifier, resnet, transformer


@pytest.mark.parametrize("make", [bert, resnet, transformer], ids=lambda make: make.__name__)
def test_gradients_read_only_graph_values_and_gradients(make: Callable[[], Network]) -> None:
    graph = make().graph("loss")
    training = cuts.grad(graph)
    forward = {node.name: node for node in graph.nodes}
    kept = [node for node in training.graph.nodes if node.name in forward]
    assert kept == list(graph.nodes)  # nothing more is asked of the forward pass
    made = {value for node in training.graph.nodes if node.name not in forward for value in node.outputs}
    seed = "loss.grad"
    read = {value for node in training.graph.nodes if node.name not in forward for value in node.operands}
    assert read <= made | set(graph.types) | {seed}


def test_a_recurrence_has_inner_values_as_further_results() -> None:
    graph = lstm_classifier().graph("loss")
    training = cuts.grad(graph)
    (before,) = (node for node in graph.nodes if node.op == "lstm")
    after = next(node for node in training.graph.nodes if node.name == before.name)
    assert after.outputs[: len(before.outputs)] == before.outputs
    (reader,) = (node for node in training.graph.nodes if node.op.startswith("lstm_grad"))
    assert set(after.outputs[len(before.outputs) :]) <= set(reader.operands)
    programs = [training.spec.registry.instances.of_node(node, training.graph).program for node in (after, reader)]
    assert not any(s.combine and "x" in s.tensors_read for s in programs[1].statements)  # no gate is computed again
    others = [node for node in training.graph.nodes if node.name in {n.name for n in graph.nodes} - {before.name}]
    assert others == [node for node in graph.nodes if node is not before]


def test_gates_that_are_slices_get_a_product_each() -> None:
    training = cuts.grad(lstm_classifier().graph("loss"))
    (reader,) = (node for node in training.graph.nodes if node.op.startswith("lstm_grad"))
    program = training.spec.registry.instances.of_node(reader, training.graph).program
    pieces = [s for s in program.statements if s.target == "d_r"]
    assert len(pieces) == 4
    assert all(s.combine == "sum" and not any(read.guards for read in s.reads) for s in pieces)


@pytest.mark.parametrize("make", [bert, lstm_classifier, resnet, transformer], ids=lambda make: make.__name__)
def test_the_gradients_of_a_node_are_one_operation(make: Callable[[], Network]) -> None:
    graph = make().graph("loss")
    training = cuts.grad(graph)
    backward = [
        node for node in training.graph.nodes if node.name not in {n.name for n in graph.nodes} and node.op != "sum"
    ]
    forward = Counter(node.name.split(".")[0] for node in backward)
    instances, nodes = training.spec.registry.instances, {node.name: node for node in graph.nodes}
    assert set(forward) <= set(nodes)
    # Where there are algorithms to choose from, gradients that share nothing are chosen separately.
    separate = {name for name in forward if instances.of_node(nodes[name], graph).algorithms}
    assert all(count == 1 or name in separate for name, count in forward.items())
    assert all(len(node.outputs) == 1 for node in backward if forward[node.name.split(".")[0]] > 1)


def test_inner_values_are_recomputed_and_results_read() -> None:
    net = Network("layers")
    net.input("x", 4, 8)
    for op in ("layer_norm", "tanh"):
        net.op(
            op,
            net.nodes[-1].outputs[0] if net.nodes else "x",
            *([net.weight("scale", 8)] if op == "layer_norm" else []),
            out=op,
        )
    net.op("reduce_sum", "tanh", out="loss", keepdims=False)
    training = cuts.grad(net.graph("loss"), wrt=["x"])
    by_op = {node.op.split("_grad")[0]: node for node in training.graph.nodes if "_grad" in node.op}
    assert "tanh" in by_op["tanh"].operands  # (1 - y) * (1 + y)
    assert "layer_norm" not in by_op["tanh"].operands
    assert {"x", "scale"} <= set(by_op["layer_norm"].operands)
    program = training.spec.registry.instances.of_node(by_op["layer_norm"], training.graph).program
    assert any(statement.combine == "sum" for statement in program.statements)  # the mean, from x


def test_the_gradient_of_a_repetition_is_one_sum() -> None:
    net = Network("projection")
    net.input("x", 16, 4, 8)
    net.op("expand", net.weight("w", 8, 8), out="repeated", shape=(16, 8, 8))
    net.op("reshape", "repeated", out="same", shape=(16, 8, 8))
    net.op("matmul", "x", "same", out="y")
    net.op("reduce_sum", "y", out="loss", keepdims=False)
    training = cuts.grad(net.graph("loss"), wrt=["w"])
    made = [value for node in training.graph.nodes if "grad" in node.name for value in node.outputs]
    assert made
    assert max(training.graph.types[value].size for value in made) < 16 * 8 * 8  # not one for each repetition


def test_memory_of_values_is_freed_after_use() -> None:
    net = Network("chain")
    net.input("x", 64, 64)
    value = "x"
    for number in range(8):
        value = net.op(
            "tanh", net.op("matmul", value, net.weight(f"w{number}", 64, 64), out=f"m{number}"), out=f"t{number}"
        )
    net.op("reduce_sum", value, out="loss", keepdims=False)
    one = 64 * 64 * 4
    plan = cuts.grad(net.graph("loss"), wrt=["x"]).build("opencl").plan
    constants = sum(array.nbytes for array in plan.constants.values())
    # Eight activations are kept at once, and one gradient beside them; each of the others takes the place of an
    # activation.
    assert plan.arena - constants <= 9 * one + 1024


@pytest.mark.parametrize(("op", "bounds"), [("relu", {}), ("clip", {"min": 0.0, "max": 6.0}), ("clip", {"max": 1.0})])
def test_masks_from_results_free_the_operands(op: str, bounds: dict[str, float]) -> None:
    net = Network("masked")
    net.input("x", 4, 8)
    net.op("matmul", "x", net.weight("w", 8, 8, scale=3.0), out="sum")
    net.op(op, "sum", out="cut", **bounds)
    net.op("matmul", "cut", net.weight("v", 8, 8), out="y")
    net.op("reduce_sum", "y", out="loss", keepdims=False)
    training = cuts.grad(net.graph("loss"))
    backward = {v for node in training.graph.nodes if "grad" in node.op for v in node.operands}
    assert "cut" in backward and "sum" not in backward
