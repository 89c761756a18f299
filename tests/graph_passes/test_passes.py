"""Graph passes: golden rewritings, and the laws that hold for all graphs."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.errors import GraphError, PassError
from cuts.ir.graph import Graph, Node
from cuts.ir.text import parse_graph, print_graph
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.passes.graph.base import Pass, memoised_passes, run_passes
from cuts.passes.graph.simplification.canonicalise import Canonicalise, canonical_passes
from cuts.passes.graph.simplification.common_subexpressions import EliminateCommonSubexpressions
from cuts.passes.graph.simplification.compose_movement import ComposeMovement
from cuts.passes.graph.simplification.fold_affine import FoldAffine
from cuts.passes.graph.simplification.fold_constants import FoldConstants
from cuts.passes.graph.simplification.remove_dead_code import RemoveDeadCode
from cuts.passes.graph.simplification.remove_identities import RemoveIdentities
from cuts.passes.graph.simplification.sink_broadcasts import SinkBroadcasts
from cuts.tests.frontends.strategies import GraphBuilder, graphs
from cuts.tests.kernels.extremes import extremes
from cuts.tests.operations import DIFFERENTIABLE
from cuts.tests.operations_graph import bench_of
from hypothesis import given, settings

INSTANCES = Registry.builtin().instances
ALL: list[Pass] = [*canonical_passes(INSTANCES), Canonicalise(INSTANCES)]


def rewrite(step: Pass, before: str) -> str:
    """Return the text of a graph after a pass.

    The graph is verified on both sides.
    """
    graph = verify_graph(parse_graph(before), INSTANCES.infer)
    return print_graph(run_passes(graph, [step], infer=INSTANCES.infer))


def results(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = {v: rng.uniform(-1, 1, graph.types[v].shape).astype(np.float32) for v in graph.inputs}
    return evaluate_graph(graph, Registry.builtin(), inputs)


@pytest.mark.parametrize("step", ALL, ids=lambda step: step.name)
@given(graph=graphs())
@settings(max_examples=25, deadline=None)
def test_a_pass_is_idempotent_and_keeps_results(step: Pass, graph: Graph) -> None:
    verify_graph(graph, INSTANCES.infer)
    after = run_passes(graph, [step], infer=INSTANCES.infer)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    assert print_graph(step.run(after)) == print_graph(after)
    expected, found = results(graph), results(after)
    for name, value in expected.items():
        # Folded constants are rounded to float32 once more than the reference rounds.
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5 * max(1.0, float(np.max(np.abs(value)))))


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL], ids=str)
def test_only_exact_conversion_round_trips_are_dropped(dtype: DType) -> None:
    build = GraphBuilder(0)
    ends = extremes(dtype) if dtype.is_int else np.array([0, -0.0, 1.5, 1e-3, 100.25, 2049, np.nan], dtype.numpy)
    start = build.node("min", build.input(ends.shape, dtype), "x0")
    ways = [build.node("cast", build.node("cast", start, to=str(d)), to=str(dtype)) for d in DType if d is not dtype]
    graph = build.graph(*(build.node("min", way, way) for way in ways))
    after = run_passes(graph, [ComposeMovement(INSTANCES)], infer=INSTANCES.infer)
    assert len(after.nodes) < len(graph.nodes) or dtype in (DType.I64, DType.U64, DType.F64)
    expected, found = (evaluate_graph(g, Registry.builtin(), {"x0": ends}, stored=True) for g in (graph, after))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_identities_go_and_outputs_keep_their_names() -> None:
    before = """\
graph "g" {
  input %x: f32[4]
  %a: f32[4] = relu(%x) @a
  %b: f32[4] = dropout(%a) @b
  %c: f32[4] = exp(%b) @c
  %d: f32[4] = reshape(%c) {shape = [4]} @d
  %y: f32[4] = cast(%d) {to = "f32"} @y
  output %y
}
"""
    after = """\
graph "g" {
  input %x: f32[4]
  %a: f32[4] = relu(%x) @a
  %y: f32[4] = exp(%a) @c
  output %y
}
"""
    assert rewrite(RemoveIdentities(INSTANCES), before) == after


def test_copies_of_inputs_to_outputs_stay() -> None:
    text = """\
graph "g" {
  input %x: f32[4]
  %y: f32[4] = identity(%x) @y
  %a: f32[4] = relu(%x) @a
  %b: f32[4] = identity(%a) @b
  output %y, %a, %b
}
"""
    assert rewrite(RemoveIdentities(INSTANCES), text) == text


def test_constants_are_folded_where_all_operands_are_known() -> None:
    before = """\
