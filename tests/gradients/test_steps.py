"""Runs of many steps.

The bits equal those of single steps, from checkpoints, and by every entry point.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.ir import UsageError
from cuts.tests.needs import needs_opencl
from cuts.training import Checkpoint, load_checkpoint

from .networks import Network

pytestmark = pytest.mark.long

STEPS = 6


def classifier() -> Network:
    """Classifier of two layers with a norm and dropout, for inference."""
    net = Network("classifier")
    net.input("x", 4, 6)
    net.weight("w", 6, 3)
    net.op("matmul", "x", "w", out="c")
    statistics = [net.weight("scale", 3, shift=1), net.weight("shift", 3), net.weight("mean", 3)]
    net.constant("var", np.ones(3, np.float32))
    net.op("batch_norm", "c", *statistics, "var", out="n")
    net.op("relu", "n", out="r")
    net.op("dropout", "r", out="d", ratio=0.25)
    net.op("add", "d", "c", out="s")
    net.op("dropout", "s", out="e", ratio=0.5)
    net.weight("v", 3, 5)
    net.op("matmul", "e", "v", out="y")
    return net


def training() -> cuts.Training:
    """Return the training graph of the classifier.

    Norms of the batch, and dropout.
    """
    form = cuts.in_training(classifier().graph("y"), seed=7, momentum=0.9, unbiased=True)
    graph = cuts.with_loss(form.graph, "cross_entropy", prediction="y")
    return cuts.grad(graph, loss="loss", optimiser=cuts.SGD(rate=0.05, momentum=0.9), updates=form.updates)


def batches(count: int = STEPS) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [
        {"x": rng.standard_normal((4, 6)).astype(np.float32), "target": rng.integers(0, 5, 4)} for _ in range(count)
    ]


@pytest.fixture(scope="module")
def training_and_plan() -> tuple[cuts.Training, cuts.CompiledPlan]:
    """The training graph, and its plan."""
    graph = training()
    return graph, graph.build("opencl")


def assert_same(one: Any, other: Any) -> None:
    assert one.losses == other.losses
    assert one.state.keys() == other.state.keys()
    for name, value in one.state.items():
        assert value.tobytes() == other.state[name].tobytes(), name


# ---- differences in training


def test_norms_and_dropout_work_in_training_mode() -> None:
    form = cuts.in_training(classifier().graph("y"), momentum=0.75)
    assert [n.op for n in form.graph.nodes if "_training" in n.op] == [
        "batch_norm_training", "dropout_training", "dropout_training",
    ]  # fmt: skip
    (norm,) = (n for n in form.graph.nodes if n.op == "batch_norm_training")
    assert norm.attributes["momentum"] == 0.75
    assert form.updates.keys() == {"mean", "var", "seed"}


def test_each_dropout_drops_something_else_in_each_step() -> None:
    net = Network("dropping")
    net.input("x", 64)
    for name in ("a", "b"):
        net.op("dropout", "x", out=name)
    net.op("add", "a", "b", out="sum")
    net.op("mul", "sum", net.weight("w", 64), out="scaled")
    net.op("reduce_sum", "scaled", out="loss", keepdims=False)
    form = cuts.in_training(net.graph("loss", "a", "b"), seed=3)
    derived = cuts.grad(form.graph, loss="loss", optimiser=cuts.SGD(), updates=form.updates)
    state: dict[str, Any] = dict(derived.initial)
    seen = []
    for _ in range(2):
        results, state = derived.step(derived.reference, state, {"x": np.ones(64, np.float32)})
        seen += [results["a"], results["b"]]
    assert len({mask.tobytes() for mask in seen}) == 4
    assert all(16 < np.count_nonzero(mask) < 48 for mask in seen)


def test_an_attribute_that_nothing_has_is_refused() -> None:
    with pytest.raises(UsageError, match="no operation that differs in training has an attribute 'moment'"):
        cuts.in_training(classifier().graph("y"), moment=0.9)


# ---- steps in a row


@needs_opencl
def test_steps_on_the_device_equal_single_steps(training_and_plan: tuple[cuts.Training, cuts.CompiledPlan]) -> None:
    graph, plan = training_and_plan
    trained = graph.run(batches(), plan)
    state: dict[str, Any] = dict(graph.initial)
    losses = []
    for batch in batches():
        results, state = graph.step(plan.run, state, batch)
        losses.append(float(results["loss"]))
    assert list(trained.losses) == losses
    for name in graph.carried:
        assert trained.state[name].tobytes() == np.asarray(state[name]).tobytes(), name


@needs_opencl
def test_one_seed_gives_the_same_bits_twice(training_and_plan: tuple[cuts.Training, cuts.CompiledPlan]) -> None:
    graph, plan = training_and_plan
    assert_same(graph.run(batches(10), plan), graph.run(batches(10), plan))


def test_steps_on_the_reference_follow_the_same_losses(
    training_and_plan: tuple[cuts.Training, cuts.CompiledPlan],
) -> None:
    graph, plan = training_and_plan
    reference = graph.run(batches(2), graph.build("reference"))
    assert reference.losses == pytest.approx(graph.run(batches(2), plan).losses, rel=1e-5)


@needs_opencl
def test_results_of_each_step_are_reported(training_and_plan: tuple[cuts.Training, cuts.CompiledPlan]) -> None:
    graph, plan = training_and_plan
    reports: list[Any] = []
    graph.run(batches(2), plan, outputs=["y"], notice=lambda step, found: reports.append((step, found["y"].shape)))
    assert reports == [(1, (4, 5)), (2, (4, 5))]


# ---- checkpoints


@needs_opencl
def test_an_interrupted_run_resumes_with_equal_bits(
    training_and_plan: tuple[cuts.Training, cuts.CompiledPlan], tmp_path: Path
) -> None:
    graph, plan = training_and_plan

    def interrupted_batches() -> Iterator[dict[str, Any]]:
        yield from batches()[:3]
        raise KeyboardInterrupt

    file = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        graph.run(interrupted_batches(), plan, checkpoint=file, every=2)
    assert load_checkpoint(file, {}).steps == 2
    assert_same(graph.run(batches(), plan, checkpoint=file, every=2), graph.run(batches(), plan))
    assert load_checkpoint(file, {}).steps == STEPS
    assert_same(graph.run(batches(), plan, checkpoint=file), graph.run(batches(), plan))  # there is nothing left to do


KILLED_SCRIPT = """
import os, signal, sys
import cuts.frontends.weights
from cuts.tests.gradients.test_steps import batches, training
from cuts.training import checkpoint

