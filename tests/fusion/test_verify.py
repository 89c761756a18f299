"""Checks of a compilation: units, group order, schedules, races."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.errors import CutsError, VerifyError
from cuts.ir.kernel import Barrier
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.grouping.partition import partition
from cuts.passes.fusion.programs import build_programs
from cuts.passes.inspection.verify import verify_dfg, verify_groups, verify_kernel, verify_programs, verify_schedule
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.selection.choose import choose

from .build import REGISTRY, graph, op, partitioner

TARGET = find_target("cuda:sm_90")
#: A product, a view of it, a concatenation in place, and two kernels that depend on each other.
CHAIN = graph(
    {"x": (6, 8), "w": (8, 4), "i": TensorType(DType.I64, (3,))},
    op("a", "matmul", "x", "w"),
    op("b", "softmax", "a", axis=1),
    op("c", "reshape", "b", shape=(4, 6)),
    op("d", "exp", "c"),
    op("e", "concat", "c", "d", axis=0),
    op("f", "gather", "e", "i", axis=0),
    out="e f",
)


def broken_check(error: pytest.ExceptionInfo[CutsError]) -> str:
    assert error.value.exit_code == 3
    return str(error.value)


def test_sound_compilations_pass_at_every_level() -> None:
    made = partitioner(CHAIN, TARGET)
    views = made.builder.views
    verify_programs(views.programs)
    for mode in ("no-fusion", "fusion", "mixed"):
        groups = partition(made, mode)  # type: ignore[arg-type]
        verify_groups(groups, views)
        for group in groups:
            schedule = choose(group.form, TARGET)[0].schedule
            verify_schedule(group.form, schedule, TARGET)
            kernel = lower(group.form, schedule, group.storages(views), TARGET)
            verify_kernel(kernel)
            verify_dfg(extract(kernel))


def test_a_unit_with_hidden_operands_is_reported() -> None:
    programs = build_programs(CHAIN, REGISTRY)
    first = evolve(programs.units[0], reads=("x",))
    with pytest.raises(VerifyError) as error:
        verify_programs(evolve(programs, units=(first, *programs.units[1:])))
    assert "unit 'n0' says it reads ['x'], its statements read ['w', 'x']" in broken_check(error)


def test_units_out_of_order_are_reported() -> None:
    programs = build_programs(CHAIN, REGISTRY)
    with pytest.raises(CutsError) as error:
        verify_programs(evolve(programs, units=programs.units[::-1]))
    assert "reads 'a' before it is written" in broken_check(error)


def test_groups_out_of_order_are_reported() -> None:
    made = partitioner(CHAIN, TARGET)
    groups = partition(made, "no-fusion")
    with pytest.raises(CutsError) as error:
        verify_groups(groups[::-1], made.builder.views)
    assert "reads 'a' before it is computed" in broken_check(error)


def test_a_missing_group_is_reported() -> None:
    made = partitioner(CHAIN, TARGET)
    groups = partition(made, "no-fusion")
    with pytest.raises(CutsError) as error:
        verify_groups(groups[:-1], made.builder.views)
    assert "no group computes output 'f'" in broken_check(error)


def test_a_tensor_of_another_type_is_reported() -> None:
    made = partitioner(CHAIN, TARGET)
    first, *rest = partition(made, "no-fusion")
    wrong = evolve(first, tensors={**first.tensors, first.form.inputs[0]: "w"})
    with pytest.raises(CutsError) as error:
        verify_groups([wrong, *rest], made.builder.views)
    assert "stands for 'w'" in broken_check(error)


def test_an_unfit_schedule_is_reported() -> None:
    made = partitioner(CHAIN, TARGET)
    group = partition(made, "no-fusion")[0]
    schedule = evolve(choose(group.form, TARGET)[0].schedule, raster=0)
    with pytest.raises(VerifyError, match="raster must be at least 1"):
        verify_schedule(group.form, schedule, TARGET)


def test_a_race_is_reported() -> None:
    made = graph({"x": (64, 64), "w": (64, 64)}, op("y", "matmul", "x", "w"), out="y")
    builder = partitioner(made, TARGET)
    group = partition(builder, "fusion")[0]
    staged = next(
        c
        for c in choose(group.form, TARGET, count=200)
        if any(r.staging for s in c.schedule.segments for r in s.reductions)
    )
    kernel = lower(group.form, staged.schedule, group.storages(builder.builder.views), TARGET)
    verify_kernel(kernel)
    with pytest.raises(CutsError) as error:
        verify_kernel(_without_barriers(kernel))
    assert "since the last barrier" in broken_check(error)


def _without_barriers(kernel: object) -> object:
    from cuts.ir.kernel import Loop

    def keep_items(items: tuple[object, ...]) -> tuple[object, ...]:
        inner = (evolve(i, body=keep_items(i.body)) if isinstance(i, Loop) else i for i in items)
        return tuple(i for i in inner if not isinstance(i, Barrier))

    return evolve(kernel, items=keep_items(kernel.items))
