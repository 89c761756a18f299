"""Horizontal fusion: legality, gain and results."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pytest
from attrs import evolve, frozen
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir import VerifyError
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.schedule import Schedule, SegmentSchedule, TileDim
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.assemble import assemble_kernels
from cuts.passes.context import CompileContext
from cuts.passes.costs import AnalyticModel, LocalExecutor, Workload, launch_schedules
from cuts.passes.costs.shared_launches import shared_launch_bound
from cuts.passes.inspection import verify_order
from cuts.passes.partitioning import horizontal_fusion
from cuts.passes.partitioning.dependencies import levels
from cuts.passes.partitioning.horizontal_fusion import (
    MAX_DISTINCT_KERNELS,
    is_launchable,
    launch_seconds,
)
from cuts.passes.partitioning.shared_launches import Launch, in_order, with_one_schedule
from cuts.passes.pipeline import compile_graph, run_stages
from cuts.passes.record_decisions import record_decisions
from cuts.passes.schedule.selection.choose import Candidate, choose
from cuts.runtime import make_plan
from cuts.tests.amounts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..needs import needs_opencl
from .build import graph, op

GPU = find_target("cuda:h200")
#: A processor that is taken for a GPU, so that the whole way can be run on PoCL.
PLAIN = evolve(find_target("opencl"), lockstep=True, NUM_SM=132, MAX_thread=32, MAX_shared=16384)
REGISTRY = Registry.builtin()
_SLOW_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def tables(count: int, rows: int = 8, kinds: int = 2) -> Graph:
    """Return lookups of rows in different tables; all results are outputs."""
    types: dict[str, TensorType] = {}
    for n in range(count):
        types |= {f"t{n}": TensorType(DType.F32, (100 + n % kinds, 16)), f"i{n}": TensorType(DType.I32, (rows,))}
    inputs = tuple(types)
    nodes = tuple(Node(f"n{n}", "gather", (f"t{n}", f"i{n}"), (f"y{n}",), {"axis": 0}) for n in range(count))
    types |= {f"y{n}": TensorType(DType.F32, (rows, 16)) for n in range(count)}
    return Graph("tables", inputs, tuple(f"y{n}" for n in range(count)), types, nodes)


def recurrence(name: str, source: str) -> list[Any]:
    """Return a recurrence over a matrix's rows.

    It begins with a function of the matrix.
    """
    return [
        op(f"{name}x", "reshape", source, shape=(6, 1, 24)),
        op(f"{name}w", "reshape", "w", shape=(1, 24, 24)),
        op(f"{name}h", "reduce_max", source, axes=(0,), keepdims=True),
        op(f"{name}s", "reshape", f"{name}h", shape=(1, 1, 24)),
        op(f"{name}o {name}l", "rnn", f"{name}x", f"{name}w", f"{name}w", None, None, f"{name}s"),
        op(name, "reshape", f"{name}o", shape=(6, 24)),
    ]


def compile_model(model: Graph, mode: str = "mixed", target: Any = GPU) -> CompiledGraph:
    """Compile a graph for a target."""
    return compile_graph(model, REGISTRY, target, CompileOptions(mode=mode), emit)  # type: ignore[arg-type]


def planning_context(**more: Any) -> CompileContext:
    return CompileContext(REGISTRY, GPU, CompileOptions(), emit, costs=AnalyticModel(GPU, LocalExecutor()), **more)


def test_look_ups_of_26_tables_are_one_launch() -> None:
    found = compile_model(tables(26))
    assert found.groups[0]["estimate"] >= found.groups[0]["bound"]  # type: ignore[operator]
    assert [group["members"] for group in found.groups] == [26]
    assert len(found.steps) == len(found.kernels) == 1


def test_only_groups_with_common_readers_share_on_request() -> None:
    model = tables(4)
    shared = tuple(evolve(node, inputs=(node.inputs[0], "i0" if n < 2 else "i2")) for n, node in enumerate(model.nodes))
    found = compile_graph(
        evolve(model, nodes=shared), REGISTRY, GPU, CompileOptions(horizontal_fusion="connected"), emit
    )
    assert [group["outputs"] for group in found.groups] == [["y0", "y1"], ["y2", "y3"]]


@frozen
class OtherWidths(AnalyticModel):
    """Measured kernels whose blocks have as many threads as no other's."""

    def schedule(self, kernels: Mapping[Hashable, Workload], share: float = 1.0) -> Mapping[Hashable, Candidate]:
        found: dict[Hashable, Candidate] = {}
        for key, kernel in kernels.items():
            used = [c.features["threads"] for c in found.values()]
            first, *others = choose(kernel.form, self.target, count=64)
            wide = next(c for c in others if c.features["threads"] not in (*used, first.features["threads"]))
            found[key] = evolve(wide, measured={"measured": 1e-6}, modelled=first.in_shared_launch(wide))
        return found


