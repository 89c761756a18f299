"""Consumers of piecewise tensors are piecewise, and share one kernel with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.ir.statement import Program
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.piecewise import split_piecewise_readers
from cuts.passes.fusion.programs import build_programs
from cuts.passes.inspection.verify import verify_programs
from cuts.tests.amounts import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_opencl
from .build import REGISTRY, graph, op

READERS = {
    "relu": ([op("y", "relu", "a")], "y"),
    "a chain": ([op("s", "relu", "a"), op("t", "add", "s", "r"), op("y", "mul", "t", "g")], "y"),
    "two readers": ([op("s", "relu", "a"), op("t", "tanh", "a"), op("y", "sub", "s", "t")], "y"),
    "an output on the way": ([op("s", "relu", "a"), op("y", "mul", "s", "g")], "s y"),
    "turned": ([op("s", "relu", "a"), op("y", "transpose", "s", perm=(0, 2, 1))], "y"),
    "squared": ([op("y", "mul", "a", "a")], "y"),
    "no reader of its own": ([op("y", "reduce_max", "a", axes=(2,))], "y"),
}


def model(kernel: int, stride: int, pad: int, more: int, image: int, bias: bool, readers: str) -> Graph:
    size = (image - 1) * stride + kernel - 2 * pad + more
    shapes = {"x": (2, 8, image), "w": (8, 3, kernel), "b": (3,), "r": (2, 3, size), "g": (3, 1)}
    attributes: dict[str, Any] = {"strides": (stride,), "pads": (pad, pad), "output_padding": (more,)}
    lines, out = READERS[readers]
    first = op("a", "conv_transpose", "x", "w", *(["b"] if bias else []), **attributes)
    used = {"x", "w", *(["b"] if bias else []), *(t for line in lines for t in line[2] if t in ("r", "g"))}
    return graph({name: shape for name, shape in shapes.items() if name in used}, first, *lines, out=out)


@settings(max_examples=examples(40, 800), deadline=None)
@given(
    st.integers(1, 5), st.integers(2, 4), st.integers(0, 2), st.integers(0, 1), st.integers(1, 5), st.booleans(),
    st.sampled_from(list(READERS)), st.booleans(),
)  # fmt: skip
def test_pieces_compute_the_same(
    kernel: int, stride: int, pad: int, more: int, image: int, bias: bool, readers: str, extreme: bool
) -> None:
    assume((image - 1) * stride + kernel - 2 * pad + more > 0)
    whole = model(kernel, stride, pad, more, image, bias, readers)
    programs = split_piecewise_readers(build_programs(whole, REGISTRY))
    statements = tuple(s for u in programs.units for s in u.statements)
    program = Program(programs.types, whole.inputs, whole.outputs, statements, programs.tables)
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(whole.types[name].shape) for name in whole.inputs}
    if extreme:
        inputs["x"].flat[:3] = [np.nan, np.inf, -0.0][: inputs["x"].size]
    expected, found = evaluate_graph(whole, REGISTRY, inputs), evaluate(program, inputs)
    for name in whole.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9)


def test_pieces_of_units_have_unique_names() -> None:
    """The gradients of a node's operands are called like pieces are."""
    whole = model(3, 2, 1, 0, 4, False, "a chain")
    named = dict(zip([node.name for node in whole.nodes], ["first", "n", "n.1", "n.1.0"], strict=True))
    whole = evolve(whole, nodes=tuple(evolve(node, name=named[node.name]) for node in whole.nodes))
    programs = split_piecewise_readers(build_programs(whole, REGISTRY))
    names = [unit.name for unit in programs.units]
    assert len(set(names)) == len(names)
    verify_programs(programs)


@needs_opencl
@pytest.mark.parametrize(
    ("readers", "kernels"),
    [("a chain", 2), ("squared", 2), ("two readers", 3), ("an output on the way", 3), ("no reader of its own", 3)],
)
def test_pieces_are_one_kernel_with_what_reads_them(readers: str, kernels: int) -> None:
    plan = build_graph(
        model(3, 2, 1, 1, 9, False, readers), load_spec([]), find_target("opencl"), CompileOptions(verify=True)
    )
    assert len(plan.plan.steps) == kernels
    assert all(result.ok for result in plan.verify())
