"""Counts equal those of the enumerated index set on small shapes.

They also equal the corrected formulas of Tables 6 to 8.
"""

from __future__ import annotations

import ast
from itertools import product
from math import ceil
from pathlib import Path

import attrs
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.affine import Index, Indirect, Var, as_index, evaluate, floordiv, modulo
from cuts.ir.expr import Read, call
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.traversal import reads
from cuts.passes.geometry.footprint import Cover, distinct, elements, random_groups
from cuts.passes.model import features_of
from cuts.passes.model.feature_schema import SUMS, Features
from cuts.passes.model.memory_access.evaluation_sites import EvaluationSite
from cuts.passes.model.roofline import group_work
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.enumerate import sample_batches
from cuts.passes.schedule.space import make_space
from cuts.passes.split.split_reduction import split_reduction
from hypothesis import given
from hypothesis import strategies as st

from .groups import ALL, at, conv, f32, matmul, pointwise, pool, write

H200 = find_target("cuda:h200")


def touched_elements(group: FusedGroup) -> dict[str, set[tuple[int, ...]]]:
    """Enumerate the elements of each input that a group reads."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for segment in group.segments:
        spaces = [(r.body, segment.axes + r.reduce) for r in segment.reductions] + [
            (o.body, segment.axes + o.extra) for o in segment.outputs
        ]
        for body, axes in spaces:
            for read in reads(body):
                if read.tensor not in group.inputs:
                    continue
                for point in product(*(range(a.extent) for a in axes)):
                    values = dict(zip(axes, point, strict=True))
                    if all(g.low <= evaluate(g.index, values) < g.high for g in read.guards):
                        found.setdefault(read.tensor, set()).add(tuple(evaluate(i, values) for i in read.indices))
    return found


@pytest.mark.parametrize(
    "name", ["pointwise", "matmul", "conv", "conv-stride", "conv-dilated", "conv1x1", "depthwise", "pool", "softmax"]
)
def test_unique_bytes_equal_the_enumerated_set(name):
    group = ALL[name]
    inputs = sum(4 * len(elements_) for elements_ in touched_elements(group).values())
    outputs = sum(4 * group.tensors[t].size for t in group.outputs)
    assert group_work(group)[1] == inputs + outputs


def test_useful_flops_are_the_textbook_counts():
    assert group_work(matmul(5, 6, 7))[0] == 2 * 5 * 6 * 7
    assert group_work(conv(2, 3, 8, 9))[0] == 2 * 2 * 8 * 81 * 27 + 2 * 8 * 81
    assert group_work(pool(1, 3, 8))[0] == 3 * 16 * 4
    assert group_work(pointwise(4, 5))[0] == 2 * 20


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5))
def test_distinct_values_of_a_halo_are_exact(stride, dilation, outputs, taps):
    i, r = Var("i", outputs), Var("r", taps)
    index = i * stride + r * dilation
    true = len({a * stride + b * dilation for a in range(outputs) for b in range(taps)})
    counted = distinct(index, {i: outputs, r: taps}, 1000)
    assert counted == true if 1 in (stride, dilation) else counted >= true


@given(st.integers(1, 40), st.integers(2, 6), st.integers(2, 6))
def test_run_of_flattened_dim_touches_own_elements(size, rows, columns):
    h, w = Var("h", rows), Var("w", columns)
    cover = Cover.of([(h, w)], [size])
    assert elements(at("x", h, w), (rows, columns), cover) <= min(size, rows * columns)


def test_quasi_affine_indices_are_counted():
    i = Var("i", 12)
    flat = as_index(i)
    assert distinct(floordiv(flat, 4), {i: 12}, 100) == 3
    assert distinct(modulo(flat, 4), {i: 12}, 100) == 4


@pytest.mark.parametrize("points", [3, 40, 900])
def test_data_positions_touch_sectors_as_random_numbers(points):
    rows, columns, unit = 4, 128, 8
    row, place = Var("row", rows), Var("place", points)
    looked_up = Index(0, ((Indirect("at", (as_index(place),), columns), 1),))
    whole = Cover.of([(row,), (place,)], [rows, points])
    found = random_groups(at("x", row, looked_up), (rows, columns), whole, unit)
    drawn = np.random.default_rng(1).integers(0, columns // unit, (200, rows, points))
    touched = np.mean([sum(len(set(line)) for line in each) for each in drawn])
    assert found == pytest.approx(touched, rel=0.05)
    assert random_groups(at("x", looked_up, row), (columns, rows), whole, unit) == 0


def schedule(dims, loops, staged, stages=1):
    """Build a schedule of a single reduction."""
    tiles = tuple(TileDim(axes, block, thread, thread) for axes, block, thread in dims)
    chunks = tuple(ReduceDim(axes, chunk) for axes, chunk in loops)
    staging = tuple(Staging(s) for s in staged)
    return Schedule((SegmentSchedule(tiles, (ReductionSchedule(chunks, staging, stages),)),))


def conv_schedule(group, blocks, threads, chunk):
    """Schedule a convolution with separate axes, all operands staged."""
    segment = group.segments[0]
    dims = [((a,), b, t) for a, b, t in zip(segment.axes, blocks, threads, strict=True)]
    loops = [((a,), c) for a, c in zip(segment.reductions[0].reduce, chunk, strict=True)]
    return schedule(dims, loops, (0, 1))


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_tables_6_to_8_of_a_convolution(stride, dilation):
    group = conv(2, 4, 16, 32, r=3, stride=stride, dilation=dilation)
    chosen = conv_schedule(group, (1, 8, 4, 8), (1, 4, 2, 2), (4, 3, 3))
    assert check_schedule(group, chosen, H200) == []
    counts = features_of(group, chosen, H200)
    comp_block = 2 * (1 * 8 * 4 * 8) * 4 * 9  # Table 6
    epilogue = 8 * 4 * 8
    assert counts.flops == comp_block + epilogue

    def halo(outputs: int) -> int:
        return (outputs - 1) * stride + 2 * dilation + 1

    def tile(rows: int, columns: int) -> int:  # elements that are read: a stride leaves gaps
        return len({a * stride + b * dilation for a in range(rows) for b in range(3)}) * len(
            {a * stride + b * dilation for a in range(columns) for b in range(3)}
        )

    assert counts.segments[0].loads == 4 * tile(2, 2) + 4 * 4 * 9  # Table 7
    rows = len({a * stride + b * dilation for a in range(4) for b in range(3)})
    trans = H200.TRANS_global
    assert counts.transactions == 4 * rows * ceil(halo(8) / trans) + ceil(8 * 4 * 9 / trans)  # Table 8


def test_separated_elements_of_a_thread_share_no_halo():
    group = conv(1, 4, 16, 32)
    chosen = conv_schedule(group, (1, 8, 4, 16), (1, 1, 1, 2), (4, 3, 3))
    (part,) = chosen.segments
    unvectorised = evolve(chosen, segments=(evolve(part, dims=tuple(evolve(d, vector=1) for d in part.dims)),))
    assert features_of(group, chosen, H200).segments[0].loads == 4 * 3 * 4 + 36
    assert features_of(group, unvectorised, H200).segments[0].loads == 4 * 3 * 6 + 36


def test_tables_6_to_8_of_a_matrix_multiplication():
    group = matmul(128, 128, 64)
    i, j = group.segments[0].axes
    (c,) = group.segments[0].reductions[0].reduce
    chosen = schedule([((i,), 32, 4), ((j,), 64, 8)], [((c,), 16)], (0, 1), 2)
    counts = features_of(group, chosen, H200)
    trans = H200.TRANS_global
    assert counts.flops == 2 * 32 * 64 * 64
    assert counts.segments[0].comp_thread == 2 * 4 * 8 * 64
    assert counts.segments[0].loads == 4 * 64 + 64 * 8
    assert counts.transactions == ceil(32 * 64 / trans) + 64 * ceil(64 / trans)


def test_tables_6_to_8_of_pooling_and_elementwise():
    group = pool(1, 8, 64, r=3, stride=2)
    n, c, h, w = group.segments[0].axes
    r, s = group.segments[0].reductions[0].reduce
    chosen = schedule([((n,), 1, 1), ((c,), 2, 1), ((h,), 4, 1), ((w,), 8, 2)], [((r,), 3), ((s,), 3)], ())
    counts = features_of(group, chosen, H200)
    assert counts.flops == 2 * 4 * 8 * 9
    assert counts.transactions == 2 * (3 * 2 + 3) * ceil((7 * 2 + 3) / H200.TRANS_global)
    flat = pointwise(4, 16, 16)
    axes = flat.segments[0].axes
    counts = features_of(flat, Schedule((SegmentSchedule((TileDim(axes, 256, 4, 4),)),)), H200)
    assert counts.flops == 2 * 256
    assert counts.transactions == 2 * ceil(256 / H200.TRANS_global)
    assert counts.segments[0].loads == 2 * 4


@pytest.mark.parametrize(("vector", "left"), [(1, 0), (2, 0), (4, 0), (8, 1), (16, 1)])
def test_stores_of_long_vectors_leave_parts(vector: int, left: int) -> None:
    """Lanes at steps of eight floats fill halves of sectors."""
    group = pointwise(64, 4096)
    row, column = group.segments[0].axes
    for dims in ([((row,), 1, 1, 1), ((column,), 1024, vector, vector)], [((row, column), 2048, vector, vector)]):
        tiles = tuple(TileDim(*dim) for dim in dims)
        counts = features_of(group, Schedule((SegmentSchedule(tiles),)), H200)
        assert float(counts.partial_stores) == left * float(counts.stored)


@pytest.mark.parametrize(("vector", "lines"), [(1, 1), (8, 1), (4, 1)])
def test_vectors_across_rows_touch_no_more_lines(vector: int, lines: int) -> None:
    """Lanes along a row touch its line alone."""
    group = pointwise(64, 4096)
    row, column = group.segments[0].axes
    tiles = TileDim((row,), 8, 8, vector), TileDim((column,), 64, 1, 1)
    counts = features_of(group, Schedule((SegmentSchedule(tiles),)), H200)
    assert float(counts.lines) == 3 * 8 * 2 * lines


def test_looked_up_columns_stay_in_their_row() -> None:
    """Lanes of one row find at most its lines."""
    i, j = Var("i", 300), Var("j", 128)
    rows, columns = (Index(0, ((Indirect(t, (as_index(a),), e), 1),)) for t, a, e in (("r", i, 1000), ("c", j, 64)))
    read = Read("x", (rows, columns))
    cover = Cover.of(((i,), (j,)), (1, 32))
    assert float(random_groups(read, (1000, 64), cover, 32)) <= 2
    assert float(random_groups(read, (1000, 64), Cover.of(((i,), (j,)), (32, 1)), 32)) > 16


def test_staged_halo_is_the_corrected_input_tile():
    group = conv(1, 4, 16, 56, r=7, stride=2, pad=3)
    chosen = conv_schedule(group, (1, 4, 7, 4), (1, 1, 1, 1), (4, 7, 7))
    image = 4 * ((7 - 1) * 2 + 7) * ((4 - 1) * 2 + 7)
    weights = 4 * 4 * 49
    assert float(np.max(features_of(group, chosen, H200).shared)) == 4 * (image + weights)


def tiles_of(group: FusedGroup, lanes: int = 1) -> SegmentSchedule:
    """Return a point for a product with any axes before rows.

    Both operands are staged, or lanes share rows.
    """
    (segment,) = group.segments
    (reduction,) = segment.reductions
    sizes = [(1, 1, 1)] * (len(segment.axes) - 2) + ([(1, 1, 1)] * 2 if lanes > 1 else [(32, 4, 4), (64, 4, 4)])
    dims = tuple(TileDim((a,), *size) for a, size in zip(segment.axes, sizes, strict=True))
    staging = () if lanes > 1 else (Staging(0, (), 4), Staging(1, (), 4))
    loop = ReductionSchedule((ReduceDim(reduction.reduce, 32 * 4),), staging, 1 if lanes > 1 else 2)
    return SegmentSchedule(dims, (loop,), lanes, 4 if lanes > 1 else 1)


@pytest.mark.parametrize("lanes", [1, 32])
def test_partial_reduction_costs_its_own_length(lanes: int) -> None:
    halves = split_reduction(matmul(64, 128, 1024), 4)
    assert halves is not None
    part, alone = (features_of(g, Schedule((tiles_of(g, lanes),)), H200) for g in (halves[0], matmul(64, 128, 256)))
    assert int(np.max(part.grid)) == 4 * int(np.max(alone.grid))
    for name in ("copies", "scatter", "wavefronts", "issue", "transactions", "lines"):
        assert float(np.max(getattr(part, name))) == pytest.approx(float(np.max(getattr(alone, name)))), name


def added_names(path: Path) -> set[str]:
    """Return the counts that calls of `add` in a module name."""
    calls = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
    named = [
        c.args[0] for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "add" and len(c.args) == 2
    ]
    return {name.value for name in named if isinstance(name, ast.Constant)}


def test_exactly_the_summed_counts_are_added() -> None:
    model = Path(__file__).parents[2] / "passes" / "model"
    modules = (model / "features.py", *(model / "work").glob("*.py"))
    assert set[str]().union(*map(added_names, modules)) == set(SUMS)


def test_every_count_says_what_it_means() -> None:
    assert [f.name for f in attrs.fields(Features) if not f.metadata["meaning"]] == []


@pytest.mark.parametrize("repeats", [1, 6])
def test_output_rows_outside_every_reduction_are_counted(repeats):
    """Six sums of two neighbours a row, after a norm.

    Three times the row's loads, in loops of their own.
    """
    i, r, a, b = Var("i", 8), Var("r", 4096), Var("a", repeats), Var("b", 2048)
    total = Reduction("t", (r,), "sum", at("x", i, r))
    pair = call("add", at("x", i, as_index(b) * 2), at("x", i, as_index(b) * 2 + 1))
    row = Output("y", write(i, a, b), call("mul", pair, at("t", i)), (a, b))
    tensors = {"x": f32(8, 4096), "t": f32(8), "y": f32(8, repeats, 2048)}
    group = FusedGroup((Segment((i,), (total,), (row,)),), tensors, ("x",), ("y",))
    chosen = Schedule(
        (SegmentSchedule((TileDim((i,), 1, 1),), (ReductionSchedule((ReduceDim((r,), 256),)),), reduction_threads=32),)
    )
    assert check_schedule(group, chosen, H200) == []
    counts = features_of(group, chosen, H200)
    assert counts.stored == 4 * repeats * 2048
    assert counts.stores == repeats * 2048
    assert counts.segments[0].loads == 4096 / 32  # of the reduction
    assert counts.direct == 4096 / 32 + 2 * 2048 * repeats / 32
    assert counts.rounds == 16 + repeats * 2048 / 256


@pytest.mark.parametrize("name", sorted(ALL))
def test_shared_counts_equal_fresh_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of the same positions and nodes of equal axes share counts.

    These are the same to the last bit.
    """

    def counts() -> list[dict[str, object]]:
        batches = sample_batches(make_space(ALL[name], H200), 64)
        return [{count: getattr(batch.features, count) for count in SUMS} for batch in batches]

    once = counts()
    monkeypatch.setattr(Cover, "once", lambda self, key, make: make())
    monkeypatch.setattr(EvaluationSite, "_memoise", lambda self, key, make: make())
    for known, anew in zip(once, counts(), strict=True):
        for count in SUMS:
            np.testing.assert_array_equal(known[count], anew[count], err_msg=count)
