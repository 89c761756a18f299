"""Precision policies.

Under each policy, every operation keeps its meaning and borders.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.compile.build import build
from cuts.ir.errors import UsageError
from cuts.ir.graph import Graph, Node
from cuts.ir.machine import PRECISIONS
from cuts.ir.text import print_graph
from cuts.ir.types import DType, TensorType
from cuts.ir.verify import violations
from cuts.numerics.comparison import magnitude, relative_error
from cuts.numerics.reference import run_reference
from cuts.numerics.tolerance import tolerance
from cuts.ops import Registry
from cuts.passes.graph.precision import LowerPrecision
from cuts.runtime.files.plan_file import load_plan
from cuts.runtime.step_comparison import first_wrong_step
from cuts.tests import operations
from cuts.tests.fusion.build import graph, op
from cuts.tests.needs import needs_opencl

REGISTRY = Registry.builtin()
INSTANCES = REGISTRY.instances
HALVES = ("fp16", "bf16")
MADE_GRAPH = graph(
    {"x": (8, 16), "w": (16, 32), "b": (32,), "s": (32,), "v": (32, 4)},
    op("m", "matmul", "x", "w"), op("a", "add", "m", "b"), op("r", "gelu", "a"), op("n", "layer_norm", "r", "s"),
    op("q", "add", "n", "r"), op("e", "exp", "q"), op("z", "mul", "e", "b"), op("y", "matmul", "z", "v"),
    out="y",
)  # fmt: skip


def lower_precision(made: Graph, policy: str) -> Graph:
    found = LowerPrecision(INSTANCES, PRECISIONS[policy]).run(made)
    assert not list(violations(found, INSTANCES.infer))
    assert len({node.name for node in found.nodes}) == len(found.nodes)
    assert [found.types[v] for v in (*found.inputs, *found.outputs)] == [
        made.types[v] for v in (*made.inputs, *made.outputs)
    ]
    return found


def test_sums_and_large_values_stay_f32() -> None:
    found = lower_precision(MADE_GRAPH, "fp16")
    text = {line.partition(" = ")[0].strip(): line.partition(" = ")[2] for line in print_graph(found).splitlines()}
    assert text["%m: f16[8, 32]"].startswith("matmul(%x.f16, %w.f16)")
    assert text["%r: f16[8, 32]"].startswith("gelu(%a)")
    assert text["%n: f32[8, 32]"].startswith("layer_norm(%r.f32, %s)")
    assert text["%q: f16[8, 32]"].startswith("add(%n.f16, %r)")
    assert text["%e: f32[8, 32]"].startswith("exp(%q.f32)")
    assert text["%z: f32[8, 32]"].startswith("mul(%e, %b)")
    assert text["%y.f16: f16[8, 4]"].startswith("matmul(%z.f16, %v.f16)")
    assert text["%y: f32[8, 4]"].startswith("cast(%y.f16)")


def test_strict_f32_changes_nothing() -> None:
    assert lower_precision(MADE_GRAPH, "fp32") is MADE_GRAPH


@pytest.mark.parametrize("policy", HALVES)
def test_constants_are_converted_and_stay_finite(policy: str) -> None:
    mask = np.array([0.0, -3.4028235e38, -np.inf, 1 / 3], np.float32)
    types = {"x": TensorType(DType.F32, (4,)), "m": TensorType(DType.F32, (4,)), "y": TensorType(DType.F32, (4,))}
    made = Graph("masked", ("x",), ("y",), types, (Node("n", "add", ("x", "m"), ("y",)),), {"m": mask})
    (array,) = lower_precision(made, policy).constants.values()
    stored = PRECISIONS[policy].stored
    wide = array.astype(np.float64)
    assert array.dtype == stored.numpy
    assert wide[:3].tolist() == [0.0, -float(stored.element.largest), -np.inf]
    assert abs(wide[3] * 3 - 1) <= stored.element.epsilon


@pytest.mark.parametrize("policy", HALVES)
@pytest.mark.parametrize("use", [*operations.DIFFERENTIABLE, *operations.SCALAR, *operations.FLAT], ids=lambda u: u.op)
def test_every_operation_keeps_its_meaning(use: Any, policy: str) -> None:
    instance, values = use.instance, use.values()
    names = [n for n in instance.inputs if n is not None]
    types = {n: t for n, t in zip(instance.inputs, use.types, strict=False) if n is not None and t is not None}
    outputs = tuple(f"{n}.made" for n in instance.outputs)
    types |= dict(zip(outputs, instance.output_types, strict=True))
    operands = tuple(n if t is not None else None for n, t in zip(instance.inputs, use.types, strict=False))
    made = Graph("one", tuple(n for n in names if n in types), outputs, types,
                 (Node(outputs[0], use.op, operands, outputs, use.attributes),))  # fmt: skip
    found = lower_precision(made, policy)
    given = {n: np.asarray(v).astype(types[n].dtype.numpy) for n, v in values.items()}
    expected = run_reference(made, REGISTRY, given)
    got = run_reference(found, REGISTRY, given)
    halves = [v for v in found.types.values() if v.dtype is PRECISIONS[policy].stored]
    for name in outputs:
        kind = types[name].dtype
        if not kind.is_float or not halves:
            continue
        # Operands are rounded, so results may differ by more than one rounding error.
        allowed = 4 * tolerance(kind, 1, 4, PRECISIONS[policy].stored)
        error = relative_error(got[name], expected[name], magnitude(expected[name]))
        assert np.median(error) <= allowed, f"{name}: {error.max()}"


@needs_opencl
@pytest.mark.parametrize("policy", HALVES)
def test_a_reopened_plan_keeps_its_policy(policy: Any, tmp_path: Any) -> None:
    plan = build(MADE_GRAPH, "opencl", precision=policy)
    stored = PRECISIONS[policy].stored
    assert stored in {a.dtype for k in plan.kernels for a in k.arguments}
    small = {name: array / 4 for name, array in plan.random_inputs().items()}  # powers of normal numbers outgrow f16
    assert all(result.ok for result in plan.verify(small))
    if policy == "fp16":
        plan = build(MADE_GRAPH, "opencl", precision=policy, mode="no-fusion")
        assert not all(result.ok for result in plan.verify())
        given = plan.random_inputs()
        text = first_wrong_step(plan.session, given, plan.reference_values(given), plan.tolerances())
        assert "values outgrow f16 (at most 65504), the first at [" in text
    plan.save(tmp_path / "it.plan")
    opened = load_plan(tmp_path / "it.plan")
    assert opened.model is not None and opened.model.precision == policy


@pytest.mark.parametrize(
    ("precision", "target", "message"),
    [
        ("fp8", "cuda:sm_90", "unknown precision 'fp8'; precisions are: fp32, fp32x3, tf32, bf16, fp16"),
        ("bf16", "reference", "target 'NumPy reference' has no kernels, so it cannot follow precision 'bf16'; "
         "it can follow: fp32"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(precision: Any, target: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        build(MADE_GRAPH, target, precision=precision)
    assert str(error.value) == message
