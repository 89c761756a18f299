"""Products of several products' results in one kernel.

Legal points compute the reference, with the tile between them whole or in parts, for every type, length and reduced
side.
"""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.devices import find_target
from cuts.compile.loading import spec_of_texts
from cuts.ir.graph import Graph, Node
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup, streamable_axis
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.segment import verify_group
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.geometry import schedule_of
from cuts.passes.lowering import check_barriers
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.model import features_of
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.search.tasks import oracle
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from .cases import arrays, points
from .test_points import SMALL_GPU, _device, check

GPU = find_target("cuda:h200")
SMALL_TARGET = evolve(SMALL_GPU, MAX_thread=64, MAX_shared=32768)

ALONG_ROWS = """
op tiles "products of what is made of two products, along its rows" {
  type T: float
  in q: T[B, M, E], k: T[B, N, E], g: T[B, M, F], v: T[B, N, F], m: T[B, M], d: T[B, M]
  temp s: T[B, M, N], r: T[B, M, N], e: T[B, M, N], w: T[B, M, N]
  out x: T[B, M, E]
  s[b, i, j] = sum[c < E] q[b, i, c] * k[b, j, c]
  r[b, i, j] = sum[c < F] g[b, i, c] * v[b, j, c]
  e[b, i, j] = tanh(s[b, i, j] - m[b, i])
  w[b, i, j] = e[b, i, j] * (r[b, i, j] - d[b, i])
  x[b, i, c] = sum[j < N] w[b, i, j] * k[b, j, c]
}
"""
ALONG_COLUMNS = """
op tiles "products of what is made of two products, along its columns" {
  type T: float
  in q: T[B, M, E], k: T[B, N, E], g: T[B, M, F], v: T[B, N, F], m: T[B, M], d: T[B, M]
  temp s: T[B, M, N], r: T[B, M, N], e: T[B, M, N], w: T[B, M, N]
  out x: T[B, N, E], y: T[B, N, F]
  s[b, i, j] = sum[c < E] q[b, i, c] * k[b, j, c]
  r[b, i, j] = sum[c < F] g[b, i, c] * v[b, j, c]
  e[b, i, j] = tanh(s[b, i, j] - m[b, i])
  w[b, i, j] = e[b, i, j] * (r[b, i, j] - d[b, i])
  x[b, j, c] = sum[i < M] w[b, i, j] * q[b, i, c]
  y[b, j, c] = sum[i < M] e[b, i, j] * g[b, i, c]
}
"""
IN_GROUPS = """
op tiles "products of what is made of two products, of rows in groups along their columns" {
  type T: float
  in q: T[B, M, E], k: T[G, N, E], g: T[B, M, F], v: T[G, N, F], m: T[B, M], d: T[B, M]
  temp s: T[B, M, N], r: T[B, M, N], e: T[B, M, N], w: T[B, M, N]
  out x: T[G, N, E], y: T[G, N, F]
  let H = B // G
  s[b, i, j] = sum[c < E] q[b, i, c] * k[b // H, j, c]
  r[b, i, j] = sum[c < F] g[b, i, c] * v[b // H, j, c]
  e[b, i, j] = tanh(s[b, i, j] - m[b, i])
  w[b, i, j] = e[b, i, j] * (r[b, i, j] - d[b, i])
  x[a, j, c] = sum[h < H, i < M] w[a * H + h, i, j] * q[a * H + h, i, c]
  y[a, j, c] = sum[h < H, i < M] e[a * H + h, i, j] * g[a * H + h, i, c]
}
"""


def tiles(text: str, shape: tuple[int, ...], dtype: DType = DType.F32, groups: int = 0) -> FusedGroup:
    """Return the two segments of a declaration.

    Its axes are (batch, rows, columns, width, other width).
    """
    b, m, n, e, f = shape
    a = groups or b
    shapes = {"q": (b, m, e), "k": (a, n, e), "g": (b, m, f), "v": (a, n, f), "m": (b, m), "d": (b, m)}
    registry = spec_of_texts({"tiles.cuts": text}).registry
    types = {name: TensorType(dtype, dims) for name, dims in shapes.items()}
    made = registry["tiles"].instantiate(list(types.values()), {})
    results = ("x", "y")[: len(made.output_types)]
    types |= dict(zip(results, made.output_types, strict=True))
    graph = Graph("tiles", tuple(shapes), results, types, (Node("a", "tiles", tuple(shapes), results, {}),))
    shop = GroupBuilder(find_views(build_programs(graph, registry)), Policy())
    last = {u for u, unit in shop.units.items() if {*results} & {*unit.writes}}
    found = shop.form((tuple(u for u in shop.units if u not in last), tuple(u for u in shop.units if u in last)))
    assert isinstance(found, Group), found
    verify_group(found.form)
    return found.form


