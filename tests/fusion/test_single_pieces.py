"""Tensors whose pieces are zero except one.

The piece is a dense tensor, and one elementwise statement spreads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.gradient.gradients import Gradients
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.programs import build_programs
from cuts.passes.inspection.verify import verify_programs
from cuts.tests.amounts import examples
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from ..needs import needs_opencl


def data_gradient(image: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any) -> tuple[Graph, Registry]:
    """Return the gradient of a convolution's image."""
    gradients = Gradients(Registry.builtin())
    types = [TensorType(DType.F32, (2, 8, *image)), TensorType(DType.F32, (9, 8, *kernel))]
    instance = gradients.registry["conv"].instantiate(types, attributes)
    steps = gradients.steps(instance, ("x",), ("y",))
    if not steps:
        reject()  # a border is all that is read
    (step,) = steps
    known = {"w": types[1], "dy": instance.output_types[0], "dx": types[0]}
    values = {name: known[name] for name in (*step.inputs, "dx") if name is not None}
    return Graph("g", step.operands, ("dx",), values, (Node("n", step.op, step.inputs, ("dx",)),)), gradients.registry


@settings(max_examples=examples(40, 800), deadline=None)
@given(st.data())
def test_what_is_spread_is_the_gradient(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    image, kernel, strides = ([data.draw(st.integers(1, most)) for _ in range(rank)] for most in (7, 2, 4))
    pads = [data.draw(st.integers(0, 1)) for _ in range(2 * rank)]
    ends = zip(image, kernel, pads, pads[rank:], strict=False)
    assume(all(i + a + b >= k for i, k, a, b in ends))
    whole, registry = data_gradient(tuple(image), tuple(kernel), strides=tuple(strides), pads=tuple(pads))
    programs = build_programs(whole, registry)
    verify_programs(programs)
    statements = tuple(s for unit in programs.units for s in unit.statements)
    program = Program(programs.types, whole.inputs, whole.outputs, statements, programs.tables)
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(whole.types[name].shape) for name in whole.inputs}
    expected, found = evaluate_graph(whole, registry, inputs), evaluate(program, inputs)
    np.testing.assert_allclose(found["dx"], expected["dx"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("kernel", "pieces"), [(1, 1), (3, 4)])
def test_one_piece_alone_is_spread(kernel: int, pieces: int) -> None:
    whole, registry = data_gradient((8, 8), (kernel, kernel), strides=(2, 2))
    units = build_programs(whole, registry).units
    writers = [unit for unit in units if "dx" in unit.writes]
    assert len(writers) == pieces
    assert len(units) == pieces + (pieces == 1)
    assert (writers[0].statements[0].combine is None) == (pieces == 1)


@needs_opencl
def test_spread_on_a_device() -> None:
    whole, registry = data_gradient((8, 7), (1, 1), strides=(2, 3))
    plan = build_graph(whole, Spec(registry, {}), find_target("opencl"), CompileOptions())
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(whole.types[name].shape).astype(np.float32) for name in whole.inputs}
    (expected,) = evaluate_graph(whole, registry, inputs).values()
    np.testing.assert_allclose(plan.run(inputs)["dx"], expected, rtol=1e-5, atol=1e-5)
