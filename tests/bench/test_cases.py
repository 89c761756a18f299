"""Cases of the benchmark: graphs, agreement with PyTorch, memory of tuned parts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Launch
from cuts.backends.devices import find_target
from cuts.backends.opencl.device import OpenCLDevice
from cuts.backends.source.emit import emit
from cuts.bench.operators import suite_run
from cuts.bench.operators.cases import KINDS, gradient_case
from cuts.bench.operators.contenders import function_of
from cuts.bench.operators.ops import Suite, arguments
from cuts.bench.operators.shapes import (
    TO_FIRST,
    TO_LAST,
    Case,
    convolution_case,
    memory_cases,
    read_convolution,
    single,
)
from cuts.bench.operators.timing import Contender, in_turns, sets_for
from cuts.bench.operators.tuning import Tuned, TunedBuffers, bind, fill, least_work, tune, vocabulary_of
from cuts.bench.tools.goals import summary
from cuts.bench.tools.records import circumstances, read_rows
from cuts.numerics.reference import run_reference
from cuts.ops import Registry, evaluate_graph
from cuts.tests.backends.hosts import HostDevice
from cuts.tests.needs import needs_opencl

SMALL_CASES = [
    single(
        "conv", "c", 2, "conv", ((2, 4, 9, 9), (6, 4, 3, 3)), {"strides": (2, 2), "pads": (1, 1, 1, 1), "groups": 1}, 1
    ),
    single("gemm", "m", 1, "matmul", ((5, 7), (7, 6)), {}, 1),
    single("gemv", "d", 1, "gemm", ((2, 7), (6, 7)), {"trans_b": True}, 1),
]


def small(case: Case) -> Case:
    """Return a case with every large dim cut down."""
    return evolve(
        case,
        inputs={
            t: tuple(min(n, 8 if len(s) > 2 else 24) if n != 64 else 64 for n in s) for t, s in case.inputs.items()
        },
    )


OPERATIONS = list({c.nodes[0][0] + str(len(c.nodes)): small(c) for c in memory_cases()}.values())


GRADIENTS = [
    gradient_case(convolution_case(read_convolution(text)[0], 2), position, kind)
    for text in ("4x9 6x3x3 /2 +1", "4x6 5x1x3 +0,1", "6x5 6x3x3 +1 dw", "2x5 3x3x3 +1")
    for position, kind in enumerate(KINDS)
]


@pytest.mark.parametrize("case", [*SMALL_CASES, *OPERATIONS, *GRADIENTS], ids=lambda case: case.name)
def test_pytorch_computes_the_same(case: Case) -> None:
    torch = pytest.importorskip("torch")
    registry = vocabulary_of([case])
    generator = np.random.default_rng(0)
    arrays = {t: np.abs(generator.standard_normal(s)).astype(np.float32) for t, s in case.inputs.items()}
    (wanted,) = run_reference(case.graph(registry), registry, arrays).values()
    found = function_of(case, torch)(*(torch.from_numpy(a) for a in arrays.values()))
    np.testing.assert_allclose(found.numpy().reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def test_least_work_counts_minimal_traffic_and_work() -> None:
    work, moved = least_work(single("gemm", "m", 1, "matmul", ((64, 32), (32, 16)), {}))
    assert work == 2 * 64 * 32 * 16
    assert moved == 4 * (64 * 32 + 32 * 16 + 64 * 16)


def test_sets_of_tensors_are_larger_than_the_cache() -> None:
    assert sets_for(4 << 20, 60 << 20) == 60
    assert sets_for(1 << 30, 60 << 20) == 1
    assert sets_for(16, 60 << 20) == 128


def test_contenders_take_turns() -> None:
    device, order = HostDevice(), []

    def contender(name: str, seconds: float) -> Contender:
        def run() -> None:
            order.append(name)
            device._took += seconds

        return Contender(name, run, 4)

    timings = in_turns(device, [contender("a", 4e-3), contender("b", 8e-3)], rounds=3)
    assert timings["a"].median == pytest.approx(1e-3)
    assert timings["b"].median == pytest.approx(2e-3)
    assert order[-4:] == ["a", "b", "a", "b"]


@needs_opencl
def test_cases_compiled_together_compute_what_each_is() -> None:
    device = OpenCLDevice(find_target("opencl"))
    cases = [*SMALL_CASES, *[c for c in OPERATIONS if c.nodes[0][0] in ("layer_norm", "batch_norm")]]
    for tuned in tune(cases, device.target, emit, None):
        memory = fill(tuned, device)
        second = TunedBuffers(tuned, device)
        second.copy(memory)
        launches: list[Launch] = bind(tuned, device, [memory, second])
        launches[1]()
        registry = Registry.builtin()
        arrays = {}
        for name, shape in tuned.case.inputs.items():
            arrays[name] = np.empty(shape, np.float32)
            device.download(arrays[name], memory.place(tuned.name(name)))
        (wanted,) = run_reference(tuned.case.graph(registry), registry, arrays).values()
        found = np.empty(wanted.shape, np.float32)
        device.download(found, second.place(tuned.name(tuned.case.nodes[-1][2])))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@needs_opencl
def test_a_suite_writes_a_row_for_every_case(tmp_path: Path) -> None:
    device = OpenCLDevice(find_target("opencl"))
    options: Namespace = arguments(
        ["--no-peers", "--budget", "0", "--out", str(tmp_path / "ops.json"), "--target", "opencl"]
    )
    suite = Suite(options, device.target, device, None, [], circumstances("x", "abc"))
    suite.run(SMALL_CASES)
    rows = read_rows(tmp_path / "ops.json")
    assert [row["name"] for row in rows] == ["c", "m", "d"]
    assert all(row["cuts_ms"] > 0 and row["bound_ms"] > 0 for row in rows)


@needs_opencl
def test_classes_alternate_and_a_failure_costs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = OpenCLDevice(find_target("opencl"))
    known = ["--no-peers", "--mixed", "--budget", "0", "--out", str(tmp_path / "ops.json"), "--target", "opencl"]
    suite = Suite(arguments(known), device.target, device, None, [], circumstances("x", "abc"))

    def fails(cases: Sequence[Case], *others: Any) -> list[Tuned]:
        if any(case.name == "d" for case in cases):
            raise AssertionError("of the compiler")
        return tune(cases, *others)

    monkeypatch.setattr(suite_run, "tune", fails)
    suite.run([*(c for pair in zip(GRADIENTS[::2], GRADIENTS[1::2], strict=True) for c in pair), *SMALL_CASES])
    rows = read_rows(tmp_path / "ops.json")
    assert [row["class"] for row in rows[:5]] == ["dgrad", "wgrad", "conv", "gemm", "gemv"]
    assert [(row["name"], row["failure"]) for row in rows if row["cuts_ms"] is None] == [("d", "of the compiler")]
    assert "no result: d b1: of the compiler" in summary(rows)
    assert len(rows) == len(GRADIENTS) + len(SMALL_CASES)


def test_images_of_a_case_may_have_channels_last() -> None:
    registry = Registry.builtin()
    attributes = {"strides": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    case = single("conv", "small", 2, "conv", ((2, 3, 5, 4), (6, 3, 3, 3)), attributes, 1)
    last = evolve(case, channels_last=True)
    assert (case.key, last.key) == ("conv/small/b2", "conv/small/b2/channels last")
    graph = last.graph(registry)
    assert [graph.types[t].shape for t in ("x0", "x1", "y")] == [(2, 5, 4, 3), (6, 3, 3, 3), (2, 5, 4, 6)]
    image, weight = (np.random.default_rng(n).standard_normal(s) for n, s in enumerate(case.inputs.values()))
    wanted = evaluate_graph(case.graph(registry), registry, {"x0": image, "x1": weight})["y"]
    found = evaluate_graph(graph, registry, {"x0": image.transpose(TO_LAST), "x1": weight})["y"]
    np.testing.assert_array_equal(found.transpose(TO_FIRST), wanted)


@pytest.mark.parametrize("position", [0, 1])
def test_gradients_of_a_case_may_have_channels_last(position: int) -> None:
    attributes = {"strides": (2, 2), "pads": (1, 1, 1, 1), "groups": 1}
    forward = single("conv", "small", 2, "conv", ((2, 3, 5, 4), (6, 3, 3, 3)), attributes, 1)
    case = gradient_case(forward, position, KINDS[position])
    last, registry = evolve(case, channels_last=True), vocabulary_of([case])
    given = {name: np.random.default_rng(n).standard_normal(s) for n, (name, s) in enumerate(case.inputs.items())}
    turned = {name: array.transpose(TO_LAST) for name, array in given.items()}
    (wanted,) = evaluate_graph(case.graph(registry), registry, given).values()
    (found,) = evaluate_graph(last.graph(registry), registry, turned).values()
    np.testing.assert_array_equal(found.transpose(TO_FIRST), wanted)
