"""Repeated layers: their groups are those of the whole graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ir.graph import Graph, Interface
from cuts.ir.types import DType, TensorType
from cuts.passes import pipeline
from cuts.passes.graph.repeated_layers import KEPT_FIRST, KEPT_LAST, find_repeated_layers
from cuts.passes.record_decisions import record_decisions
from cuts.runtime import make_plan

from ..kernels.cases import ByModel
from .build import REGISTRY, Line, graph, op

TARGET, LAYERS, LAYER_WIDTH = find_target("cuda:h200"), 9, 64


def layer(n: int) -> Sequence[Line]:
    """Return a layer: a norm, two products, a counter in place."""
    h = f"h{n}"
    return [
        op(f"s{n}", "mul", h, h),
        op(f"m{n}", "reduce_mean", f"s{n}", axes=(-1,), keepdims=True),
        op(f"r{n}", "rsqrt", f"m{n}"),
        op(f"n{n}", "mul", h, f"r{n}"),
        op(f"a{n}", "matmul", f"n{n}", f"w{n}"),
        op(f"c{n}.next", "add", f"c{n}", "one"),
        op(f"g{n}", "gelu", f"a{n}"),
        op(f"t{n}", "transpose", f"g{n}", perm=(1, 0)),
        op(f"u{n}", "mul", f"t{n}", "scale"),
        op(f"v{n}", "transpose", f"u{n}", perm=(1, 0)),
        op(f"b{n}", "matmul", f"v{n}", f"x{n}"),
        op(f"e{n}", "exp", f"b{n}"),
        op(f"d{n}", "add", f"e{n}", f"c{n}"),
        op(f"h{n + 1}", "add", f"d{n}", h),
    ]


def decoder(*more: Line, layers: int = LAYERS, wide: Sequence[int] = ()) -> Graph:
    """Return layers with inputs of their own; those of `wide` are wider."""
    inputs: dict[str, tuple[int, ...]] = {
        "x": (32, LAYER_WIDTH),
        "scale": (1, 32),
        "one": (1,),
        "last": (LAYER_WIDTH, 8),
    }
    for n in range(layers):
        width = 2 * LAYER_WIDTH if n in wide else LAYER_WIDTH
        inputs |= {f"w{n}": (LAYER_WIDTH, width), f"x{n}": (width, LAYER_WIDTH), f"c{n}": (1,)}
    lines = [op("h0", "exp", "x"), *(line for n in range(layers) for line in layer(n)), *more]
    lines.append(op("y", "matmul", f"h{layers}", "last"))
    counters = [f"c{n}.next" for n in range(layers)]
    made = graph(inputs, *lines, out=" ".join(("y", *counters)))
    return evolve(made, interface=Interface(updates={f"c{n}": f"c{n}.next" for n in range(layers)}))


def compile_untuned(made: Graph, monkeypatch: pytest.MonkeyPatch | None = None) -> CompiledGraph:
    """Compile a graph; with `monkeypatch` without a search for layers."""
    if monkeypatch:
        monkeypatch.setattr(pipeline, "find_repeated_layers", lambda graph: None)
    return pipeline.compile_graph(made, REGISTRY, TARGET, CompileOptions(), emit)


def test_shorter_graph_keeps_ends() -> None:
    layers = find_repeated_layers(decoder())
    assert layers is not None and layers.size == len(layer(0))
    short = layers.shorten()
    assert short is not None
    assert len(decoder().nodes) - len(short.nodes) == layers.removed * layers.size
    assert layers.count == LAYERS == layers.removed + KEPT_FIRST + KEPT_LAST
    assert {"w0", "w1", f"w{LAYERS - 1}", "c0.next"} <= {*short.types} and "w4" not in short.types


def test_plans_equal_those_of_whole_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = decoder()
    short = compile_untuned(made)
    whole = compile_untuned(made, monkeypatch)
    assert [kernel.source for kernel in short.kernels] == [kernel.source for kernel in whole.kernels]
    names: dict[str, str] = {name: name for name in (*made.inputs, *made.outputs)}
    for ours, theirs in zip(short.steps, whole.steps, strict=True):
        assert ours.kernel == theirs.kernel
        assert [names.setdefault(b, a) for a, b in zip(ours.tensors, theirs.tensors, strict=True)] == [*ours.tensors]
    assert len({*names.values()}) == len(names)
    assert [record["nodes"] for record in short.groups] == [record["nodes"] for record in whole.groups]
    plans = [make_plan(each, TARGET) for each in (short, whole)]
    assert plans[0].arena == plans[1].arena and {} != plans[0].in_place == plans[1].in_place


def test_decisions_equal_those_of_whole_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made, records = decoder(), []
    for _ in range(2):
        context = ByModel(TARGET).context(REGISTRY, TARGET, CompileOptions(), emit)
        stages = dict(pipeline.stage_results(made, context))
        records.append(record_decisions(stages["launches"], context))
        monkeypatch.setattr(pipeline, "find_repeated_layers", lambda graph: None)
    assert records[0] == records[1]


def test_differing_layers_are_no_repetition() -> None:
    assert find_repeated_layers(decoder(wide=[4])) is None
    made = decoder()
    numbers = {f"w{n}": np.full((LAYER_WIDTH, LAYER_WIDTH), n, np.float32) for n in range(LAYERS)}
    inputs = tuple(name for name in made.inputs if name not in numbers)
    assert find_repeated_layers(evolve(made, inputs=inputs, constants=numbers)) is None


def test_layers_that_count_are_no_repetition() -> None:
    number = TensorType(DType.I32, (1,))
    lines = [op(f"k{n + 1}", "add", f"k{n}", "one") for n in range(80)]
    assert find_repeated_layers(graph({"k0": number, "one": number}, *lines, out="k80")) is None
    floats = TensorType(DType.F32, (1,))
    assert find_repeated_layers(graph({"k0": floats, "one": floats}, *lines, out="k80")) is not None


def test_values_that_all_layers_return_together_stay() -> None:
    made = decoder(op("z", "concat", *(f"n{n}" for n in range(LAYERS)), axis=0))
    layers = find_repeated_layers(made)
    assert layers is not None and layers.shorten() is None
