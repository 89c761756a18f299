"""Privatised scatter in shared memory.

Every point combines in memory as the group does, its counts are those of the layout, and its barriers are proven.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Pointer
from cuts.backends.devices import find_target, open_device
from cuts.ir.functions import COMBINERS
from cuts.ir.machine import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir, print_ir
from cuts.passes.lowering import check_barriers, extract, lower
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate, to_schedule
from cuts.passes.schedule.space import Space, make_space
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl

GPU = find_target("cuda:sm_90")
SMALL_GPU = evolve(GPU, MAX_thread=32, MAX_shared=16384)

#: A row's values at places of its own, whole rows at places, single values, places of two axes, separate own axes.
FORMS = {
    "elements": ("i0 < 5, i1 < 37", "5, 37", "5, 37", "5, 9", "i0, t1[i0, i1]{9}", "i0, i1"),
    "rows": ("i0 < 50, i1 < 6", "50, 6", "50", "7, 6", "t1[i0]{7}, i1", "i0, i1"),
    "counts": ("i0 < 300", "300", "300", "4", "t1[i0]{4}", "i0"),
    "pairs": ("i0 < 70, i1 < 2", "70, 2", "70, 2", "3, 5", "t1[i0, 0]{3}, t1[i0, 1]{5}", "i0, i1"),
    "apart": ("i0 < 3, i1 < 20, i2 < 4", "3, 20, 4", "20", "3, 6, 4", "i0, t1[i1]{6}, i2", "i0, i1, i2"),
}
KINDS = [("f32", "max"), ("f32", "min"), ("i64", "sum"), ("i32", "max"), ("f64", "min"), ("u8", "sum"), ("f16", "max")]


def group_of(form: str, dtype: str, into: str) -> FusedGroup:
    """Return a group that combines in memory by `form`."""
    variables, values, places, result, write, read = FORMS[form]
    axes = ", ".join(v.split()[0] for v in variables.split(", "))
    text = f"""var {variables}
group {{
  tensor t0: {dtype}[{values}]
  tensor t1: i64[{places}]
  tensor t2: {dtype}[{result}]
  inputs t0, t1
  outputs t2
  segment ({axes}) {{
    output t2[{write}] into {into} = t0[{read}]
  }}
}}"""
    found = parse_ir(text)
    assert isinstance(found, FusedGroup)
    return found


def schedules(group: FusedGroup, target: Target, count: int, seed: int) -> list[Schedule]:
    """Return some legal points of the structure whose values meet."""
    space = make_space(group, target)
    first, structure = 0, space.templates[-1]
    assert structure.segments[0].scatter_dim >= 0
    first = space.size - structure.size
    points = np.random.default_rng(seed).integers(0, structure.size, 400)
    batch = evaluate(space, structure, columns_at(structure, points), first, points)
    legal = points[batch.legal][:count]
    return [to_schedule(space, int(first + p)) for p in legal]


def check(device: Any, group: FusedGroup, schedule: Schedule, target: Target) -> None:
    """Run a point over other values, and compare it with NumPy.

    Floats are combined as they are.
    """
    kernel = lower(group, schedule, {}, target)
    assert check_barriers(kernel) == ()
    function = emit(extract(kernel), device.target.dialect)
    generator = np.random.default_rng(0)
    kinds = {t: group.tensors[t] for t in ("t0", "t1", "t2")}
    values = {t: (generator.standard_normal(k.shape) * 50).astype(k.dtype.numpy) for t, k in kinds.items()}
    most = max(group.tensors["t2"].shape)
    values["t1"] = generator.integers(-most - 2, most + 2, kinds["t1"].shape)
    if kinds["t0"].dtype.is_float:
        values["t0"].flat[3], values["t0"].flat[5], values["t2"].flat[0] = np.nan, -np.inf, -np.nan
    buffers = {t: device.allocate(a.nbytes) for t, a in values.items()}
    for name, array in values.items():
        device.upload(Pointer(buffers[name]), np.ascontiguousarray(array))
    (loaded,) = device.build([function])
    device.bind(loaded, function, [Pointer(buffers[a.tensor]) for a in function.arguments])()
    device.synchronize()
    found = np.empty_like(values["t2"])
    device.download(found, Pointer(buffers["t2"]))
    np.testing.assert_array_equal(found, reference(group, values), err_msg=f"{schedule}\n{function.source}")


def reference(group: FusedGroup, values: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Combine values one by one, where their places exist."""
    form = next(f for f in FORMS if tuple(group.tensors["t2"].shape) == tuple(map(int, FORMS[f][3].split(", "))))
    result, at, x = values["t2"].copy(), values["t1"], values["t0"]
    combine = COMBINERS[str(group.segments[0].outputs[0].into)].function.numpy
    for place in np.ndindex(x.shape):
        where = {
            "elements": lambda p: (p[0], at[p]),
            "rows": lambda p: (at[p[0]], p[1]),
            "counts": lambda p: (at[p],),
            "pairs": lambda p: (at[p[0], 0], at[p[0], 1]),
            "apart": lambda p: (p[0], at[p[1]], p[2]),
        }[form](place)
        if all(-n <= w < n for w, n in zip(where, result.shape, strict=True)):
            with np.errstate(all="ignore"):
                result[where] = combine(result[where], x[place])
    return result


