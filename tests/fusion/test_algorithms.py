"""Algorithms of a declaration: meaning, selection by cost, and tolerance."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Sequence
from importlib import import_module

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.compile.loading import load_spec
from cuts.compile.plan import plan_of
from cuts.ir import BOUND_PRUNING
from cuts.ir.affine import Index, Var, as_index
from cuts.ir.compiled import CompileOptions
from cuts.ir.expr import Read
from cuts.ir.graph import Graph, Node
from cuts.ir.segment import FusedGroup
from cuts.ir.statement import Program, Statement
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.numerics.error_growth import amplification
from cuts.numerics.reference import accumulations, run_reference
from cuts.numerics.shrunk_program import shrink_programs
from cuts.ops import Registry
from cuts.ops.reference import evaluate
from cuts.passes.context import CompileContext
from cuts.passes.costs.candidate_subgraphs import (
    CandidateSubgraph,
    CostedKernels,
    SubgraphKernels,
    partition_subgraph,
)
from cuts.passes.costs.executor import ScheduleRequest, Workload
from cuts.passes.fusion import build_programs, canonical_names, fold_tables, form_key, store_foldings
from cuts.passes.graph.simplification.canonicalise import Canonicalise
from cuts.passes.layout import choose_layouts
from cuts.passes.partitioning.algorithm_graphs import replace_node
from cuts.passes.partitioning.choose_algorithms import ChooseAlgorithms
from cuts.passes.pipeline import compile_graph, stage_results
from cuts.passes.schedule import RANKED_POINTS, best_points
from cuts.passes.schedule.selection.choose import choose
from cuts.search.building.factory import Factory
from cuts.search.building.planning_workers import MIN_PLANNING_NODES, MIN_PLANNING_QUERIES, PlanningWorkers
from cuts.search.tasks.tuning_task import TuningTask, machine_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ..kernels.cases import ByModel
from ..needs import needs_opencl

pytestmark = pytest.mark.long

REGISTRY = Registry.builtin()
INSTANCES = REGISTRY.instances
TARGET = find_target("cuda:sm_90")


def convolution(
    n: int,
    c: int,
    k: int,
    height: int,
    width: int,
    pads: tuple[int, ...] = (1, 1, 1, 1),
    bias: bool = True,
    size: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
) -> Graph:
    """Return relu(conv)."""
    shapes = {"x": (n, c, height, width), "w": (k, c, *size), "b": (k,)}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    generator = np.random.default_rng(1)
    constants = {name: generator.standard_normal(shapes[name]).astype(np.float32) for name in ("w", "b")}
    conv = Node("c", "conv", ("x", "w", "b" if bias else None), ("y",), {"pads": pads, "strides": strides})
    (types["y"],) = INSTANCES.infer(conv, [types["x"], types["w"], types["b"] if bias else None])
    types["z"] = types["y"]
    if not bias:
        del types["b"], constants["b"]
    return Graph("g", ("x",), ("z",), types, (conv, Node("r", "relu", ("y",), ("z",))), constants)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_an_algorithm_computes_what_the_declaration_means(data: st.DataObject) -> None:
    pads = tuple(data.draw(st.integers(0, 2)) for _ in range(4))
    filters = data.draw(st.sampled_from([(3, 3), (5, 5), (4, 2), (1, 7), (5, 1), (1, 3), (9, 6)]))
    sizes = [
        data.draw(st.integers(low, high)) for low, high in ((1, 2), (1, 4), (1, 4), (filters[0], 19), (filters[1], 19))
    ]
    strides = data.draw(st.sampled_from([(1, 1), (2, 2), (3, 3)] if min(filters) > 1 else [(1, 1)]))
    graph = convolution(*sizes, pads, data.draw(st.booleans()), filters, strides)
    alternatives = INSTANCES.of_node(graph.nodes[0], graph).algorithms
    assert alternatives
    x = {"x": np.random.default_rng(2).standard_normal(graph.types["x"].shape).astype(np.float32)}
    (expected,) = run_reference(graph, REGISTRY, x).values()
    for name in alternatives:
        other = verify_graph(replace_node(graph, graph.nodes[0], name, INSTANCES), INSTANCES.infer)
        (found,) = run_reference(other, REGISTRY, x).values()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("each", "groups", "filters"), [(4, 16, 64), (8, 8, 128), (16, 2, 16)])
def test_joined_groups_compute_what_the_declaration_means(each: int, groups: int, filters: int) -> None:
    types = {"x": TensorType(DType.F32, (2, each * groups, 6, 5)), "w": TensorType(DType.F32, (filters, each, 3, 3))}
    node = Node("c", "conv", ("x", "w"), ("y",), {"pads": (1, 0, 1, 2), "strides": (2, 1), "groups": groups})
    (types["y"],) = INSTANCES.infer(node, [*types.values()])
    graph = Graph("g", ("x", "w"), ("y",), types, (node,))
    assert "joined_groups" in INSTANCES.of_node(node, graph).algorithms
    generator = np.random.default_rng(3)
    given_ = {name: generator.standard_normal(types[name].shape).astype(np.float32) for name in graph.inputs}
    other = verify_graph(replace_node(graph, node, "joined_groups", INSTANCES), INSTANCES.infer)
    found, expected = (run_reference(g, REGISTRY, given_) for g in (other, graph))
    np.testing.assert_allclose(*found.values(), *expected.values(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_no_numbers_spread_within_tiles_and_groups(special: float) -> None:
    """Results that are no numbers stay so.

    Others become none only where values are combined.
    """
    plain = {"x": TensorType(DType.F32, (1, 4, 9, 9)), "w": TensorType(DType.F32, (4, 4, 3, 3))}
    grouped = {"x": TensorType(DType.F32, (1, 64, 9, 9)), "w": TensorType(DType.F32, (64, 8, 3, 3))}
    for name, types, groups, rows in (
        ("joined_groups", grouped, 8, 3), ("winograd_2x2", plain, 1, 4), ("winograd_4x4", plain, 1, 8),
    ):  # fmt: skip
        node = Node("c", "conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1), "groups": groups})
        whole = {**types, "y": INSTANCES.infer(node, [*types.values()])[0]}
        graph = Graph("g", ("x", "w"), ("y",), whole, (node,))
        generator = np.random.default_rng(5)
        given_ = {v: generator.standard_normal(types[v].shape).astype(np.float32) for v in graph.inputs}
        given_["x"][0, 0, 1, 1] = special
        other = verify_graph(replace_node(graph, node, name, INSTANCES), INSTANCES.infer)
        with np.errstate(invalid="ignore"):
            found, expected = (np.isfinite(run_reference(g, REGISTRY, given_)["y"]) for g in (other, graph))
        assert not found[~expected].any()
        assert found[:, :, rows:, rows:].all(), "neighbours of the pixel, or pixels of its tiles"
        assert found[:, 32:].all(), "the first 32 channels are those of joined groups"
        grown = amplification(node, [*types.values()], name, INSTANCES)
        assert grown < 1.1 if groups > 1 else grown > 1.5, "both are gated by the growth of errors"


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_fused_gates_compute_the_same_as_separate_ones(data: st.DataObject) -> None:
    op, gates = data.draw(st.sampled_from([("lstm", 4), ("gru", 3)]))
    dtype = data.draw(st.sampled_from([DType.F32, DType.F16, DType.BF16, DType.F64]))
    steps, width, hidden = (data.draw(st.integers(1, 4)) for _ in range(3))
    batch, direction = data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    ways = 1 + (direction == "bidirectional")
    shapes = {"x": (steps, batch, width), "w": (ways, gates * hidden, width), "r": (ways, gates * hidden, hidden),
              "b": (ways, 2 * gates * hidden), "lengths": (batch,), "h0": (ways, batch, hidden)}  # fmt: skip
    shapes |= {"c0": (ways, batch, hidden), "p": (ways, 3 * hidden)} if op == "lstm" else {}
    attributes: dict[str, object] = {"direction": direction} | ({"clip": 1.5} if data.draw(st.booleans()) else {})
    attributes |= {"linear_before_reset": True} if op == "gru" else {"input_forget": data.draw(st.booleans())}
    given = {name: name if name in "xwr" or data.draw(st.booleans()) else None for name in shapes}
    rng = np.random.default_rng(3)
    arrays: dict[str, np.ndarray] = {n: rng.standard_normal(shapes[n]).astype(dtype.numpy) for n in shapes if given[n]}
    if given["lengths"]:
        arrays["lengths"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    if batch and (special := data.draw(st.sampled_from([None, np.nan, np.inf, -np.inf]))) is not None:
        arrays["x"].reshape(-1)[0] = special
    types = {n: TensorType(DType.I32 if n == "lengths" else dtype, a.shape) for n, a in arrays.items()}
    results = ("y", "last", "last_cell")[: 3 if op == "lstm" else 2]
    node = Node("n", op, tuple(given.values()), results, attributes)  # type: ignore[arg-type]
    made = INSTANCES.infer(node, [None if v is None else types[v] for v in given.values()])
    graph = Graph("g", tuple(arrays), results, {**types, **dict(zip(results, made, strict=True))}, (node,))
    (name,) = INSTANCES.of_node(node, graph).algorithms
    other = verify_graph(replace_node(graph, node, name, INSTANCES), INSTANCES.infer)
    assert [n.attributes["together"] for n in other.nodes] == [True]
    expected, found = (run_reference(g, REGISTRY, arrays) for g in (graph, other))
    for result, again in zip(expected.values(), found.values(), strict=True):
        np.testing.assert_allclose(np.float64(again), np.float64(result), rtol=1e-5, atol=1e-6)


def with_mean(graph: Graph) -> Graph:
    """Return a graph whose output is the mean of its output's squares."""
    squares = Node("square", "mul", ("z", "z"), ("s",))
    mean = Node("mean", "reduce_mean", ("s",), ("loss",), {"axes": (0, 1, 2, 3), "keepdims": False})
    types = {**graph.types, "s": graph.types["z"], "loss": TensorType(DType.F32, ())}
    return evolve(graph, nodes=(*graph.nodes, squares, mean), outputs=("loss",), types=types)