def test_measured_widths_keep_no_shared_launch() -> None:
    """Launches are proposed by the cost model's schedules."""
    shapes = {"r": (8, 64)} | {f"k{n}": (64, 16 + n) for n in range(3)}
    model = graph(shapes, *(op(f"o{n}", "matmul", "r", f"k{n}") for n in range(3)), out="o0 o1 o2")
    context = CompileContext(REGISTRY, GPU, CompileOptions(), emit, costs=OtherWidths(GPU, LocalExecutor()))
    kernels = run_stages(model, context)
    assert kernels is not None
    found = assemble_kernels(kernels, context)
    assert [found.kernels[step.kernel].source for step in found.steps] == [
        kernel.source for kernel in compile_model(model).kernels
    ]


def test_a_loop_stays_whole_after_its_initial_values() -> None:
    lines = [*recurrence("a", "x"), *recurrence("b", "y"), op("c", "matmul", "a", "w"), op("d", "add", "c", "b")]
    found = compile_model(graph({"x": (6, 24), "y": (6, 24), "w": (24, 24)}, *lines, out="d al"))
    assert [loop.count for loop in found.loops] == [6, 6]
    turning = [group["nodes"] for group in found.groups if "turns" in group]
    assert sum(loop.last - loop.first for loop in found.loops) == len(turning)


def test_products_and_their_readers_are_two_launches() -> None:
    x, w = TensorType(DType.F32, (512, 256)), TensorType(DType.F32, (256, 256))
    types = {"x": x, **{f"w{n}": w for n in "qkv"}, **dict.fromkeys("qkv", x), "s": TensorType(DType.F32, (512, 512))}
    nodes = (
        *(Node(f"n{n}", "matmul", ("x", f"w{n}"), (n,)) for n in "qkv"),
        Node("score", "gemm", ("q", "k"), ("s",), {"trans_b": True}),
    )
    found = compile_model(Graph("attention", ("x", "wq", "wk", "wv"), ("s", "v"), types, nodes))
    places = {tensor: n for n, group in enumerate(found.groups) for tensor in group["outputs"]}
    assert places["q"] == places["k"]
    assert places["s"] > places["q"]


@pytest.mark.parametrize("mode", ["no-fusion", "fusion"])
def test_other_modes_launch_each_group_by_itself(mode: str) -> None:
    assert len(compile_model(tables(3), mode).steps) == 3


def test_only_kernels_with_partners_are_scheduled_for_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    choose = launch_schedules.choose
    monkeypatch.setattr(launch_schedules, "choose", lambda *given: asked.append(given) or choose(*given))
    compile_model(graph({"x": (64, 64)}, op("a", "softmax", "x"), op("b", "transpose", "a", perm=(1, 0)), out="b"))
    assert not asked
    compile_model(tables(4))
    assert asked


