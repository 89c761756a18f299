"""Column sums beside rows: parts of blocks, and totals."""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends import find_target
from cuts.backends.source import emit
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.source import Source
from cuts.ir.text import parse_ir
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.kernel import kernel_violations
from cuts.ir.verify.segment import verify_group
from cuts.ops import Registry, evaluate_graph
from cuts.passes import compile_graph
from cuts.passes.fusion.interpret import interpret
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.space import make_space
from cuts.passes.split.split_columns import split_columns

from ..needs import needs_opencl
from .cases import arrays, legal_points
from .test_points import SMALL_GPU, _device, _run, check

TYPES = (DType.F32, DType.F16, DType.BF16, DType.F64)


def norm_gradient(kind: DType, rows: tuple[int, ...], width: int) -> FusedGroup:
    """Return rows of a norm's gradient with two column sums."""
    axes = [f"i{n}" for n in range(len(rows))]
    at, shape = ", ".join(axes), ", ".join(map(str, rows))
    sums = kind.accumulator
    number = "" if kind is DType.F32 else f":{kind}"
    held = f"acc0[{at}]" if sums is kind else f"{kind}(acc0[{at}])"
    other = f"acc1[{at}]" if sums is kind else f"{kind}(acc1[{at}])"
    return verify_group(parse_ir(f"""
        var {", ".join(f"{a} < {e}" for a, e in zip(axes, rows, strict=True))}, r0 < {width}
        group {{
          tensor x: {kind}[{shape}, {width}]
          tensor g: {kind}[{shape}, {width}]
          tensor s: {kind}[{width}]
          tensor d: {kind}[{shape}, {width}]
          tensor u: {kind}[{width}]
          tensor v: {kind}[{width}]
          tensor acc0: {sums}[{shape}]
          tensor acc1: {sums}[{shape}]
          inputs x, g, s
          outputs d, u, v
          segment ({at}) {{
            reduce acc0 = sum over (r0) of x[{at}, r0]
            reduce acc1 = sum over (r0) of (x[{at}, r0] - {held} / {width}.0{number}) * (g[{at}, r0] * s[r0])
            output d[{at}, r0] for (r0) = g[{at}, r0] * s[r0] - {other} / {width}.0{number} * x[{at}, r0]
            output u[r0] across sum for (r0) = g[{at}, r0] * (x[{at}, r0] - {held} / {width}.0{number})
            output v[r0] across sum for (r0) = g[{at}, r0]
          }}
        }}
    """))  # fmt: skip


def parts_of(group: FusedGroup, parts: int) -> tuple[FusedGroup, FusedGroup]:
    """Return the kernels of partial sums and of totals."""
    found = split_columns(group, parts)
    assert found is not None
    return verify_group(found[0]), verify_group(found[1])


def schedules(group: FusedGroup, count: int) -> list[Schedule]:
    """Return legal points, half of them with a ring of rows."""
    space = make_space(group, SMALL_GPU)
    (template,) = space.templates
    found = legal_points(space, template, 5, 64)
    ring = [s for s in found if s.segments[0].reductions[0].stages > 1]
    plain = [s for s in found if s not in ring]
    assert ring and plain
    return [*ring[:count], *plain[:count]]


@pytest.mark.parametrize("rows", [(12,), (13,), (3, 5), (2,)], ids=str)
def test_parts_and_totals_compute_column_sums(rows: tuple[int, ...]) -> None:
    group = norm_gradient(DType.F32, rows, 40)
    inputs = arrays(group, 1)
    for parts in (1, 2, 4, 7):
        before, after = parts_of(group, parts)
        found = interpret(before, inputs)
        found |= interpret(after, {t: found[t] for t in after.inputs})
        for output, expected in interpret(group, inputs).items():
            np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-9)