CASES: dict[str, FusedGroup] = {
    "rows": tiles(ALONG_ROWS, (2, 32, 96, 8, 8)),
    "rows, odd": tiles(ALONG_ROWS, (1, 21, 77, 5, 7)),
    "columns": tiles(ALONG_COLUMNS, (2, 96, 32, 8, 8)),
    "columns, odd": tiles(ALONG_COLUMNS, (1, 77, 21, 7, 7)),
    "halves": tiles(ALONG_ROWS, (1, 16, 80, 8, 8), DType.F16),
    "groups": tiles(IN_GROUPS, (4, 72, 24, 8, 8), groups=2),
    "one group, odd": tiles(IN_GROUPS, (3, 70, 13, 5, 5), groups=1),
    "bf16, odd": tiles(ALONG_COLUMNS, (1, 67, 19, 6, 6), DType.BF16),
}


def points_of(group: FusedGroup, parts: bool, count: int) -> list[Schedule]:
    """Return legal points with the tile whole, or in parts.

    They are among random ones of the thinned space.
    """
    space, found = make_space(group, SMALL_TARGET, coarse=True), []
    for structure in space.templates:
        numbers = np.random.default_rng(5).integers(0, structure.size, size=1 << 14)
        columns = columns_at(structure, numbers)
        part = np.broadcast_to(np.asarray(columns.get("s1.part", 0)), numbers.shape)
        legal = evaluate(space, structure, columns, 0, numbers).legal & ((part > 0) == parts)
        for n in np.flatnonzero(legal)[:count]:
            values = {name: int(np.broadcast_to(column, numbers.shape)[n]) for name, column in columns.items()}
            found.append(schedule_of(group, structure, values, SMALL_TARGET.warp_size))
    return found


@needs_opencl
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("name", CASES)
def test_points_compute_the_reference(name: str, parts: bool) -> None:
    group = CASES[name]
    assert streamable_axis(group) is not None
    points = points_of(group, parts, 1)
    assert points
    for schedule in points[:4]:
        assert check_schedule(group, schedule, SMALL_TARGET) == []
        assert check_barriers(lower(group, schedule, {}, SMALL_TARGET)) == ()
        check(_device("opencl"), SMALL_TARGET, group, schedule)


@pytest.mark.parametrize("name", CASES)
def test_a_point_is_chosen_for_a_gpu(name: str) -> None:
    """Also where sums of a chain run over several axes."""
    assert choose(CASES[name], GPU)


@needs_cuda
@pytest.mark.parametrize("name", CASES)
def test_first_points_compute_the_reference_on_a_gpu(name: str) -> None:
    for candidate in choose(CASES[name], GPU, count=4):
        check(_device("cuda"), GPU, CASES[name], candidate.schedule)


@st.composite
def tiled_groups(draw: st.DrawFn) -> FusedGroup:
    """Draw the sides of a tile, the sum, types and groups."""
    text = draw(st.sampled_from([ALONG_ROWS, ALONG_COLUMNS, IN_GROUPS]))
    b, m, n, e = (draw(st.integers(2, most)) for most in (3, 90, 90, 9))
    dtype = draw(st.sampled_from([DType.F32, DType.F16, DType.BF16]))
    return tiles(text, (b, m, n, e, e), dtype, 1 if text is IN_GROUPS else 0)


@needs_opencl
@settings(max_examples=examples(8, 400), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_point_computes_the_reference(data: st.DataObject) -> None:
    group = data.draw(tiled_groups())
    schedule = data.draw(points(group, SMALL_TARGET))
    assume(schedule is not None)
    assert check_schedule(group, schedule, SMALL_TARGET) == []
    assert check_barriers(lower(group, schedule, {}, SMALL_TARGET)) == ()
    check(_device("opencl"), SMALL_TARGET, group, schedule)


@pytest.mark.parametrize("name", ["rows, odd", "columns, odd", "one group, odd"])
def test_samples_of_tiles_are_their_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "MAX_WHOLE_EVALUATIONS", 0)
    group = CASES[name]
    values = arrays(group, 3)
    whole = interpret(group, values)
    for tensor, sample in oracle.expected_outputs(group, values, count=64).items():
        np.testing.assert_allclose(sample.values, whole[tensor][sample.places], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_shared_memory_is_what_was_counted(name: str) -> None:
    group = CASES[name]
    points = [*points_of(group, True, 2), *points_of(group, False, 1), *(c.schedule for c in choose(group, GPU))]
    for schedule in points:
        counted = sum(buffer.nbytes for buffer in lower(group, schedule, {}, GPU).shared)
        assert int(features_of(group, schedule, GPU).shared) == counted


@needs_toolchain
@pytest.mark.parametrize("text", [ALONG_ROWS, ALONG_COLUMNS], ids=["rows", "columns"])
def test_what_is_chosen_spills_nothing(text: str) -> None:
    group = tiles(text, (48, 512, 512, 64, 64))
    best = choose(group, GPU)[0].schedule
    assert best.segments[0].dims[streamable_axis(group) or 0].blocks > 1
    (found,) = compile_kernels([emit(extract(lower(group, best, {}, GPU)), "cuda")], GPU.arch)
    assert found.spill_bytes == 0