def test_equal_launches_are_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, merge, schedule = [], horizontal_fusion._merge_all, horizontal_fusion.schedule_row
    monkeypatch.setattr(
        horizontal_fusion, "schedule_row", lambda row, over: asked.append(row.key) or schedule(row, over)
    )
    monkeypatch.setattr(horizontal_fusion, "_merge_all", lambda several, *more: merge([*several, *several], *more)[:1])
    compile_model(tables(4))
    assert asked
    assert len(asked) == len(set(asked))


def test_a_processor_gets_no_wide_kernels() -> None:
    assert len(compile_model(tables(3), target=find_target("opencl")).steps) == 3


def test_parameters_of_a_launch_are_limited() -> None:
    narrow = evolve(GPU, parameter_bytes=12 * 3 * 4)
    found = compile_model(tables(26), target=narrow)
    assert max(int(group.get("members", 1)) for group in found.groups) == 4
    assert sum(int(group.get("members", 1)) for group in found.groups) == 26


def test_shared_launches_keep_few_values_alive() -> None:
    """Values beyond the L2 cache take about the bytes of single launches."""
    chains = range(8)
    shapes = {"w": (32, 2048), "v": (2048, 32), **{f"x{n}": (32, 32) for n in chains}}
    nodes = [
        node for n in chains for node in (op(f"a{n}", "matmul", f"x{n}", "w"), op(f"y{n}", "matmul", f"a{n}", "v"))
    ]
    model = graph(shapes, *nodes, out=" ".join(f"y{n}" for n in chains))
    alone = compile_model(model, "fusion")
    peaks = {}
    for size in (1 << 14, 1 << 30):
        target = evolve(GPU, l2_bytes=size)
        peaks[size] = make_plan(compile_model(model, target=target), target).arena
    assert peaks[1 << 14] <= 1.125 * make_plan(alone, GPU).arena < peaks[1 << 30]