def test_small_operands_show_the_rounding_of_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluating the declaration whole takes 4 s for a layer of 1,000.

    It needs four times as many rows as a state has.
    """
    sizes: list[int] = []

    def record_program(program: Program, operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        sizes.extend(array.size for array in operands.values())
        return evaluate(program, operands)

    monkeypatch.setattr(import_module("cuts.numerics.error_growth"), "evaluate", record_program)
    for op, gates in (("lstm", 4), ("gru", 3)):
        shapes = ((25, 64, 999), (1, gates * 1000, 999), (1, gates * 1000, 1000), (1, 2 * gates * 1000))
        node = Node("n", op, ("x", "w", "r", "b"), ("y",), {"linear_before_reset": True} if op == "gru" else {})
        types = [TensorType(DType.F32, shape) for shape in shapes]
        assert 1.0 <= amplification(node, types, "gates_together", INSTANCES) < 1.5
    assert sizes
    assert max(sizes) <= 8**3


def test_few_channels_show_the_rounding_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient takes no smaller operands.

    Whole evaluation of a step of DenseNet-121 takes minutes.
    """
    module = import_module("cuts.numerics.error_growth")
    sizes: list[int] = []

    def record_program(program: Program, operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        sizes.extend(array.size for array in operands.values())
        return evaluate(program, operands)

    monkeypatch.setattr(module, "evaluate", record_program)
    reported = 0
    cases = [(*sizes, filters) for filters in (3, 5) for sizes in ((3, 12, 10, 8, 8), (64, 128, 32, 56, 56))]
    for *sizes_of, filters in cases:
        pads, size = (filters // 2,) * 4, (filters, filters)
        made = cuts.grad(with_mean(convolution(*sizes_of, pads=pads, size=size, bias=False)), wrt=["x", "w"])
        instances = made.spec.instances
        for node in made.graph.nodes:
            types = [None if v is None else made.graph.types[v] for v in node.inputs]
            for algorithm in instances.of(node, types).algorithms:
                sizes.clear()
                found = amplification(node, types, algorithm, instances)
                assert max(sizes) <= 8**2 * 4 * 28 * 28  # tiles of two channels of two samples
                assert amplification(node, types, algorithm, instances) == found
                if sizes_of[0] == 3:
                    assert found == pytest.approx(module._factor(node, types, algorithm, instances), rel=1e-9)
                reported += found > 1.0
    assert reported >= 12


def test_what_has_no_elements_keeps_its_sizes() -> None:
    """An empty dim could have empty digits without an end."""
    digits = Index(0) + as_index(Var("i", 0)) * 4 + as_index(Var("j", 4))
    empty = TensorType(DType.F32, (0,))
    split = Statement("y", (Var("i", 0), Var("j", 4)), (digits,), Read("x", (as_index(Var("i", 0)),)))
    copied = Statement("y", (Var("k", 0),), (as_index(Var("k", 0)),), Read("x", (as_index(Var("k", 0)),)))
    program = Program({"x": empty, "y": empty}, ("x",), ("y",), (split, copied))
    assert shrink_programs([program], 2) == [program]
    made = cuts.grad(with_mean(convolution(0, 12, 10, 8, 8, bias=False)), wrt=["x", "w"])
    for node in made.graph.nodes:
        types = [None if v is None else made.graph.types[v] for v in node.inputs]
        for algorithm in made.spec.instances.of(node, types).algorithms:
            assert amplification(node, types, algorithm, made.spec.instances) >= 1.0


def test_dims_that_only_whole_axes_use_shrink() -> None:
    """Samples, groups, and channels of each become smaller.

    Axes of filters, and axes in guards and tables, do not.
    """
    node = Node("n", "conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1), "groups": 4})
    program = INSTANCES.of(node, [TensorType(DType.F32, s) for s in ((16, 24, 9, 9), (20, 6, 3, 3))]).program
    (small,) = shrink_programs([program], 2)
    shapes = {tensor: type_.shape for tensor, type_ in small.tensors.items()}
    assert [shapes[t] for t in (*small.inputs, *small.outputs)] == [(2, 4, 9, 9), (4, 2, 3, 3), (2, 4, 9, 9)]
    arrays = {t: np.ones(shapes[t]) for t in small.inputs}
    whole = evaluate(program, {t: np.ones(program.tensors[t].shape) for t in program.inputs})
    np.testing.assert_array_equal(3 * evaluate(small, arrays)["y"], whole["y"][:2, :4])
    for op, shape, attributes in (
        ("one_hot", (16,), {"depth": 9}),
        ("cumsum", (16, 9), {"axis": 1}),
        ("trilu", (16, 16), {}),
        ("depth_to_space", (16, 36, 5, 5), {"blocksize": 3}),
        ("softmax", (16, 9), {"axis": 1}),
    ):
        dtype = DType.I64 if op == "one_hot" else DType.F32
        made = INSTANCES.of(Node("n", op, ("x",), ("y",), attributes), [TensorType(dtype, shape)]).program
        (less,) = shrink_programs([made], 2)
        few, all_of_it = (evaluate(p, {t: np.zeros(p.tensors[t].shape) for t in p.inputs}) for p in (less, made))
        assert sum(array.size for array in few.values()) < made.tensors[made.outputs[0]].size or op == "trilu"
        for name, array in few.items():
            whole_of = all_of_it[name][tuple(slice(n) for n in array.shape)]
            np.testing.assert_allclose(array, whole_of * (4.5 if op == "softmax" else 1))


def test_launches_of_each_step_count_every_time() -> None:
    """One product for all gates is faster with many sequences.

    It costs one more launch at each step.
    """

    def kernels(batch: int) -> CostedKernels:
        shapes = {"x": (40, batch, 512), "w": (1, 2048, 512), "r": (1, 2048, 512)}
        types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
        node = Node("n", "lstm", tuple(shapes), ("y",))
        (types["y"], *_) = INSTANCES.infer(node, list(types.values()))
        graph = Graph("g", tuple(shapes), ("y",), types, (node,))
        found = partition_subgraph(CandidateSubgraph(graph, REGISTRY, TARGET, "mixed"))
        assert found is not None
        return found

    found = kernels(8)
    assert sorted(found.counts)[-1] == 40
    assert found.total([1.0] * len(found.costs)) == sum(found.counts) > len(found.costs)
    assert found.searched > 40 * min(choose(form, TARGET)[0].score for form, _ in found.costs)


@pytest.mark.parametrize("batch", [1, 8])
def test_initial_points_are_ranked_during_alternatives_partitioning(batch: int) -> None:
    """The model searches for the best points of sums at that time.

    These are the first points of a search's ranking.
    """
    node = Node("n", "matmul", ("a", "b"), ("y",))
    types = {"a": TensorType(DType.F32, (batch, 512)), "b": TensorType(DType.F32, (512, 64))}
    (types["y"],) = INSTANCES.infer(node, list(types.values()))
    found = partition_subgraph(
        CandidateSubgraph(Graph("g", ("a", "b"), ("y",), types, (node,)), REGISTRY, TARGET, "mixed")
    )
    assert found is not None
    assert found.points
    named = {form_key(form) for form, _ in found.points}
    assert {form_key(canonical_names(form)[0]) for form, _ in found.costs} <= named
    for form, points in found.points:
        assert points == best_points(form, TARGET, BOUND_PRUNING, RANKED_POINTS)
        problem = TuningTask(form, {}, TARGET, machine_of(TARGET))
        assert Factory().rank(problem, BOUND_PRUNING, RANKED_POINTS, None, points) == Factory().rank(
            problem, BOUND_PRUNING, RANKED_POINTS
        )


class Words:
    """Evaluator with the test's preferences, in seconds per number of reduced terms."""

    def __init__(self, contraction: float) -> None:
        self.contraction = contraction

    def cost(self, group: FusedGroup) -> float:
        """Return seconds proportional to reduced terms, and a fixed time per kernel."""
        return 1.0 + self.contraction * sum(
            np.prod([v.extent for v in (*s.axes, *r.reduce)]) for s in group.segments for r in s.reductions
        )


@pytest.mark.parametrize(("contraction", "best"), [(0.0, ""), (1.0, "winograd_4x4")])
def test_the_cheapest_is_taken(contraction: float, best: str) -> None:
    graph = convolution(2, 16, 16, 16, 16)
    step = ChooseAlgorithms(INSTANCES, Words(contraction), TARGET, "mixed")
    chosen = step.run(graph)
    assert step.replaced == ({"c": best} if best else {})
    assert (chosen is graph) == (not best)
    final = Canonicalise(INSTANCES).run(chosen)
    assert "winograd_filter" not in {n.op for n in final.nodes}, "filters are constants"


#: Partitions candidate subgraphs into kernels.
Planner = Callable[[Sequence[CandidateSubgraph]], Sequence[SubgraphKernels]]
#: Kernels of candidate subgraphs by their computation, so that tests about decisions partition each into kernels once.
CUT: dict[tuple[object, ...], SubgraphKernels] = {}


def submitting(plan: Planner) -> Callable[[Sequence[CandidateSubgraph]], Callable[[], Sequence[SubgraphKernels]]]:
    """Return a function that has candidate subgraphs partitioned by a planner."""
    return lambda fragments: lambda: plan(fragments)


def planner_with_costs(seconds: Sequence[float]) -> Planner:
    """Return a planner with a model of given costs.

    Costs are those of declarations, then of their alternatives by Winograd's tiles of 2x2, then of 4x4, in any order of
    evaluation. They distinguish declarations of different results.
    """
    results: list[TensorType] = []

    def says(fragment: CandidateSubgraph) -> float:
        tiles = [int(n.attributes["tile"]) for n in fragment.graph.nodes if "tile" in n.attributes]  # type: ignore[call-overload]
        result = fragment.graph.types[fragment.graph.outputs[0]]
        if not tiles:
            results.append(result)
            return seconds[len(results) - 1]
        return seconds[tiles[0] // 2 * len(results) + results.index(result)]

    def kernels(fragment: CandidateSubgraph) -> SubgraphKernels:
        key = tuple((n.op, *(str(fragment.graph.types[v]) for v in n.operands)) for n in fragment.graph.nodes)
        if key not in CUT:
            CUT[key] = partition_subgraph(fragment)
        made = CUT[key]
        return None if made is None else evolve(made, searched=says(fragment))

    return lambda fragments: [kernels(fragment) for fragment in fragments]


@pytest.mark.parametrize(("seconds", "guessed"), [((1.0, 2.0, 0.9), ""), ((1.0, 0.9, 0.8), "winograd_4x4")])
def test_the_model_decides_where_its_error_is_smaller(seconds: Sequence[float], guessed: str) -> None:
    graph = convolution(2, 16, 16, 16, 16)
    step = ChooseAlgorithms(
        INSTANCES, Words(1.0), TARGET, "mixed", submitting(planner_with_costs(seconds)), known=lambda form: False
    )
    step.run(graph)
    assert step.replaced == ({"c": guessed} if guessed else {})
    assert [form for question in step.questions for form in question], "it is measured where there is time"


@pytest.mark.parametrize(("contraction", "best"), [(0.0, ""), (1.0, "winograd_4x4")])
@pytest.mark.parametrize("seconds", [(1.0, 2.0, 0.9), (1.0, 0.9, 0.1)])
def test_what_was_measured_decides_whatever_a_model_said(
    contraction: float, best: str, seconds: Sequence[float]
) -> None:
    graph = convolution(2, 16, 16, 16, 16)
    known: list[FusedGroup] = []
    step = ChooseAlgorithms(
        INSTANCES,
        Words(contraction),
        TARGET,
        "mixed",
        submitting(planner_with_costs(seconds)),
        known=lambda form: form in known,
    )
    step.run(graph)
    for _ in seconds:  # as a search measures them
        known += [form for question in step.questions for form in question]
        step.run(graph)
    assert step.replaced == ({"c": best} if best else {})


def test_an_alternative_with_much_traffic_is_not_partitioned() -> None:
    """Filters of 7x7 become 12 times as large in tiles of 16x16.

    Reading them takes three times as long as the declaration.
    """
    graph = convolution(1, 160, 192, 17, 17, (3, 3, 3, 3), False, (7, 7))
    asked: list[set[str]] = []

    def plan(fragments: Sequence[CandidateSubgraph]) -> Sequence[SubgraphKernels]:
        asked.append({n.op for f in fragments for n in f.graph.nodes})
        return [CostedKernels((), 5e-6) for f in fragments]

    step = ChooseAlgorithms(INSTANCES, Words(1.0), TARGET, "mixed", submitting(plan))
    assert step.run(graph) is graph
    assert asked == [{"conv", "relu"}]


def test_the_largest_possible_savings_are_partitioned_first() -> None:
    """Workers begin at the end, this process at the beginning.

    Larger tiles of the larger layer save most.
    """
    shapes = {"x": (2, 64, 56, 56), "u": (64, 64, 3, 3), "v": (64, 64, 3, 3), "b": (2, 64, 14, 14)}
    nodes = [Node(y, "conv", (x, w), (y,), {"pads": (1, 1, 1, 1)}) for x, w, y in (("x", "u", "a"), ("b", "v", "c"))]
    types = {v: TensorType(DType.F32, shape) for v, shape in shapes.items()}
    types |= {"a": types["x"], "c": types["b"]}
    constants = {v: np.zeros(types[v].shape, np.float32) for v in ("u", "v")}
    graph = Graph("g", ("x", "b"), ("a", "c"), types, tuple(nodes), constants)
    asked: list[list[tuple[int, int]]] = []

    def plan(fragments: Sequence[CandidateSubgraph]) -> Sequence[SubgraphKernels]:
        asked.append(
            [
                (f.graph.types[f.graph.outputs[0]].shape[2], n.attributes["tile"])
                for f in fragments
                for n in f.graph.nodes
                if n.op == "winograd_input"
            ]
        )
        return [
            CostedKernels((), 1e-3 if f.graph.types[f.graph.outputs[0]].shape[2] == 56 else 6e-5) for f in fragments
        ]

    ChooseAlgorithms(INSTANCES, Words(1.0), TARGET, "mixed", submitting(plan)).run(graph)
    assert {asked[1][0], asked[1][-1]} == {(56, 4), (56, 2)}
    assert asked[1][0] == (56, 4)


def test_what_the_model_cannot_decide_is_asked_first() -> None:
    """The layer that the model is sure of has more to win."""
    shapes = {"x": (2, 8, 16, 16), "u": (8, 8, 3, 3), "v": (16, 8, 3, 3)}
    nodes = [Node(y, "conv", (x, w), (y,), {"pads": (1, 1, 1, 1)}) for x, w, y in (("x", "u", "a"), ("a", "v", "b"))]
    graph = subgraph(nodes, {v: TensorType(DType.F32, shape) for v, shape in shapes.items()}, {"u", "v"})
    step = ChooseAlgorithms(
        INSTANCES,
        Words(1.0),
        TARGET,
        "mixed",
        submitting(planner_with_costs((1.0, 9.0, 2.0, 9.0, 0.9, 1.0))),
        known=lambda form: False,
    )
    step.run(graph)
    assert step.replaced == {"b": "winograd_4x4"}
    terms = [Words(1.0).cost(question[0]) for question in step.questions]
    assert terms == sorted(terms)


def test_what_most_time_depends_on_is_asked_first() -> None:
    """Twice eight channels have less to win than sixteen once."""
    shapes = {"x": (2, 8, 16, 16), "u": (8, 8, 3, 3), "v": (16, 8, 3, 3), "w": (16, 16, 3, 3)}
    names = [("x", "u", "a"), ("a", "u", "b"), ("b", "v", "c"), ("c", "w", "d")]
    nodes = [Node(y, "conv", (x, w), (y,), {"pads": (1, 1, 1, 1)}) for x, w, y in names]
    graph = subgraph(nodes, {v: TensorType(DType.F32, shape) for v, shape in shapes.items()}, {"u", "v", "w"})
    step = ChooseAlgorithms(INSTANCES, Words(1.0), TARGET, "mixed")
    step.run(graph)
    terms = [Words(1.0).cost(question[0]) for question in step.questions]
    assert terms == sorted(terms, reverse=True)
    assert len(terms) == 3


@pytest.mark.parametrize(("kind", "math", "known"), [
    (DType.F32, "", {"", "winograd_2x2", "winograd_4x4"}),
    (DType.F32, "fp32x3", {"", "winograd_2x2", "winograd_4x4"}),
    (DType.F32, "tf32", {"", "winograd_2x2"}),
    (DType.F16, "", {"", "winograd_2x2"}),
    (DType.BF16, "", set()),
])  # fmt: skip
def test_an_inaccurate_algorithm_is_not_compared(kind: DType, math: str, known: set[str]) -> None:
    graph = convolution(2, 16, 16, 16, 16, bias=False)
    graph = evolve(
        graph,
        types={v: evolve(t, dtype=kind) for v, t in graph.types.items()},
        constants={v: c.astype(kind.numpy) for v, c in graph.constants.items()},
    )
    step = ChooseAlgorithms(INSTANCES, Words(1.0), TARGET, "mixed", math=math)
    step.run(graph)
    found = {name for choice in step.choices for name in choice.seconds}
    assert {name for name in found if not name.startswith("fourier")} == known


def test_equal_nodes_are_decided_once() -> None:
    graph = convolution(2, 8, 8, 8, 8)
    again = evolve(graph.nodes[0], name="d", inputs=("z", "w", "b"), outputs=("v",))
    twice = evolve(graph, nodes=(*graph.nodes, again, Node("s", "relu", ("v",), ("u",))), outputs=("u",),
                   types={**graph.types, "v": graph.types["y"], "u": graph.types["y"]})  # fmt: skip
    step = ChooseAlgorithms(INSTANCES, Words(0.0), TARGET, "mixed")
    step.run(twice)
    assert len(step.choices) == 2
    assert len(step.plans) == 1


def test_what_is_priced_is_foreseen() -> None:
    """Workers evaluate the kernels of all plans in parallel, ahead of use."""
    graph, foreseen = convolution(2, 8, 8, 8, 8), list[object]()

    class Asked(Words):
        def cost(self, group: FusedGroup) -> float:
            assert form_key(group) in foreseen
            return super().cost(group)

    def foresee(groups: Sequence[FusedGroup]) -> None:
        foreseen.extend(map(form_key, groups))

    step = ChooseAlgorithms(INSTANCES, Asked(0.0), TARGET, "mixed", prefetch=foresee)
    step.run(graph)
    assert len(foreseen) > len(step.choices[0].seconds) > 1


def test_larger_tiles_round_more() -> None:
    graph = convolution(1, 64, 64, 56, 56)
    node = graph.nodes[0]
    types = [graph.types[str(v)] for v in node.inputs]
    small, large = (amplification(node, types, f"winograd_{t}x{t}", INSTANCES) for t in (2, 4))
    assert 1.5 < small < 2 < 7 < large < 9
    direct, transformed = (accumulations(graph, REGISTRY, used)["z"].length for used in ((), ("winograd_4x4",)))
    assert direct == 576
    assert transformed > 30 * direct


@pytest.mark.parametrize("size", [(5, 5), (7, 6)])
def test_large_filters_pay_by_fourier_transforms(size: tuple[int, int]) -> None:
    graph = convolution(2, 16, 16, 32, 32, (2, 2, 2, 2), size=size)
    step = ChooseAlgorithms(INSTANCES, Words(1.0), TARGET, "mixed")
    step.run(graph)
    assert step.replaced == {"c": "fourier_16"}


def subgraph(nodes: Sequence[Node], types: dict[str, TensorType], weights: Collection[str]) -> Graph:
    """Return a graph of nodes; the last result is the output.

    Names that are neither computed nor weights are inputs.
    """
    for node in nodes:
        types.update(zip(node.outputs, INSTANCES.infer(node, [types[v] for v in node.operands]), strict=True))
    made = {v for n in nodes for v in n.outputs}
    constants = {v: np.zeros(types[v].shape, np.float32) for v in weights}
    return Graph("g", tuple(set(types) - made - {*weights}), nodes[-1].outputs, types, tuple(nodes), constants)


@pytest.mark.parametrize(("contraction", "best"), [(0.0, ""), (1.0, "winograd_4x4")])
def test_kernels_of_a_network_are_compared_in_place(contraction: float, best: str) -> None:
    """Channels are innermost, filters in the order of the reduction.

    The plan launches the measured kernels.
    """
    shapes = {"x": (8, 64, 14, 14), "u": (32, 64, 1, 1), "w": (64, 32, 3, 3), "v": (64, 64, 1, 1)}
    nodes = [
        Node("before", "conv", ("x", "u"), ("a",)),
        Node("c", "conv", ("a", "w"), ("b",), {"pads": (1, 1, 1, 1)}),
        Node("r", "relu", ("b",), ("d",)),
        Node("behind", "conv", ("d", "v"), ("y",)),
    ]
    graph = subgraph(nodes, {v: TensorType(DType.F32, shape) for v, shape in shapes.items()}, {"u", "v", "w"})
    orders = choose_layouts(build_programs(graph, REGISTRY), TARGET, "fp32x3").orders
    step = ChooseAlgorithms(INSTANCES, Words(contraction), TARGET, "mixed", math="fp32x3", orders=orders)
    chosen = Canonicalise(INSTANCES).run(step.run(graph))
    (compared,) = (plans[best] for plans in step.plans.values() if best in plans and "winograd_2x2" in plans)
    whole = partition_subgraph(CandidateSubgraph(chosen, REGISTRY, TARGET, "mixed", "fp32x3"))
    assert compared and whole
    assert {form_key(form) for form, _ in compared.costs} <= {form_key(form) for form, _ in whole.costs}


@needs_opencl
@pytest.mark.parametrize(
    ("target", "size", "used"),
    [("cuda:sm_90", 56, True), ("cuda:sm_90", 4, False), ("opencl:cpu", 56, False)],
)
def test_the_model_decides_sure_cases_without_measurements(target: str, size: int, used: bool) -> None:
    graph = convolution(8, 64, 64, size, size)
    results = stage_results(graph, CompileContext(REGISTRY, find_target(target), CompileOptions(), emit))
    found = next(result for name, result in results if name == "algorithms")
    assert any("winograd" in node.op for node in found.graph.nodes) is used


def test_processes_plan_as_this_one_does() -> None:
    asked: list[CandidateSubgraph] = []

    def note(fragments: Sequence[CandidateSubgraph]) -> Sequence[SubgraphKernels]:
        asked.extend(fragments)
        return [None] * len(fragments)

    ChooseAlgorithms(INSTANCES, Words(1.0), TARGET, "mixed", submitting(note)).run(convolution(1, 4, 4, 8, 8))
    wanted = [*asked * 3, evolve(asked[0], graph=evolve(asked[0].graph, nodes=()))]
    with PlanningWorkers(processors=MIN_PLANNING_QUERIES) as planning:
        assert planning.submit(wanted[:1])() == [partition_subgraph(wanted[0])]
        found = planning.submit(wanted)()
        assert found == [*map(partition_subgraph, wanted)]
        forms = [form for each in found if each is not None for form, _ in each.costs] * MIN_PLANNING_QUERIES
        requests = [ScheduleRequest(form, TARGET) for form in forms]
        assert planning.submit(requests[:1])() == [None]
        chosen = [choose(form, TARGET)[0] for form in forms]
        assert planning.submit(requests)() == chosen
    with PlanningWorkers(len(forms) * MIN_PLANNING_NODES, processors=2, target=TARGET) as planning:
        planning.prepare(lambda: [Workload(form, {}, ()) for form in forms])
        assert planning.submit(requests[:1])() == chosen[:1], "it was asked for ahead"


def test_a_compiled_convolution_by_winograd() -> None:
    graph, target = convolution(4, 32, 32, 20, 19), find_target("opencl")
    plan = plan_of(
        ByModel(target).compile(graph, REGISTRY, target, CompileOptions(), emit), graph, load_spec(()), target
    )
    assert not any(
        group["algorithms"] for group in cuts.build(graph, target="opencl").plan.groups
    )  # a processor's model is not sure enough
    assert any("winograd_4x4" in group["algorithms"] for group in plan.plan.groups)
    assert all(result.ok for result in plan.verify())


@needs_opencl
@pytest.mark.parametrize("name", ["winograd_4x4", "steps_as_channels"])
def test_algorithms_multiply_by_atoms(name: str) -> None:
    """Multiply in `fp32x3` by emulated matrix instructions.

    Factors are Winograd's tiles, and pixels that a step moves past.
    """
    target = evolve(find_target("opencl"), atoms=(("m16n8k8_tf32", 4.0),))
    channels, strides = (3, (2, 2)) if name == "steps_as_channels" else (64, (1, 1))
    graph = convolution(2, channels, 64, 13, 14, strides=strides)
    graph = replace_node(graph, graph.nodes[0], name, INSTANCES)
    compiled = compile_graph(graph, REGISTRY, target, CompileOptions(precision="fp32x3"), emit)
    plan = plan_of(compiled, graph, load_spec(()), target)
    assert any("m16n8k8_tf32" in kernel.source for kernel in plan.kernels)
    assert all(result.ok for result in plan.verify())


def test_folded_constants_of_a_candidate_subgraph_are_reused() -> None:
    """Workers have folded the transforms of a fragment already.

    Half of the time of GoogLeNet's plan with algorithms is constant folding of transforms.
    """
    types = {"x": TensorType(DType.F32, (1, 8, 12, 12)), "w": TensorType(DType.F32, (8, 8, 3, 3))}
    types |= {"y": TensorType(DType.F32, (1, 8, 12, 12))}
    conv = Node("conv", "conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1)})
    graph = Graph("one", ("x", "w"), ("y",), types, (conv,))
    made = replace_node(graph, conv, "winograd_2x2", REGISTRY.instances)
    fragment = CandidateSubgraph(made, REGISTRY, TARGET, "mixed")
    fold_tables._FOLDINGS.known.clear()
    found = pickle.loads(pickle.dumps(partition_subgraph(fragment)))
    assert found is not None
    assert found.foldings
    fold_tables._FOLDINGS.known.clear()
    store_foldings(found.foldings)
    again = partition_subgraph(fragment)
    assert again == found
    assert not again.foldings
