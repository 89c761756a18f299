"""Training graphs: three steps equal PyTorch's, in float64 and on a device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.compile.loading import load_model, load_spec
from cuts.ir.types import DType
from cuts.ops.reference import evaluate_graph

from .bert import bert, torch_bert
from .networks import (
    STATISTICS,
    Network,
    lstm_classifier,
    resnet,
    torch_lstm,
    torch_resnet,
    torch_transformer,
    transformer,
)

STEPS = 3
OPTIMISERS = {
    "sgd": cuts.SGD(rate=0.1),
    "momentum": cuts.SGD(rate=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": cuts.SGD(rate=0.1, momentum=0.9, nesterov=True),
    "adam": cuts.Adam(rate=0.01),
    "adamw": cuts.Adam(rate=0.01, weight_decay=0.1, decoupled=True),
}


def torch_optimiser(kind: str, parameters: list[Any]) -> Any:
    optim = pytest.importorskip("torch").optim
    return {
        "sgd": lambda: optim.SGD(parameters, 0.1),
        "momentum": lambda: optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
        "nesterov": lambda: optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
        "adam": lambda: optim.Adam(parameters, 0.01),
        "adamw": lambda: optim.AdamW(parameters, 0.01, weight_decay=0.1),
    }[kind]()


def batches(net: Network) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)

    def value(name: str) -> Any:
        type_ = net.types[name]
        if type_.dtype.is_float:
            return rng.standard_normal(type_.shape).astype(np.float32)
        numbers = rng.integers(0, net.below[name], type_.shape)
        return (
            np.maximum(numbers, np.arange(type_.shape[-1]) == 0).astype(bool) if type_.dtype is DType.BOOL else numbers
        )

    return [{name: value(name) for name in net.inputs} for _ in range(STEPS)]


def train(training: cuts.Training, run: Any, data: list[dict[str, Any]]) -> tuple[list[float], dict[str, Any]]:
    state: dict[str, Any] = dict(training.initial)
    losses = []
    for batch in data:
        results, state = training.step(run, state, batch)
        losses.append(float(results["loss"]))
    return losses, state


def torch_training(
    net: Network, loss: Any, kind: str, data: list[dict[str, Any]]
) -> tuple[list[float], dict[str, Any]]:
    torch = pytest.importorskip("torch")
    state = {name: torch.tensor(array).double() for name, array in net.constants.items()}
    names = [name for name in state if not name.endswith((".mean", ".var")) and state[name].ndim]
    for name in names:
        state[name].requires_grad_()
    optimiser = torch_optimiser(kind, [state[name] for name in names])
    losses = []
    for batch in data:
        tensors = [torch.tensor(v).double() if v.dtype.kind == "f" else torch.tensor(v) for v in batch.values()]
        optimiser.zero_grad()
        value = loss(state, *tensors)
        value.backward()
        optimiser.step()
        losses.append(value.item())
    return losses, {name: value.detach().numpy() for name, value in state.items()}


NETWORKS = {
    "resnet": (resnet, torch_resnet),
    "transformer": (transformer, torch_transformer),
    "bert": (bert, torch_bert),
    "lstm": (lstm_classifier, torch_lstm),
}


@pytest.mark.parametrize(
    ("name", "kind"), [*((n, "adam") for n in NETWORKS), *(("resnet", k) for k in OPTIMISERS if k != "adam")]
)
def test_three_steps_equal_pytorch(name: str, kind: str) -> None:
    make, oracle = NETWORKS[name]
    net = make()
    training = cuts.grad(net.graph("loss"), optimiser=OPTIMISERS[kind], updates=STATISTICS if name == "resnet" else {})
    data = batches(net)
    losses, state = train(training, training.reference, data)
    expected_losses, expected = torch_training(net, oracle, kind, data)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    for parameter, value in expected.items():
        if parameter in state:
            np.testing.assert_allclose(state[parameter], value, rtol=1e-4, atol=1e-6, err_msg=parameter)
    assert not math.isclose(losses[0], losses[-1])


def linear(classes: int = 3) -> Network:
    net = Network("linear")
    net.input("x", 4, 5)
    net.weight("w", 5, classes)
    net.op("matmul", "x", "w", out="logits")
    return net


@pytest.mark.parametrize(
    ("op", "type_"), [("cross_entropy", "i64[4]"), ("mse_loss", "f32[4, 3]"), ("bce_with_logits", "f32[4, 3]")]
)
def test_a_loss_has_its_declared_target_type(op: str, type_: str) -> None:
    graph = cuts.with_loss(linear().graph("logits"), op)
    assert (graph.inputs, graph.outputs, str(graph.types["target"])) == (("x", "target"), ("loss", "logits"), type_)


def test_learning_reduces_the_loss_by_input_rate() -> None:
    training = cuts.grad(
        cuts.with_loss(linear().graph("logits"), "cross_entropy"), loss="loss", optimiser=cuts.Adam(rate=0.1)
    )
    batch = {"x": np.random.default_rng(0).standard_normal((4, 5)), "target": np.array([0, 1, 2, 1])}
    losses, _ = train(training, training.reference, [batch] * 20)
    assert losses[-1] < losses[0] / 4
    assert training.graph.types["learning_rate"].shape == ()
    frozen, _ = train(training, training.reference, [{**batch, "learning_rate": np.float32(0)}] * 2)
    assert frozen[0] == frozen[1]


def test_without_an_optimiser_the_gradients_are_outputs() -> None:
    training = cuts.grad(cuts.with_loss(linear().graph("logits"), "mse_loss"), loss="loss")
    assert training.graph.outputs == ("loss", "logits", training.gradients["w"])
    assert training.carried == {}


def test_a_value_with_several_readers_gets_the_sum() -> None:
    net = Network("square")
    net.input("x", 3)
    net.op("mul", "x", "x", out="y")
    net.op("add", "y", "x", out="z")
    net.op("reduce_sum", "z", out="loss", keepdims=False)
    training = cuts.grad(net.graph("loss"), wrt=["x"])
    x = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(training.reference({"x": x})[training.gradients["x"]], 2 * x + 1)


def test_a_training_graph_is_saved_with_its_declarations(tmp_path: Path) -> None:
    training = cuts.grad(
        cuts.with_loss(linear().graph("logits"), "cross_entropy"), loss="loss", optimiser=cuts.SGD(momentum=0.9)
    )
    training.save(tmp_path / "training.json")
    spec = load_spec([tmp_path / "training.cuts"])
    graph = load_model(str(tmp_path / "training.json"), spec)
    batch = {**training.initial, "x": np.ones((4, 5)), "target": np.array([0, 1, 2, 1])}
    expected = training.reference(batch)
    found = evaluate_graph(graph, spec.registry, {name: batch[name] for name in graph.inputs})
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in expected.items()
    }