@needs_opencl
@pytest.mark.parametrize(("kind", "rows", "width"), [
    *((kind, (13,), 40) for kind in TYPES), (DType.F32, (3, 5), 33), (DType.BF16, (17,), 64),
], ids=str)  # fmt: skip
def test_blocks_add_rows_in_registers(kind: DType, rows: tuple[int, ...], width: int) -> None:
    before, _ = parts_of(norm_gradient(kind, rows, width), 3)
    for schedule in schedules(before, 1):
        assert check_schedule(before, schedule, SMALL_GPU) == []
        kernel = lower(before, schedule, {}, SMALL_GPU)
        assert check_barriers(kernel) == ()
        assert kernel_violations(kernel) == []
        assert kernel_violations(extract(kernel), threads=True) == []
        check(_device("opencl"), SMALL_GPU, before, schedule)


@needs_opencl
@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_special_rows_reach_their_columns(kind: DType, special: float) -> None:
    before, after = parts_of(norm_gradient(kind, (13,), 40), 3)
    inputs = arrays(before, 1)
    inputs["g"][4, 7] = special
    inputs["x"][11, 2] = -special
    device, schedule = _device("opencl"), schedules(before, 1)[0]
    function = emit(extract(lower(before, schedule, {}, SMALL_GPU)), device.target.dialect)
    found = _run(device, function, before, inputs)
    with np.errstate(all="ignore"):
        wide = {name: array.astype(np.float64) for name, array in inputs.items()}
        expected = interpret(before, wide)
        sums = interpret(after, {t: found[t].astype(np.float64) for t in after.inputs})
    for output, values in expected.items():
        np.testing.assert_array_equal(np.isnan(found[output]), np.isnan(values), output)
    np.testing.assert_array_equal(np.flatnonzero(~np.isfinite(sums["v"])), [7], "other columns stay numbers")


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)], ids=str)
def test_norm_gradients_of_nothing_are_empty(shape: tuple[int, int]) -> None:
    types = {"x": TensorType(DType.F32, shape), **{n: TensorType(DType.F32, shape[1:]) for n in ("scale", "bias")}}
    norm = Node("y", "layer_norm", ("x", "scale", "bias"), ("y",), {"epsilon": 1e-5})
    graph = Graph("norm", ("x", "scale", "bias", "g"), ("y",), {**types, "y": types["x"], "g": types["x"]}, (norm,), {})
    training = cuts.grad(graph, loss="y", wrt=("x", "scale", "bias"), given="g")
    texts = (Source(f"{name}.cuts", text) for name, text in training.spec.texts.items())
    model = evolve(training.graph, outputs=tuple(training.gradients.values()))
    found = evaluate_graph(model, Registry.builtin().extend_generated(*texts), {
        n: np.ones(t.shape, np.float32) for n, t in types.items()} | {"g": np.ones(shape, np.float32)})  # fmt: skip
    for name, value in zip(("x", "scale", "bias"), model.outputs, strict=True):
        np.testing.assert_array_equal(found[value], np.zeros(types[name].shape))


@pytest.mark.parametrize("kind", [DType.F32, DType.BF16], ids=str)
def test_gradients_of_norms_read_operands_once(kind: DType) -> None:
    types = {"x": TensorType(kind, (4096, 1024)), **{n: TensorType(kind, (1024,)) for n in ("scale", "bias")}}
    norm = Node("y", "layer_norm", ("x", "scale", "bias"), ("y",), {"epsilon": 1e-5})
    graph = Graph("norm", ("x", "scale", "bias", "g"), ("y",), {**types, "y": types["x"], "g": types["x"]}, (norm,), {})
    training = cuts.grad(graph, loss="y", wrt=("x", "scale", "bias"), given="g")
    texts = (Source(f"{name}.cuts", text) for name, text in training.spec.texts.items())
    model = evolve(training.graph, outputs=tuple(training.gradients.values()))
    compiled = compile_graph(
        model, Registry.builtin().extend_generated(*texts), find_target("cuda:h200"), CompileOptions(), emit
    )
    row, total = (compiled.kernels[step.kernel] for step in compiled.steps)
    assert [len([a for a in k.arguments if not a.written]) for k in (row, total)] == [3, 2]
