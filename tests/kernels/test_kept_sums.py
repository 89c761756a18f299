"""Sums of rows that keep axes, beside outputs along these rows."""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends import find_target
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.source import emit as emit_source
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.machine import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.source import Source
from cuts.ir.text import parse_ir
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.kernel import kernel_violations
from cuts.ir.verify.segment import verify_group
from cuts.ops import Registry
from cuts.passes import compile_graph
from cuts.passes.fusion.interpret import interpret
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.model import features_of
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.space import make_space
from cuts.passes.split.split_columns import column_candidates, split_columns

from ..emission import emit
from ..needs import needs_opencl, needs_toolchain
from .cases import arrays, legal_points
from .test_points import GPU, SMALL_GPU, _device, _run, check
from .test_row_cache import DEVICES

TINY_GPU = evolve(SMALL_GPU, MAX_thread=8)


def group_gradient(kind: DType, row: tuple[int, ...], kept: tuple[int, ...], own: bool = False) -> FusedGroup:
    """Return rows of a group norm's gradient, with two kept sums."""
    axes = [f"r{n}" for n in range(len(row))]
    at, shape = ", ".join(axes), ", ".join(map(str, row))
    to, size = (", ".join(f"{part[n]}" for n in kept) for part in (axes, row))
    place, sizes = (f"i0, i1, {to}", f"5, 3, {size}") if own else (f"i1, {to}", f"3, {size}")
    sums, number = kind.accumulator, "" if kind is DType.F32 else f":{kind}"
    held, other = (f"{a}[i0, i1]" if sums is kind else f"{kind}({a}[i0, i1])" for a in ("acc0", "acc1"))
    count, mean = float(np.prod(row)), f"(x[i0, i1, {at}] - {held} / {float(np.prod(row))}{number})"
    return verify_group(parse_ir(f"""
        var i0 < 5, i1 < 3, {", ".join(f"{a} < {e}" for a, e in zip(axes, row, strict=True))}
        group {{
          tensor x: {kind}[5, 3, {shape}]
          tensor g: {kind}[5, 3, {shape}]
          tensor s: {kind}[3, {size}]
          tensor d: {kind}[5, 3, {shape}]
          tensor u: {kind}[{sizes}]
          tensor v: {kind}[{sizes}]
          tensor acc0: {sums}[5, 3]
          tensor acc1: {sums}[5, 3]
          inputs x, g, s
          outputs d, u, v
          segment (i0, i1) {{
            reduce acc0 = sum over ({at}) of x[i0, i1, {at}]
            reduce acc1 = sum over ({at}) of {mean} * (g[i0, i1, {at}] * s[i1, {to}])
            output d[i0, i1, {at}] for ({at}) =
              g[i0, i1, {at}] * s[i1, {to}] - {other} / {count}{number} * x[i0, i1, {at}]
            output u[{place}] across sum for ({at}) = g[i0, i1, {at}] * {mean}
            output v[{place}] across sum for ({at}) = g[i0, i1, {at}]
          }}
        }}
    """))  # fmt: skip


def kernels(group: FusedGroup, parts: int) -> tuple[FusedGroup, FusedGroup]:
    """Return the kernels of each instance's sums and of totals."""
    found = split_columns(group, parts)
    assert found is not None
    return verify_group(found[0]), verify_group(found[1])


FORMS = (((4, 16), (0,)), ((3, 7, 5), (0,)), ((6, 4, 8), (2,)), ((9, 2), (1,)), ((2, 6, 4), (0, 2)))


@pytest.mark.parametrize(("row", "kept"), FORMS, ids=str)
def test_instances_and_totals_compute_kept_sums(row: tuple[int, ...], kept: tuple[int, ...]) -> None:
    group = group_gradient(DType.F32, row, kept)
    inputs = arrays(group, 1)
    for parts in column_candidates(group, GPU):
        if (found := split_columns(group, parts)) is None:
            continue
        results = interpret(found[0], inputs)
        results |= interpret(found[1], {t: results[t] for t in found[1].inputs})
        for output, expected in interpret(group, inputs).items():
            np.testing.assert_allclose(results[output], expected, rtol=1e-9, atol=1e-9)


