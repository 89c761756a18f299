"""Sums over instances beside rows that threads walk."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import find_target
from cuts.ir.machine.target import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir
from cuts.ir.types import DType
from cuts.ir.verify.kernel import kernel_violations
from cuts.ir.verify.segment import verify_group
from cuts.passes.fusion.interpret import interpret
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.space import make_space
from cuts.passes.split.split_columns import split_columns

from ..needs import needs_cuda, needs_opencl
from .cases import arrays, legal_points
from .test_points import SMALL_GPU, _device, check

GPU = find_target("cuda:sm_90")


def selective_scan(kind: DType, shape: tuple[int, int, int], steps: int, backwards: bool = False) -> FusedGroup:
    """Return a selective scan with sums over states, width, and steps."""
    batches, width, states = shape
    sums, mode = kind.accumulator, "from" if backwards else "upto"
    at, held = "i0, i1, i2", "acc0[i0, i1, i2, r0]"
    first = f"inside(1 <= r0 < {steps})"
    state = held if sums is kind else f"{kind}({held})"
    number = "" if kind is DType.F32 else f":{kind}"
    body = (
        f"0.5{number} * x[r0, i0, i1]"
        if backwards
        else f"tanh(x[r0, i0, i1] * a[i1, i2]) * select({first}, {state}, 0.0{number}) + x[r0, i0, i1] * g[r0, i0, i2]"
    )
    return verify_group(parse_ir(f"""
        var i0 < {batches}, i1 < {width}, i2 < {states}, r0 < {steps}
        group {{
          tensor x: {kind}[{steps}, {batches}, {width}]
          tensor g: {kind}[{steps}, {batches}, {states}]
          tensor a: {kind}[{width}, {states}]
          tensor y: {kind}[{steps}, {batches}, {width}]
          tensor u: {kind}[{steps}, {batches}, {states}]
          tensor v: {kind}[{batches}, {width}, {states}]
          tensor acc0: {sums}[{batches}, {width}, {states}, {steps}]
          inputs x, g, a
          outputs y, u, v
          segment ({at}) {{
            reduce acc0 = {"sum" if backwards else "prod"} along {mode} over (r0) of {body}
            output y[r0, i0, i1] across sum for (r0) = {state} * g[r0, i0, i2]
            output u[r0, i0, i2] across sum for (r0) = {state} * x[r0, i0, i1]
            output v[i0, i1, i2] across sum for (r0) = {state} * x[r0, i0, i1]
          }}
        }}
    """))  # fmt: skip


def schedules(group: FusedGroup, count: int, target: Target = SMALL_GPU) -> list[Schedule]:
    """Return legal points, most threads along summed dims first."""
    space = make_space(group, target)
    (template,) = space.templates
    found = legal_points(space, template, 5, 64)

    def cost(schedule: Schedule) -> tuple[int, int]:
        segment = schedule.segments[0]
        return -min(d.threads for d in segment.dims[-2:]), segment.reductions[0].dims[0].block_k

    return sorted(found, key=cost)[:count]


@pytest.mark.parametrize("parts", [4, 8, 32])
def test_parts_and_totals_compute_walked_sums(parts: int) -> None:
    group = selective_scan(DType.F32, (4, 8, 4), 6)
    inputs = arrays(group, 1)
    before, *totals = split_columns(group, parts) or ()
    found = interpret(verify_group(before), inputs)
    for after in totals:
        found |= interpret(verify_group(after), {t: found[t] for t in after.inputs})
    for output, expected in interpret(group, inputs).items():
        np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-9)


CASES = [
    *((kind, (2, 4, 8), 24, False) for kind in (DType.F32, DType.F16, DType.BF16, DType.F64)),
    (DType.F32, (2, 3, 5), 19, False),
    (DType.F32, (3, 8, 4), 21, True),
]


@needs_opencl
@pytest.mark.parametrize(("kind", "shape", "steps", "backwards"), CASES, ids=str)
def test_blocks_sum_walked_instances(kind: DType, shape: tuple[int, int, int], steps: int, backwards: bool) -> None:
    group = selective_scan(kind, shape, steps, backwards)
    for schedule in schedules(group, 1):
        assert check_schedule(group, schedule, SMALL_GPU) == []
        kernel = lower(group, schedule, {}, SMALL_GPU)
        assert check_barriers(kernel) == ()
        assert kernel_violations(kernel) == []
        assert kernel_violations(extract(kernel), threads=True) == []
        check(_device("opencl"), SMALL_GPU, group, schedule)


@needs_cuda
@pytest.mark.parametrize(
    ("kind", "shape", "steps", "backwards"), [*CASES, (DType.F32, (2, 64, 16), 64, False)], ids=str
)
def test_a_gpu_sums_walked_instances(kind: DType, shape: tuple[int, int, int], steps: int, backwards: bool) -> None:
    group = selective_scan(kind, shape, steps, backwards)
    for schedule in schedules(group, 6, evolve(GPU)):
        check(_device("cuda"), GPU, group, schedule)