CASES = st.tuples(st.sampled_from(sorted(FORMS)), st.sampled_from(KINDS), st.integers(0, 999))


@needs_opencl
@settings(max_examples=examples(12, 400), deadline=None)
@given(CASES)
def test_points_whose_values_meet_combine_them_opencl(case: Any) -> None:
    form, (dtype, into), seed = case
    group = group_of(form, dtype, into)
    for schedule in schedules(group, SMALL_GPU, 1, seed):
        check(open_device(find_target("opencl")), group, schedule, SMALL_GPU)


@needs_cuda
@settings(max_examples=60, deadline=None)
@given(CASES)
def test_points_whose_values_meet_combine_them_cuda(case: Any) -> None:
    form, (dtype, into), seed = case
    group = group_of(form, dtype, into)
    for schedule in schedules(group, GPU, 2, seed):
        check(open_device(find_target("cuda")), group, schedule, GPU)


@pytest.mark.parametrize("form", FORMS)
def test_legal_points_follow_arrays_and_print(form: str) -> None:
    group = group_of(form, "i64", "sum")
    space = make_space(group, SMALL_GPU)
    structure = space.templates[-1]
    points = np.random.default_rng(1).integers(0, structure.size, 60)
    first = space.size - structure.size
    batch = evaluate(space, structure, columns_at(structure, points), first, points)
    for point, legal in zip(points, batch.legal, strict=True):
        schedule = to_schedule(space, int(first + point))
        assert (check_schedule(group, schedule, SMALL_GPU) == []) == legal, schedule
        assert parse_ir(print_ir(schedule)) == schedule


def test_block_needs_room_for_all_reachable_elements() -> None:
    def last(space: Space) -> int:
        return space.templates[-1].segments[0].scatter_dim

    group = group_of("rows", "i64", "sum")
    assert last(make_space(group, evolve(GPU, MAX_shared=7 * 8))) == 0
    assert last(make_space(group, evolve(GPU, MAX_shared=7 * 8 - 1))) == -1


def test_many_values_for_few_elements_meet() -> None:
    text = print_ir(group_of("counts", "i64", "sum")).replace("300", "1000000")
    group = parse_ir(text)
    assert isinstance(group, FusedGroup)
    from cuts.passes.schedule.selection.choose import choose

    assert choose(group, GPU)[0].schedule.segments[0].privatised


@pytest.mark.parametrize("form", FORMS)
def test_everything_is_loaded_before_the_first_value_goes(form: str) -> None:
    """No load crosses an atomic operation.

    A thread would wait for memory once for each value.
    """
    group = group_of(form, "f32", "max")
    for schedule in schedules(group, GPU, 6, 3):
        lines = emit(extract(lower(group, schedule, {}, GPU)), "cuda").source.splitlines()
        going = next(n for n, line in enumerate(lines) if "cuts_meet_max_f32(&" in line)
        many = max(dim.thread for dim in schedule.segments[0].dims) > 1
        assert not many or not any("p1[" in line or "p2[" in line for line in lines[going:])