graph, replace, written = training(), os.replace, []

def kill(part, file):
    written.append(file)
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(part, file)

checkpoint.os.replace = kill
plan = graph.build("reference")
graph.run(batches(), plan, checkpoint=sys.argv[1], every=1)
"""


def test_a_run_killed_during_writing_leaves_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    ended = subprocess.run([sys.executable, "-c", KILLED_SCRIPT, str(file)], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    graph = training()
    plan = graph.build("reference")
    assert load_checkpoint(file, {}).steps == 2
    assert_same(graph.run(batches(3), plan, checkpoint=file), graph.run(batches(3), plan))


@pytest.mark.parametrize("damage", ["foreign", "cut", "other graph"])
def test_checkpoints_of_other_graphs_are_refused(
    training_and_plan: tuple[cuts.Training, cuts.CompiledPlan], tmp_path: Path, damage: str
) -> None:
    graph, _ = training_and_plan
    plan = graph.build("reference")
    file = tmp_path / "state.safetensors"
    graph.run(batches(1), plan, checkpoint=file)
    content = file.read_bytes()
    file.write_bytes(
        {"foreign": b"PK", "cut": content[:-1], "other graph": content.replace(b"state.v", b"state.u")}[damage]
    )
    with pytest.raises(UsageError, match="is no checkpoint of this training graph"):
        graph.run(batches(2), plan, checkpoint=file)


def test_a_checkpoint_needs_a_place(training_and_plan: tuple[cuts.Training, cuts.CompiledPlan]) -> None:
    graph, _ = training_and_plan
    with pytest.raises(UsageError, match="says when to write a checkpoint, not where"):
        graph.run(batches(1), graph.build("reference"), every=2)


def test_an_unwritable_checkpoint_is_one_error(
    training_and_plan: tuple[cuts.Training, cuts.CompiledPlan], tmp_path: Path
) -> None:
    graph, plan = training_and_plan
    with pytest.raises(UsageError, match=r"cannot write checkpoint .*: there is no such folder"):
        graph.run(iter(()), plan, checkpoint=tmp_path / "none" / "state.safetensors")
    with pytest.raises(UsageError, match=r"cannot write checkpoint .*none"):  # as where a folder is taken away
        Checkpoint({}, (1.0,)).save(tmp_path / "none" / "state.safetensors")


# ---- doors


@needs_opencl
def test_a_training_graph_is_tuned_by_either_door(tmp_path: Path) -> None:
    from cuts.cli import main

    net = Network("line")
    net.input("x", 4, 6)
    net.op("matmul", "x", net.weight("w", 6, 3), out="y")
    graph = cuts.grad(cuts.with_loss(net.graph("y"), "mse_loss"), loss="loss", optimiser=cuts.SGD(momentum=0.9))
    graph.save(tmp_path / "t.json")
    files = [str(tmp_path / "t.json"), "--spec", str(tmp_path / "t.cuts"), "-o", str(tmp_path / "t.plan")]
    assert main(["tune", *files, "--budget", "6", "--quiet"]) in (0, 6)  # 6: it could have gone on
    plans = (cuts.load(tmp_path / "t.plan"), graph.build("opencl", tune=True, budget=6))
    given = [{"x": np.ones((4, 6), np.float32), "target": np.ones((4, 3), np.float32)}] * 2
    reference = graph.run(given, graph.build("reference"))
    for plan in plans:
        assert isinstance(plan, cuts.CompiledPlan)
        assert any("measured" in group for group in plan.plan.groups)
        assert graph.run(given, plan).losses == pytest.approx(reference.losses, rel=1e-5)
