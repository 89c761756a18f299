"""Register arrays are addressed by numbers that the compiler knows.

A loop that is not unrolled whole indexes no element of an array that outlives one of its iterations, which would be
kept in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompileOptions
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ops import Registry
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.threads.windows import MAX_WINDOW_ELEMENTS
from cuts.passes.pipeline import compile_graph
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.tests.amounts import examples
from cuts.tests.emission import emit as emit_kernel
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..fusion.build import graph, op
from ..search_space.groups import conv
from .cases import chains, pairs, points

GPU = find_target("cuda:sm_90")
_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
_LOOP = re.compile(r"for \(int (\w+) = 0; \w+ < (\d+); \+\+\w+\) \{")
_KIND = r"(?:float|double|int|unsigned|long|short|bool|__half2?|__nv_bfloat162?|\w+_t)"
_ARRAY = re.compile(rf"^(?:const )?{_KIND} (\w+)\[\d+\]")
_UNROLL = re.compile(r"#pragma unroll(?: (\d+))?$")


def kept_in_memory(source: str) -> Iterator[str]:
    """Yield lines that index a register array by a loop variable.

    The loop remains a loop.
    """
    loops: list[str | None] = []  # of each open brace the variable of its loop, where that stays one
    arrays: dict[str, int] = {}  # of each array how many braces were open where it was declared
    asked: int | None = None  # how often the loop below is to be unrolled, 0: whole; None: nothing was asked
    for line in map(str.strip, source.splitlines()):
        if found := _UNROLL.match(line):
            asked = int(found[1] or 0)
            continue
        if found := _ARRAY.match(line):
            arrays[found[1]] = len(loops)
        for name, index in re.findall(r"(\w+)\[([^\[\]]*)\]", line):
            live = [v for v in loops[arrays[name] :] if v is not None] if name in arrays else []
            if any(re.search(rf"\b{var}\b", index) for var in live):
                yield line
        if found := _LOOP.match(line):
            whole = asked == 0 or asked == int(found[2])
            loops.append(None if whole else found[1])
        else:
            loops += [None] * line.count("{")
            del loops[len(loops) - line.count("}") :]
        asked = None


def test_the_check_finds_what_it_is_for() -> None:
    rolled = "{\nfloat x1[8];\n#pragma unroll 1\nfor (int r = 0; r < 2; ++r) {\nx1[r * 4] = 1;\n}\n}"
    assert list(kept_in_memory(rolled)) == ["x1[r * 4] = 1;"]
    assert not list(kept_in_memory(rolled.replace("unroll 1", "unroll")))
    assert not list(kept_in_memory(rolled.replace("unroll 1", "unroll 2")))
    assert not list(kept_in_memory("{\nfor (int r = 0; r < 2; ++r) {\nfloat x1[8];\nx1[0] = p[r];\n}\n}"))


@settings(max_examples=examples(40, 600), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_points_keep_their_registers(data: st.DataObject) -> None:
    group = data.draw(st.one_of(chains(), pairs()))
    schedule = data.draw(points(group, GPU))
    assume(schedule is not None)
    source = emit_kernel(extract(lower(group, schedule, {}, GPU)), "cuda").source
    assert not list(kept_in_memory(source)), source


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("name", ["resize_linear", "conv_transpose", "average_pool"])
def test_weighted_sums_along_each_axis_are_one_scope(name: str, factor: int) -> None:
    size = 128 * factor
    lines = {
        "resize_linear": op("y", "resize_linear", "x", sizes=(16, 64, size, size)),
        "conv_transpose": op("y", "conv_transpose", "x", "w", strides=(factor, factor)),
        "average_pool": op("y", "average_pool", "x", kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    }
    model = graph({"x": (16, 64, 128, 128), "w": (64, 32, 4, 4)}, lines[name], out="y")
    for kernel in compile_graph(model, Registry.builtin(), GPU, CompileOptions(), emit).kernels:
        assert not list(kept_in_memory(kernel.source)), kernel.source


def test_window_too_long_for_registers_is_none() -> None:
    """Seven taps along the columns read the results of eight rows.

    These are 147 elements, in a loop that is not unrolled whole.
    """
    group = conv(64, 3, 64, 224, r=7, stride=2, pad=3)
    (segment,) = group.segments
    n, k, h, w = segment.axes
    dims = TileDim((n,), 16, 1), TileDim((k,), 32, 8, 4), TileDim((h,), 8, 8), TileDim((w,), 8, 1)
    chunks = tuple(ReduceDim((v,), size) for v, size in zip(segment.reductions[0].reduce, (1, 7, 7), strict=True))
    loop = ReductionSchedule(chunks, (Staging(0, (), 4), Staging(1, (), 4)), 4)
    schedule = Schedule((SegmentSchedule(dims, (loop,)),))
    assert check_schedule(group, schedule, GPU) == []
    source = emit_kernel(extract(lower(group, schedule, {}, GPU)), "cuda").source
    assert not list(kept_in_memory(source))
    assert max(int(size) for size in re.findall(r"float \w+\[(\d+)\]", source)) <= MAX_WINDOW_ELEMENTS
