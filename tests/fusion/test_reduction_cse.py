"""Reduction CSE: the statistics of a norm serve its gradient."""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.ir.graph import Graph
from cuts.ir.statement import Program
from cuts.ops import Registry
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.cut_units import MAX_KEPT_ROW
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.sums.reduction_cse import eliminate_common_reductions
from cuts.passes.inspection.verify import verify_programs

from .build import REGISTRY, graph, op


def norm(channels: int, size: int) -> tuple[Graph, Registry]:
    """Return a batch norm with a loss, and its gradient."""
    shapes = {"x": (2, channels, size, size), **dict.fromkeys(("s", "b", "m", "v"), (channels,))}
    forward = op("y rm rv", "batch_norm_training", "x", "s", "b", "m", "v")
    square = op("q", "mul", "y", "y")
    made = cuts.grad(
        graph(shapes, forward, square, op("l", "reduce_sum", "q", keepdims=False), out="l"), wrt=["x", "s", "b"]
    )
    return made.graph, made.spec.registry


def sums(programs: Programs) -> int:
    return sum(s.combine is not None for unit in programs.units for s in unit.statements)


@pytest.mark.parametrize(("channels", "size"), [(3, 9), (2, 100)])
def test_statistics_of_a_norm_are_computed_once(channels: int, size: int) -> None:
    whole, registry = norm(channels, size)
    before = build_programs(whole, registry)
    after = eliminate_common_reductions(before)
    verify_programs(after)
    assert sums(before) - sums(after) == 2  # the mean and the variance
    statements = tuple(s for unit in after.units for s in unit.statements)
    program = Program(after.types, whole.inputs, whole.outputs, statements, after.tables)
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(whole.types[name].shape) for name in whole.inputs}
    inputs |= dict(whole.constants)
    found = evaluate(Program(program.tensors, tuple(inputs), whole.outputs, statements, after.tables), inputs)
    for name, expected in evaluate_graph(whole, registry, {n: inputs[n] for n in whole.inputs}).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, atol=1e-9)


def test_values_of_their_operands_size_are_rematerialised() -> None:
    shapes = {"x": (64, 64)}
    whole = graph(shapes, op("a", "softmax", "x"), op("b", "softmax", "x"), op("y", "add", "a", "b"), out="y")
    after = eliminate_common_reductions(build_programs(whole, REGISTRY))
    assert sums(after) == 3  # the maximum is shared, not the exponentials
    assert {"a", "b"} <= {t for unit in after.units for t in unit.writes}


def test_outputs_stay() -> None:
    shapes = {"x": (4, 128)}
    lines = [op(name, "reduce_sum", "x", axes=(1,)) for name in ("a", "b")]
    programs = eliminate_common_reductions(build_programs(graph(shapes, *lines, out="a b"), REGISTRY))
    assert sorted(t for unit in programs.units for t in unit.writes) == ["a", "b"]


@pytest.mark.parametrize("size", [100, 400])
def test_too_long_rows_have_kernels_of_their_own(size: int) -> None:
    whole, registry = norm(65, size)
    units = build_programs(whole, registry).units
    first = [unit for unit in units if unit.op == "batch_norm_training"]
    assert (2 * size * size > MAX_KEPT_ROW) == (len(first) > 1)


def test_masked_scores_are_what_their_gradient_reads() -> None:
    """A mask has other bounds in a derived declaration.

    The greatest scores and their sum are the same.
    """
    shapes = dict.fromkeys("qkv", (1, 2, 64, 64))
    forward = op("y", "attention", "q", "k", "v", causal=True)
    made = cuts.grad(graph(shapes, forward, op("l", "reduce_sum", "y", keepdims=False), out="l"), wrt=["q"])
    before = build_programs(evolve(made.graph, outputs=(*made.graph.outputs, "y")), made.spec.registry)
    # scores, their greatest, the sum of exponentials
    assert sums(before) - sums(eliminate_common_reductions(before)) == 3