graph "g" {
  input %x: f32[2]
  const %a: f32[2] = [1.0, 4.0]
  %b: f32[2] = sqrt(%a) @b
  %c: f32[2] = add(%b, %b) @c
  %y: f32[2] = mul(%x, %c) @y
  output %y
}
"""
    after = """\
graph "g" {
  input %x: f32[2]
  const %c: f32[2] = [2.0, 4.0]
  %y: f32[2] = mul(%x, %c) @y
  output %y
}
"""
    assert rewrite(FoldConstants(INSTANCES), before) == after


def test_empty_constants_are_folded() -> None:
    text = 'graph "g" {\n  input %x: f32[0]\n  const %a: f32[0] = []\n  %b: f32[0] = add(%a, %a) @b\n'
    text += "  %y: f32[0] = mul(%x, %b) @y\n  output %y\n}\n"
    assert "add" not in rewrite(FoldConstants(INSTANCES), text)


def test_repeated_elements_are_not_stored() -> None:
    """A reader finds them by its index map."""
    head = 'graph "g" {\n  input %x: f32[64, 8]\n  const %a: f32[8] = [1, 2, 3, 4, 5, 6, 7, 8]\n'
    repeated = "  %b: f32[64, 8] = expand(%a) {shape = [64, 8]} @b\n"
    text = head + repeated + "  %y: f32[64, 8] = mul(%x, %b) @y\n  output %y\n}\n"
    before = rewrite(FoldConstants(INSTANCES, min_repeated=512), text)
    assert "expand" not in before
    kept = rewrite(FoldConstants(INSTANCES, min_repeated=511), text)
    assert "expand" in kept
    assert rewrite(FoldConstants(INSTANCES, min_repeated=511), kept) == kept
    turned = "  %c: f32[8, 64] = transpose(%b) {perm = [1, 0]} @c\n  %y: f32[8, 64] = mul(%x, %c) @y\n  output %y\n}\n"
    moved = rewrite(FoldConstants(INSTANCES, min_repeated=511), head.replace("64, 8", "8, 64") + repeated + turned)
    assert moved.count("expand") == moved.count("transpose") == 1
    known = head + repeated + "  %c: f32[64, 8] = sqrt(%b) @c\n  %y: f32[64, 8] = mul(%x, %c) @y\n  output %y\n}\n"
    assert "expand" not in rewrite(FoldConstants(INSTANCES, min_repeated=511), known)


def test_folding_is_limited_in_size() -> None:
    text = 'graph "g" {\n  input %x: f32[64]\n  const %a: f32[] = [1.0]\n  %b: f32[64] = expand(%a) {shape = [64]} @b\n'
    text += "  %y: f32[64] = mul(%x, %b) @y\n  output %y\n}\n"
    assert rewrite(FoldConstants(INSTANCES, max_elements=63), text) == text
    assert "expand" not in rewrite(FoldConstants(INSTANCES, max_elements=64), text)


def test_equal_nodes_merge_with_explicit_defaults() -> None:
    before = """\
graph "g" {
  input %x: f32[2, 2]
  const %p: f32[2] = [1.0, 2.0]
  const %q: f32[2] = [1.0, 2.0]
  %a: f32[2, 2] = softmax(%x) @a
  %b: f32[2, 2] = softmax(%x) {axis = -1} @b
  %c: f32[2, 2] = add(%a, %p) @c
  %d: f32[2, 2] = add(%b, %q) @d
  %y: f32[2, 2] = mul(%c, %d) @y
  output %y
}
"""
    after = """\