def schedule_of_rows(group: FusedGroup, target: Target, clusters: bool) -> Schedule:
    """Return a legal point of blocks or of clusters.

    It has warps, vectors, and several rows, if possible.
    """
    space = make_space(group, target)
    found = [t for t in space.templates if t.segments[0].clusters == clusters]
    points = [s for template in found for s in legal_points(space, template, 5, 64)]
    return max(points, key=lambda s: (s.threads % 32 == 0, s.segments[0].row_vector > 1, s.segments[0].dims[0].block))


CASES = (
    (DType.F32, (4, 16), (0,), 5, False), (DType.F16, (3, 7, 5), (0,), 5, False),
    (DType.BF16, (6, 4, 8), (2,), 5, False), (DType.F64, (9, 2), (1,), 5, False), (DType.BF16, (4, 16), (0,), 0, False),
    (DType.BF16, (4, 48), (0,), 5, True), (DType.F32, (24, 4, 4), (2,), 10, True),
    (DType.F16, (24, 4, 4), (2,), 20, True), (DType.F32, (2, 24, 4), (0, 2), 5, True),
)  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "row", "kept", "parts", "clusters"), CASES, ids=str)
def test_blocks_sum_runs_of_rows(
    kind: DType, row: tuple[int, ...], kept: tuple[int, ...], parts: int, clusters: bool, device: str
) -> None:
    target = TINY_GPU if clusters else SMALL_GPU
    if device == "cuda":  # clusters of whole warps, and rows that are longer than one holds
        target, summed = evolve(GPU, MAX_thread=64), next(n for n in range(len(row)) if n not in kept)
        row = tuple(extent * (8 if n == summed else 1) for n, extent in enumerate(row))
    group = kernels(group_gradient(kind, row, kept), parts)[0] if parts else group_gradient(kind, row, kept, own=True)
    schedule = schedule_of_rows(group, target, clusters)
    assert check_schedule(group, schedule, target) == []
    kernel = lower(group, schedule, {}, target)
    assert check_barriers(kernel) == ()
    assert kernel_violations(kernel) == []
    assert kernel_violations(extract(kernel), threads=True) == []
    assert kernel.shared_bytes == features_of(group, schedule, target).shared
    check(_device(device), target, group, schedule)


@needs_opencl
@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize(("row", "kept"), [((4, 16), (0,)), ((6, 4, 8), (2,))], ids=str)
def test_special_elements_reach_their_sums(row: tuple[int, ...], kept: tuple[int, ...], special: float) -> None:
    group, after = kernels(group_gradient(DType.BF16, row, kept), 5)
    inputs = arrays(group, 1)
    place = tuple(n - 1 for n in row)
    inputs["g"][(2, 1, *place)] = special
    schedule = schedule_of_rows(group, SMALL_GPU, clusters=False)
    function = emit(extract(lower(group, schedule, {}, SMALL_GPU)), _device("opencl").target.dialect)
    found = _run(_device("opencl"), function, group, inputs)
    _, sums = after.inputs
    expected = [[2, 1, *(place[n] for n in kept)]]
    np.testing.assert_array_equal(np.argwhere(~np.isfinite(found[sums])), expected, "other sums stay numbers")


@needs_toolchain
def test_gradients_of_group_norms_are_one_pass() -> None:
    image, attributes = TensorType(DType.BF16, (32, 64, 16, 32)), {"num_groups": 8, "epsilon": 1e-5}
    types = {"x": image, "g": image, "y": image, **{n: TensorType(DType.BF16, (64,)) for n in ("scale", "bias")}}
    names = ("x", "scale", "bias")
    graph = Graph("norm", (*names, "g"), ("y",), types, (Node("y", "group_norm", names, ("y",), attributes),), {})
    training = cuts.grad(graph, loss="y", wrt=names, given="g")
    texts = (Source(f"{name}.cuts", text) for name, text in training.spec.texts.items())
    model = evolve(training.graph, outputs=tuple(training.gradients.values()))
    registry = Registry.builtin().extend_generated(*texts)
    compiled = compile_graph(model, registry, find_target("cuda:h200"), CompileOptions(), emit_source)
    row, total = (compiled.kernels[step.kernel] for step in compiled.steps)
    assert [len([a for a in k.arguments if not a.written]) for k in (row, total)] == [3, 2]
    (cubin,) = compile_kernels([row], "sm_90a")
    assert not cubin.spill_bytes