@needs_opencl
@settings(max_examples=examples(8, 60), deadline=None, suppress_health_check=_SLOW_CHECKS)
@given(st.integers(2, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_horizontal_fusion_keeps_results_of_branching_graphs(wide: int, deep: int, draw: Any) -> None:
    nodes: list[Any] = []
    value = ["x"]
    for level in range(deep):
        following = []
        for n in range(wide):
            name, source = f"v{level}_{n}", draw.choice(value)
            kind = draw.choice(["relu", "tanh", "softmax", "reduce_max", "matmul", "loop"])
            if kind == "loop":
                nodes += recurrence(name, source)
            elif kind == "matmul":
                nodes.append(op(name, "matmul", source, "w"))
            elif kind == "reduce_max":
                nodes.append(op(f"{name}m", "reduce_max", source, axes=(-1,), keepdims=True))
                nodes.append(op(name, "add", source, f"{name}m"))
            else:
                nodes.append(op(name, kind, source))
            following.append(name)
        value = following
    model = graph({"x": (6, 24), "w": (24, 24)}, *nodes, out=" ".join(value))
    plan = build_graph(model, load_spec([]), PLAIN, CompileOptions())
    assert all(result.ok for result in plan.verify())
    assert sum(int(group.get("members", 1)) for group in plan.plan.groups) >= len(plan.plan.steps)


@given(st.lists(st.frozensets(st.integers(0, 30), max_size=4), min_size=1, max_size=30), st.randoms())
def test_launches_of_one_level_can_be_ordered(drawn: list[frozenset[int]], draw: Any) -> None:
    needs = [frozenset(n for n in waits if n < place) for place, waits in enumerate(drawn)]
    groups: list[Any] = [type("Free", (), {"repeat": None, "inputs": waits})() for waits in needs]
    found = levels(needs, groups)
    by_level: dict[int | None, list[int]] = {}
    for place, level in enumerate(found):
        by_level.setdefault(level, []).append(place)
    launches = []
    for places in by_level.values():
        draw.shuffle(places)
        cut = draw.randint(1, len(places))
        parts = [part for part in (places[:cut], places[cut:]) if part]
        launches += [Launch(tuple(groups[n] for n in part), (), tuple(part)) for part in parts]
    done: set[int] = set()
    for launch in in_order(launches, needs):
        for place in launch.places:
            assert needs[place] <= done
        done |= set(launch.places)
    assert done == set(range(len(needs)))


def test_large_results_come_last() -> None:
    """Compute an outer product, which nothing reads, after a chain of products."""
    chain = op("c", "matmul", "a", "a"), op("y", "matmul", "c", "column")
    inputs = {"column": (512, 1), "row": (1, 512), "a": (512, 512)}
    compiled = compile_model(graph(inputs, op("wide", "matmul", "column", "row"), *chain, out="wide y"))
    assert "wide" in compiled.steps[-1].tensors
    assert make_plan(compiled, GPU).arena < 3.1 * 512 * 512 * 4


def test_a_shared_launch_precedes_its_first_reader() -> None:
    """Launch groups 0 and 4 together, ahead of their reader."""
    needs = [frozenset[int](), frozenset({0}), frozenset({1}), frozenset[int](), frozenset[int]()]
    groups: list[Any] = [type("Free", (), {"repeat": None})() for _ in needs]
    launches = [Launch(tuple(groups[n] for n in part), (), part) for part in ((1,), (2,), (3,), (0, 4))]
    assert [each.places for each in in_order(launches, needs)] == [(0, 4), (1,), (2,), (3,)]


def candidate(taken: float, grid: int, occupancy: int, threads: int = 128) -> Candidate:
    """Return a candidate that takes some time, on as many blocks."""
    numbers = {"grid": float(grid), "occupancy": float(occupancy), "threads": float(threads)}
    return Candidate(Schedule(()), 0.0, "dram", numbers, taken)


def launch(*candidates: Candidate) -> Launch:
    """Return a launch of nameless groups."""
    return Launch((), candidates, tuple(range(len(candidates))))


def test_small_fused_kernels_take_the_longest_time() -> None:
    small = candidate(5e-6, 10, 8)
    assert launch_seconds(launch(small, small, small), GPU) == pytest.approx(5e-6)


def test_kernels_that_fill_the_machine_save_launches_only() -> None:
    full = candidate(50e-6, 132 * 8, 8)
    saving = 2 * 50e-6 - launch_seconds(launch(full, full), GPU)
    assert saving == pytest.approx(GPU.launch_time)


def test_a_kernel_pays_for_room_that_another_takes() -> None:
    light, heavy = candidate(50e-6, 132 * 8, 8), candidate(50e-6, 132 * 8, 2)
    assert launch_seconds(launch(light, heavy), GPU) > 2 * 50e-6


def test_few_blocks_need_no_room_that_another_takes() -> None:
    light, heavy = candidate(5e-6, 132 * 2, 8), candidate(2e-6, 132, 2)
    assert launch_seconds(launch(light, heavy), GPU) < 5e-6 + 2e-6


def test_a_record_of_a_launch_covers_all_members() -> None:
    """Twelve long kernels fill the machine.

    A record of only one of them would say 1775 us for an estimate of 211.
    """
    numbers = {"grid": 108.0, "occupancy": 1.0, "threads": 256.0, "time_math": 140e-6}
    members = [Candidate(Schedule(()), 143e-6, "math", numbers, 211e-6)] * 12
    bound, limit = shared_launch_bound(members, GPU)
    assert (bound, limit) == (pytest.approx(12 * 140e-6 * 108 / 132, rel=0.02), "math")
    assert bound < launch_seconds(launch(*members), GPU) == pytest.approx(12 * 208e-6 * 108 / 132, rel=0.02)
    assert shared_launch_bound(members[:1], GPU) == (143e-6, "math")
    roomy = [evolve(member, features={**numbers, "occupancy": 2.0}) for member in members]
    assert launch_seconds(launch(*roomy), GPU) >= bound


def test_kernels_of_other_widths_have_separate_launches() -> None:
    assert not is_launchable(launch(candidate(1e-6, 1, 1, 64), candidate(1e-6, 1, 1, 128)), GPU)


def test_kernels_of_clusters_share_no_launch() -> None:
    """Exchanges without clusters are illegal instructions."""
    alone = candidate(1e-6, 1, 1)
    part = SegmentSchedule((TileDim((), 1, 1),), ())
    plain, clustered = (evolve(alone, schedule=Schedule((evolve(part, cluster=n),))) for n in (1, 8))
    assert is_launchable(launch(plain, plain), GPU)
    assert not is_launchable(launch(clustered, clustered), GPU)


def test_equal_kernels_of_launches_have_one_schedule() -> None:
    keys = {0: "sum", 1: "add", 2: "add", 3: "add", 4: "add"}
    narrow, wide, other = (candidate(1e-6, 8, 2, threads) for threads in (64, 128, 64))
    groups: Any = "abc", "de"
    rows = [Launch(groups[0], (other, narrow, narrow), (0, 1, 2)), Launch(groups[1], (wide, wide), (3, 4))]

    def widths(legal: bool) -> list[tuple[float, ...]]:
        found = with_one_schedule(rows, keys, lambda launch: legal)
        return [tuple(c.features["threads"] for c in each.candidates) for each in found]

    assert widths(True) == [(64, 128, 128), (128, 128)]
    assert widths(False) == [(64,), (64,), (64,), (128, 128)]


def test_recorded_launches_have_one_schedule() -> None:
    """Two members have wider blocks than 22 equal ones."""
    made = run_stages(tables(24, kinds=1), planning_context())
    assert made is not None
    record = record_decisions(made.launches, planning_context())
    record = evolve(record, launches=((0, 1), tuple(range(2, 24))))
    found = run_stages(tables(24, kinds=1), planning_context(record=record))
    assert found is not None
    assert [len(launch) for launch in found.launches.launches] == [2, 22]
    assert len({c.schedule for launch in found.launches.candidates for c in launch}) == 1


def test_two_schedules_of_a_kernel_break_the_order() -> None:
    made = run_stages(tables(2, kinds=1), planning_context())
    assert made is not None
    ((first, second),) = made.launches.candidates
    wide = evolve(second, schedule=choose(made.launches.launches[0][0].form, GPU, count=2)[1].schedule)
    with pytest.raises(VerifyError, match="units 'n1': expected the schedule of their launch, found that of an equal"):
        verify_order(evolve(made.launches, candidates=((first, wide),)), planning_context())


def test_products_of_a_row_have_one_schedule() -> None:
    """Alone, keys have blocks of fewer rows than queries."""
    rows = {"q": 4096, "k": 1024, "v": 1024}
    types = {"x": TensorType(DType.BF16, (1, 4096))}
    types |= {f"w{n}": TensorType(DType.BF16, (count, 4096)) for n, count in rows.items()}
    types |= {n: TensorType(DType.BF16, (1, count)) for n, count in rows.items()}
    nodes = [Node(f"of {n}", "gemm", ("x", f"w{n}"), (n,), {"trans_b": True}) for n in rows]
    model = Graph("m", tuple(t for t in types if t not in rows), tuple(rows), types, tuple(nodes), {})
    found = compile_model(model, target=find_target("cuda:h200"))
    (function,), (group,) = found.kernels, found.groups
    assert group["members"] == 3
    assert function.grid[0] <= sum(rows.values()) // 4


def test_lookups_of_many_tables_share_one_launch() -> None:
    """Scheduled separately, each lookup has a block for every other row."""
    alone, together = compile_model(tables(1, 2048)), compile_model(tables(26, 2048, 26))
    assert len(together.steps) == 1
    assert together.kernels[0].grid[0] <= 26 * alone.kernels[0].grid[0] // 4


def test_a_launch_has_few_different_kernels() -> None:
    same = candidate(1e-6, 1, 1)
    assert is_launchable(launch(*[same] * 4 * MAX_DISTINCT_KERNELS), GPU)
    assert not is_launchable(launch(*(candidate(1e-6, 1, 1) for _ in range(MAX_DISTINCT_KERNELS + 1))), GPU)


def test_kernels_of_a_loop_are_launched_by_iteration() -> None:
    spread = np.zeros(3)
    groups: list[Any] = [
        type("Group", (), {"repeat": "loop" if n else None, "inputs": "x"})() for n in range(len(spread))
    ]
    assert levels([frozenset(), frozenset({0}), frozenset({0})], groups) == [0, None, None]


def gradients(count: int, rows: int) -> Graph:
    """Return gradients of look-ups of rows of tables."""
    types: dict[str, TensorType] = {}
    for n in range(count):
        types |= {f"u{n}": TensorType(DType.F32, (rows, 16)), f"i{n}": TensorType(DType.I32, (rows,))}
    inputs = tuple(types)
    sizes = {f"y{n}": 5000 + n % 2 for n in range(count)}
    nodes = tuple(
        Node(f"n{n}", "gather_grad", (f"u{n}", f"i{n}"), (y,), {"axis": 0, "size": size})
        for n, (y, size) in enumerate(sizes.items())
    )
    types |= {y: TensorType(DType.F32, (size, 16)) for y, size in sizes.items()}
    return Graph("gradients", inputs, tuple(sizes), types, nodes)


def test_atomic_updates_share_launches_only_with_each_other() -> None:
    found = compile_model(gradients(6, 64))
    assert [group["members"] for group in found.groups] == [18, 12, 6]  # fills and scales, sums, results
    assert {len({name[0] for name in group["outputs"]}) for group in found.groups} == {1}


@needs_opencl
def test_row_sums_of_shared_launches_are_right() -> None:
    model = gradients(3, 64)
    plan = build_graph(model, load_spec([]), PLAIN, CompileOptions())
    assert max(int(group.get("members", 1)) for group in plan.plan.groups) > 1
    rng = np.random.default_rng(0)
    given_ = {f"u{n}": rng.standard_normal((64, 16)).astype(np.float32) for n in range(3)}
    given_ |= {f"i{n}": rng.integers(0, 40, 64).astype(np.int32) for n in range(3)}
    assert all(result.ok for result in plan.verify(given_))


@needs_opencl
@settings(max_examples=examples(3, 120), deadline=None, suppress_health_check=_SLOW_CHECKS)
@given(st.lists(st.sampled_from(("add", "mul", "max")), min_size=1, max_size=2), st.integers(1, 3), st.data())
def test_updates_of_memory_follow_its_fill(kinds: list[str], others: int, draw: Any) -> None:
    """The fill of an update's buffer may share a launch.

    The shared launch may be later.
    """
    inputs = {
        "x": TensorType(DType.F32, (4, 3)),
        "i": TensorType(DType.I32, (3, 1)),
        "u": TensorType(DType.F32, (3, 3)),
    }
    lines = [op(f"s{n}", "scatter_nd", "x", "i", "u", reduction=kind, atomic=True) for n, kind in enumerate(kinds)]
    lines += [op(f"e{n}", ("exp", "neg", "abs", "relu", "tanh")[n], "x") for n in range(others)]
    order = draw.draw(st.permutations(range(len(lines))))
    out = " ".join(name for name, *_ in lines)
    made = graph(inputs, *(lines[n] for n in order), out=out)
    plan = build_graph(made, load_spec([]), PLAIN, CompileOptions())
    for seed in range(2):
        rng = np.random.default_rng(seed)
        given_ = {
            "x": rng.uniform(0.5, 2, (4, 3)).astype(np.float32),
            "i": rng.integers(0, 4, (3, 1)).astype(np.int32),
            "u": rng.uniform(0.5, 2, (3, 3)).astype(np.float32),
        }
        assert all(result.ok for result in plan.verify(given_))