graph "g" {
  input %x: f32[2, 2]
  const %p: f32[2] = [1.0, 2.0]
  %a: f32[2, 2] = softmax(%x) @a
  %c: f32[2, 2] = add(%a, %p) @c
  %y: f32[2, 2] = mul(%c, %c) @y
  output %y
}
"""
    assert rewrite(EliminateCommonSubexpressions(INSTANCES), before) == after


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("transpose(%x) {perm = [1, 2, 0]}|transpose(%a) {perm = [2, 0, 1]}", "relu(%x) @z"),
        ("transpose(%x) {perm = [1, 2, 0]}|transpose(%a) {perm = [0, 2, 1]}", "transpose(%x) {perm = [1, 0, 2]}"),
        ("reshape(%x) {shape = [4, 6]}|reshape(%a) {shape = [24]}", "reshape(%x) {shape = [24]}"),
        ("reshape(%x) {shape = [4, 6]}|reshape(%a) {shape = [2, 3, 4]}", "relu(%x) @z"),
        ('cast(%x) {to = "f64"}|cast(%a) {to = "f16"}', 'cast(%x) {to = "f16"}'),
        ('cast(%x) {to = "f64"}|cast(%a) {to = "f32"}', "relu(%x) @z"),
    ],
)
def test_adjacent_movements_compose(chain: str, expected: str) -> None:
    first, second = chain.split("|")
    builder = parse_lines("f32[2, 3, 4]", {"a": first, "b": second, "z": "relu(%b)"}, "z")
    assert expected in print_graph(run_passes(builder, [ComposeMovement(INSTANCES)], infer=INSTANCES.infer))
    assert "%a" not in print_graph(ComposeMovement(INSTANCES).run(builder))


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        ("slice(%j) {starts = [0], ends = [2], axes = [1]}", "relu(%x) @z"),
        ("slice(%j) {starts = [2], ends = [6], axes = [1]}", "relu(%wide) @z"),
        ("slice(%j) {starts = [6], ends = [8], axes = [1]}", "relu(%x) @z"),
        ("slice(%j) {starts = [1], ends = [3], axes = [1]}", "slice(%j)"),  # parts of two
        ("slice(%j) {starts = [2], ends = [4], axes = [1]}", "slice(%j)"),  # not all of one
        ("slice(%j) {starts = [2], ends = [6], axes = [1], steps = [2]}", "slice(%j)"),
        ("slice(%j) {starts = [1], ends = [-9], axes = [1], steps = [-1]}", "slice(%j)"),  # the other way round
    ],
)
def test_a_slice_of_one_part_is_the_part(reader: str, expected: str) -> None:
    """Its readers do not wait for the other parts."""
    joined = {"wide": "concat(%x, %x) {axis = 1}", "j": "concat(%x, %wide, %x) {axis = 1}"}
    graph = parse_lines("f32[1, 2, 3]", {**joined, "b": reader, "z": "relu(%b)"}, "z")
    after = run_passes(graph, [ComposeMovement(INSTANCES)], infer=INSTANCES.infer)
    assert expected in print_graph(after)
    assert all(np.array_equal(results(graph)[name], value) for name, value in results(after).items())


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        ("concat(%a, %b) {axis = 2}", "relu(%x) @z"),
        ("concat(%c, %d) {axis = 2}", "relu(%x) @z"),  # through other shapes
        ("concat(%b, %a) {axis = 2}", "relu(%j) @z"),  # in another order
        ("concat(%a, %a) {axis = 2}", "relu(%j) @z"),
        ("concat(%a, %e) {axis = 2}", "relu(%j) @z"),  # of another tensor
        ("add(%a, %b)", "relu(%j) @z"),
    ],
)
def test_a_join_of_all_parts_is_their_tensor(join: str, expected: str) -> None:
    parts = {"a": "slice(%x) {starts = [0], ends = [1], axes = [2]}"}
    parts |= {"b": "slice(%x) {starts = [1], ends = [2], axes = [2]}", "y": "exp(%x)"}
    parts |= {"e": "slice(%y) {starts = [1], ends = [2], axes = [2]}"}
    flat = {f"f{n}": f"reshape(%{n}) {{shape = [3, 5]}}" for n in "ab"}
    back = {new: f"reshape(%f{n}) {{shape = [3, 5, 1]}}" for new, n in (("c", "a"), ("d", "b"))}
    graph = parse_lines("f32[3, 5, 2]", {**parts, **flat, **back, "j": join, "z": "relu(%j)"}, "z")
    after = run_passes(graph, [ComposeMovement(INSTANCES)], infer=INSTANCES.infer)
    assert expected in print_graph(after)
    assert all(np.array_equal(results(graph)[name], value) for name, value in results(after).items())


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        ("matmul(%big, %a)", "matmul(%big, %x)"),
        ("matmul(%a, %right)", "matmul(%x, %right)"),
        ("mul(%big, %a)", "mul(%big, %x)"),
        ("mul(%big, %turned)", "mul(%big, %turned)"),  # the operand is not the repeated value
        ("mul(%big, %same)", "mul(%big, %x)"),
        ("add(%a, %a)", "add(%x, %a)"),  # one of them says how large the result is
        ("concat(%a, %big) {axis = 0}", "concat(%a, %big)"),  # which takes no other shape
        ("softmax(%a) {axis = 0}", "softmax(%a)"),  # which sums over the repetitions
    ],
)
def test_what_broadcasts_reads_what_was_repeated_for_it(reader: str, expected: str) -> None:
    repeated = {"a": "expand(%x) {shape = [5, 3, 3]}", "big": "exp(%a)", "right": "exp(%big)"}
    repeated |= {"turned": "transpose(%a) {perm = [0, 2, 1]}", "same": "reshape(%a) {shape = [5, 3, 3]}"}
    graph = parse_lines("f32[3, 3]", {**repeated, "z": reader}, "z")
    after = run_passes(graph, [SinkBroadcasts(INSTANCES)], infer=INSTANCES.infer)
    assert expected in print_graph(after)
    assert all(np.array_equal(results(graph)[name], value) for name, value in results(after).items())


def test_repeated_heads_are_read_once() -> None:
    repeat = "expand(%{}) {{shape = [1, 2, 3, 5, 4]}}", "reshape(%{}) {{shape = [1, 6, 5, 4]}}"
    nodes: dict[str, str] = {}
    for name, start in (("k", 0), ("v", 2)):
        nodes[name] = f"slice(%x) {{starts = [{start}], ends = [{start + 2}], axes = [1]}}"
        nodes[f"u{name}"] = f"reshape(%{name}) {{shape = [1, 2, 1, 5, 4]}}"
        nodes |= {f"e{name}": repeat[0].format(f"u{name}"), f"r{name}": repeat[1].format(f"e{name}")}
    graph = parse_lines("f32[1, 4, 5, 4]", {**nodes, "big": "exp(%rv)", "z": "attention(%big, %rk, %rv)"}, "z")
    after = run_passes(graph, [SinkBroadcasts(INSTANCES)], infer=INSTANCES.infer)
    assert "attention(%big, %k, %v)" in print_graph(after)
    assert all(np.array_equal(results(graph)[name], value) for name, value in results(after).items())


def test_a_narrowing_conversion_stays() -> None:
    graph = parse_lines("f32[4]", {"a": 'cast(%x) {to = "f16"}', "b": 'cast(%a) {to = "f32"}', "z": "relu(%b)"}, "z")
    assert len(ComposeMovement(INSTANCES).run(graph).nodes) == 3


def parse_lines(input_type: str, nodes: dict[str, str], output: str) -> Graph:
    """Return a graph of nodes written without types, which are derived."""
    types = {}
    graph = parse_graph(f'graph "g" {{ input %x: {input_type} output %x }}')
    types.update(graph.types)
    parsed = []
    for name, text in nodes.items():
        (node,) = parse_graph(f'graph "g" {{ %{name}: f32[] = {text} @{name} }}').nodes
        (types[name],) = INSTANCES.infer(node, [types[v] for v in node.operands])
        parsed.append(node)
    return verify_graph(Graph("g", ("x",), (output,), types, tuple(parsed)), INSTANCES.infer)


def fold_graph(build: GraphBuilder, output: str) -> Graph:
    graph = verify_graph(build.graph(output), INSTANCES.infer)
    after = run_passes(graph, [FoldAffine(INSTANCES)], infer=INSTANCES.infer)
    np.testing.assert_allclose(results(after)[output], results(graph)[output], rtol=1e-5, atol=1e-5)
    return after


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_folds_into_convolution(groups: int, bias: bool) -> None:
    build = GraphBuilder(0)
    x = build.input((2, 4, 5, 5))
    y = build.node(
        "conv", x, build.constant((8, 4 // groups, 3, 3)), build.constant((8,)) if bias else None, groups=groups
    )
    y = build.node("batch_norm", y, *(build.constant((8,)) for _ in range(4)))
    assert [node.op for node in fold_graph(build, y).nodes] == ["conv"]


def test_scale_and_bias_after_other_linear_operations_fold() -> None:
    build = GraphBuilder(0)
    x = build.input((3, 4))
    y = build.node("matmul", x, build.constant((4, 5)))
    y = build.node("mul", y, build.constant((5,)))
    y = build.node("div", y, build.constant(()))
    assert [node.op for node in fold_graph(build, y).nodes] == ["matmul"]
    y = build.node("gemm", y, build.constant((6, 5)), trans_b=True, beta=0.5)
    y = build.node("add", build.constant((6,)), y)
    y = build.node("sub", build.constant(()), y)
    y = build.node("layer_norm", y, build.constant((6,)))
    y = build.node("add", y, build.constant((6,)))
    assert [node.op for node in fold_graph(build, y).nodes] == ["matmul", "gemm", "layer_norm"]


def test_only_scales_along_one_axis_fold() -> None:
    build = GraphBuilder(0)
    x = build.input((1, 4, 4, 4))
    w = build.constant((4, 4, 1, 1))
    rows = build.node("mul", build.node("conv", x, w), build.constant((4, 1)))  # along another axis than the filter's
    twice = build.node("conv", x, w)
    both = build.node("add", build.node("mul", twice, build.constant(())), twice)  # two readers
    power = build.node("relu", build.node("conv", x, w))  # not affine
    mixed = build.node("mul", build.node("conv", x, w), x)  # not constant
    y = build.node("add", build.node("add", rows, both), build.node("add", power, mixed))
    assert len(fold_graph(build, y).nodes) == len(build.nodes)


def test_folding_into_any_operation_keeps_results() -> None:
    """Fold constants into every operation with an affine reader.

    Any of its operands may be constant.
    """
    folds = 0
    for use in DIFFERENTIABLE:
        bench = bench_of([use])
        (node,) = bench.graph.nodes
        if len(node.outputs) > 1 or len(node.operands) < 2:
            continue
        for free in node.operands:
            graph = _read_affinely(bench.graph, {v: a for v, a in bench.inputs.items() if v != free})
            after = run_passes(graph, [FoldAffine(INSTANCES)], infer=INSTANCES.infer)
            folds += len(after.nodes) < len(graph.nodes)
            given_ = {free: bench.inputs[free]}
            expected = evaluate_graph(graph, Registry.builtin(), given_)["z"]
            found = evaluate_graph(after, Registry.builtin(), given_)["z"]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"{use.op}, free {free}")
    assert folds > 20


def _read_affinely(graph: Graph, constants: dict[str, np.ndarray]) -> Graph:
    """Return a graph of one node whose result is scaled and negated, and some of whose inputs are constants."""
    (value,) = graph.outputs
    type_ = graph.types[value]
    types = {**graph.types, "z": type_, "scaled": type_, "scale": TensorType(type_.dtype, ())}
    nodes = (Node("scaling", "mul", (value, "scale"), ("scaled",)), Node("turning", "neg", ("scaled",), ("z",)))
    inputs = tuple(v for v in graph.inputs if v not in constants)
    known = {**constants, "scale": np.asarray(1.5, type_.dtype.numpy)}
    return Graph("g", inputs, ("z",), types, (*graph.nodes, *nodes), known)


def test_a_fold_that_would_overflow_is_not_made() -> None:
    build = GraphBuilder(0)
    x = build.input((2, 4))
    w, s = build.constant((4, 4)), build.constant((4,))
    build.constants[w] = np.full((4, 4), 1e30, np.float32)
    build.constants[s] = np.full((4,), 1e30, np.float32)
    y = build.node("mul", build.node("matmul", x, w), s)
    graph = build.graph(y)
    assert FoldAffine(INSTANCES).run(graph) == graph


def test_dead_code_goes_and_inputs_stay() -> None:
    graph = parse_lines("f32[4]", {"a": "exp(%x)", "b": "relu(%x)"}, "b")
    after = RemoveDeadCode().run(graph)
    assert [node.name for node in after.nodes] == ["b"]
    assert after.inputs == ("x",)


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    class Broken:
        name = "broken"

        def run(self, graph: Graph) -> Graph:
            return Graph(graph.name, graph.inputs, ("nothing",), graph.types, graph.nodes)

    graph = parse_lines("f32[4]", {"a": "exp(%x)"}, "a")
    with pytest.raises(
        PassError, match="pass 'broken' broke the graph: output 'nothing' of the graph is a value that nothing defines"
    ):
        run_passes(graph, [Broken()], infer=INSTANCES.infer)


def test_an_error_inside_a_pass_names_the_pass() -> None:
    class Failing:
        name = "failing"

        def run(self, graph: Graph) -> Graph:
            raise GraphError("no")

    graph = parse_lines("f32[4]", {"a": "exp(%x)"}, "a")
    seen: list[str] = []
    with pytest.raises(PassError, match="pass 'failing': no"):
        run_passes(graph, [RemoveDeadCode(), Failing()], after=lambda name, _: seen.append(name))
    assert seen == ["remove-dead-code"]


def test_a_pass_runs_once_on_each_graph() -> None:
    class Counting:
        name = "counting"
        runs = 0

        def run(self, graph: Graph) -> Graph:
            self.runs += 1
            return graph

    graph, step = parse_lines("f32[4]", {"a": "exp(%x)"}, "a"), Counting()
    with memoised_passes():
        for _ in range(3):
            assert run_passes(graph, [step, step]) is graph
        with memoised_passes():
            run_passes(graph, [step])
        assert step.runs == 1
    run_passes(graph, [step])
    assert step.runs == 2
