"""Partitions: convexity, agreement with Algorithm 1, and minimal size."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from zlib import crc32

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir, print_ir
from cuts.ops import Registry
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion.grouping.combine_partitions import combine_partitions, places
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group, form_key, rename_group
from cuts.passes.fusion.grouping.optimal_partition import optimal_partition
from cuts.passes.fusion.grouping.partition import (
    algorithm_1,
    fuse_all,
    improve,
    neighbours,
    partition,
)
from cuts.passes.fusion.grouping.partitioner import Owners, Partitioner
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.normal_forms import NormalForms
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.graph.base import run_passes
from cuts.passes.pipeline import graph_passes
from cuts.passes.statements import issue_slots
from hypothesis import given, settings
from hypothesis import strategies as st

from .. import models
from .build import graph, op, partitioner
from .test_semantics import graphs

pytestmark = pytest.mark.long

TARGET = find_target("cuda:sm_90")
CHAIN = graph({"x": (4, 8)}, op("a", "relu", "x"), op("b", "exp", "a"), op("y", "relu", "b"), out="y")


def test_algorithm_1_on_the_papers_example() -> None:
    parts = partitioner(CHAIN, TARGET)
    found = algorithm_1(parts, parts.singletons())
    assert found is not None
    sets = [{"+".join(g.units) for g in p} for p in found]
    assert sets == [{"n0", "n1", "n2"}, {"n0+n1", "n2"}, {"n0", "n1+n2"}, {"n0+n1+n2"}]


def test_algorithm_1_keeps_only_what_is_faster() -> None:
    class Dear:
        """All three together are slower than their parts."""

        def cost(self, group: FusedGroup) -> float:
            (output,) = group.segments[0].outputs
            return 5.0 if issue_slots(output.body) > 5 else 1.0

    parts = Partitioner(partitioner(CHAIN, TARGET).builder, Dear())
    found = algorithm_1(parts, parts.singletons())
    assert found is not None
    assert sorted(len(p) for p in found) == [2, 2, 3]


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_the_greedy_path_ends_within_algorithm_1s_set(made: object) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    initial = parts.singletons()
    found = algorithm_1(parts, initial)
    end = improve(parts, initial)
    assert found is not None
    assert frozenset(end) in found
    parts.schedule(end)  # asserts that the quotient graph has no cycle


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_lazily_evaluated_merges_give_the_same_partition(made: object) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    at_once = improve(parts, parts.singletons())
    late = Partitioner(parts.builder, Roofline(TARGET), least=Roofline(TARGET).traffic)
    assert set(improve(late, late.singletons())) == set(at_once)
    assert len(late.costs) <= len(parts.costs)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from((0.0, 1e-6, 1.0, inf)))
def test_no_merge_is_lost_to_a_wrong_bound(made: object, least: float) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    wrong = Partitioner(parts.builder, Roofline(TARGET), least=lambda form: least)
    end = improve(wrong, wrong.singletons())
    assert set(improve(parts, end)) == set(end)


class Watching(Partitioner):
    """Partitioner that checks its record of dependences."""

    def successors(self, vertex: Group | str, owner: Owners) -> frozenset[Group | str]:
        """Return the recorded successors, which equal recomputed ones."""
        known = super().successors(vertex, owner)
        assert known == super().successors(vertex, Owners(owner)), vertex
        return known


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_dependences_are_right_after_every_merge(made: object) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    watching = Watching(parts.builder, parts.evaluator)
    initial = watching.singletons()
    assert improve(watching, initial) == improve(parts, initial)
    assert fuse_all(watching, initial) == fuse_all(parts, initial)


class Foretold:
    """Roofline that records announced groups.

    `announced` counts the announcements of each group, `missed` all evaluations without one.
    """

    def __init__(self) -> None:
        self.announced: list[set[object]] = []
        self.missed: set[object] = set()

    def foresee(self, groups: Sequence[FusedGroup]) -> None:
        """Take note of groups."""
        self.announced.append({form_key(group) for group in groups})

    def is_measured(self, group: FusedGroup) -> bool:
        """Return whether a group was announced."""
        return any(form_key(group) in announced for announced in self.announced)

    def cost(self, group: FusedGroup) -> float:
        """Return the roofline's cost."""
        if not self.is_measured(group):
            self.missed.add(form_key(group))
        return Roofline(TARGET).cost(group)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_whoever_looks_ahead_comes_to_the_same_groups(made: object) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    end = improve(parts, parts.singletons())
    ahead, announced = Foretold(), list[set[Group]]()
    likely = lambda groups: announced.append(set(groups))  # noqa: E731
    looking = Partitioner(parts.builder, ahead, announce=ahead.foresee, known=ahead.is_measured, likely=likely)
    assert improve(looking, looking.singletons()) == end
    assert announced[-1] == set(end), "all groups of the partition were announced as likely"
    announced.clear()
    reporting = Partitioner(parts.builder, parts.evaluator, likely=likely)
    assert set(improve(reporting, reporting.singletons())) == announced[-1], "so they are where nothing looks ahead"


def test_long_merge_paths_are_evaluated_ahead_in_batches() -> None:
    """Costs of later merges take a third of DenseNet-121's partitioning time.

    They are evaluated one after another.
    """
    shapes = {"x": (1, 4, 8, 8)} | {f"k{n}": (4, 4 + n, 1, 1) for n in range(12)}
    lines, last = [], "x"
    for n in range(12):
        lines += [op(f"c{n}", "conv", "x" if n == 0 else f"p{n - 1}", f"k{n}")]
        lines += [op(f"r{n}", "relu", f"c{n}"), op(f"t{n}", "tanh", f"r{n}"), op(f"e{n}", "exp", f"t{n}")]
        pads = ((0, 0), (0, 1 + n), (0, 0), (0, 0))
        lines += [op(f"p{n}", "pad", f"e{n}", pads=tuple(v for side in zip(*pads, strict=True) for v in side))]
        last = f"e{n}"
    parts = partitioner(graph(shapes, *lines, out=last), TARGET)
    ahead = Foretold()
    looking = Partitioner(
        parts.builder, ahead, least=Roofline(TARGET).traffic, announce=ahead.foresee, known=ahead.is_measured
    )
    improve(looking, looking.singletons())
    assert len(ahead.missed) <= 0.1 * len(looking.costs)
    assert sum(map(bool, ahead.announced)) <= 8


def test_a_path_through_another_group_prevents_fusion() -> None:
    """The pointwise nodes relu and add may not merge around the product."""
    made = graph({"x": (4, 4), "w": (4, 4)}, op("a", "relu", "x"), op("c", "softmax", "a"), op("e", "matmul", "c", "w"),
                 op("y", "add", "e", "a"), out="y")  # fmt: skip
    parts = partitioner(made, TARGET)
    groups = {g.units[0]: g for g in parts.singletons()}
    assert not parts.convex(groups["n0"], groups["n3"], parts.owners(groups.values()))
    assert parts.convex(groups["n2"], groups["n3"], parts.owners(groups.values()))


def test_modes() -> None:
    made = graph(
        {"x": (1, 4, 8, 8), "w": (4, 4, 3, 3)},
        op("c", "conv", "x", "w"),
        op("a", "relu", "c"),
        op("y", "conv", "a", "w"),
        out="y",
    )
    parts = partitioner(made, TARGET)
    assert [[g.level for g in partition(parts, mode)] for mode in ("no-fusion", "fusion", "mixed")] == [
        ["single", "single", "single"],
        ["register", "single"],
        ["shared"],
    ]


def test_equal_groups_are_evaluated_once() -> None:
    lines = [op(f"v{n + 1}", "relu", f"v{n}") for n in range(12)]
    parts = partitioner(graph({"v0": (4, 8)}, *lines, out="v12"), TARGET)
    assert len(partition(parts, "mixed")) == 1
    assert len(parts.costs) <= 12


COUNTS: dict[str, tuple[Callable[[], Path], int]] = {
    "ResNet-50": (models.resnet50, 57),
    "MobileNetV2": (models.mobilenet_v2, 55),
}


@pytest.mark.parametrize("mode", ["fusion", "mixed"])
@pytest.mark.parametrize("name", COUNTS)
def test_everything_between_two_convolutions_rides_in_registers(name: str, mode: str) -> None:
    load, most = COUNTS[name]
    pytest.importorskip("onnx")
    from cuts.compile.loading import load_model, spec_of_texts

    made = run_passes(load_model(str(load()), spec_of_texts({})), graph_passes(Registry.builtin()))
    parts = Partitioner(GroupBuilder(find_views(build_programs(made, Registry.builtin())), Policy()), Roofline(TARGET))
    assert len(partition(parts, mode)) <= most  # type: ignore[arg-type]


def test_a_dense_block_costs_one_kernel_per_convolution() -> None:
    lines, prefix = [op("f0", "conv", "x", "w")], ["f0"]
    inputs: dict[str, tuple[int, ...]] = {"x": (1, 4, 6, 6), "w": (4, 4, 1, 1)}
    for layer in range(1, 4):
        inputs |= {f"s{layer}": (4 * layer,), f"k{layer}": (4, 4 * layer, 3, 3)}
        source = prefix[0]
        if layer > 1:
            source = f"c{layer}"
            lines.append(op(source, "concat", *prefix, axis=1))
        lines += [
            op(f"n{layer}", "batch_norm", source, *[f"s{layer}"] * 4),
            op(f"r{layer}", "relu", f"n{layer}"),
            op(f"f{layer}", "conv", f"r{layer}", f"k{layer}", pads=(1, 1, 1, 1)),
        ]
        prefix.append(f"f{layer}")
    lines += [op("all", "concat", *prefix, axis=1), op("y", "relu", "all")]
    parts = partitioner(graph(inputs, *lines, out="y"), TARGET)
    assert len(partition(parts, "fusion")) == 5  # four convolutions, and the relu after the last concatenation


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_combining_two_partitions_is_never_slower(made: object, seed: int) -> None:
    """The result takes the faster part at each place without a cycle.

    It computes every unit once.
    """
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]

    def cost(group: Group) -> float:
        return 1.0 + crc32(repr((seed, group.parts)).encode()) % 1000

    def total(groups: Sequence[Group]) -> float:
        return sum(map(cost, groups))

    initial = parts.singletons()
    first, second = improve(parts, initial), fuse_all(parts, initial)
    for found in (first, second):
        best = combine_partitions(parts, initial, found, lambda before, after: total(after) < total(before))
        assert sorted(u for g in best for u in g.units) == sorted(u for g in initial for u in g.units)
        assert total(best) <= min(total(initial), total(found))
        assert parts.schedule(best) == best
    assert set(combine_partitions(parts, first, second, lambda before, after: True)) == set(second)
    assert set(combine_partitions(parts, first, second, lambda before, after: False)) == set(first)


def test_differing_parts_of_two_partitions_are_exchangeable() -> None:
    made = graph({"x": (4, 4), "z": (4, 4)}, op("a", "relu", "x"), op("b", "exp", "z"), op("c", "add", "a", "b"),
                 op("y", "add", "c", "b"), out="y")  # fmt: skip
    parts = partitioner(made, TARGET)
    single = {g.units[0]: g for g in parts.singletons()}
    fused = parts.builder.fuse(single["n0"], single["n2"])
    assert isinstance(fused, Group)
    found = [single["n1"], fused, single["n3"]]
    assert combine_partitions(parts, parts.singletons(), found, lambda before, after: True) == parts.schedule(found)
    assert list(places(parts.singletons(), found)) == [([single["n0"], single["n2"]], [fused])]


def builder_of(made: object, policy: Policy, forms: NormalForms | None = None) -> GroupBuilder:
    """Return a workshop for a graph."""
    return GroupBuilder(partitioner(made, TARGET).builder.views, policy, forms)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.lists(graphs(), min_size=2, max_size=3), st.sampled_from((Policy(), Policy(recompute=1, operations=3))))
def test_shared_normal_forms_equal_separate_ones(made: list[object], policy: Policy) -> None:
    """Forms of other graphs or policies change no group.

    Equal forms are made once.
    """
    forms = NormalForms()
    for each in (*made, made[0]):
        for kind in (Policy(), policy):
            alone, shared = (Partitioner(builder_of(each, kind, known), Roofline(TARGET)) for known in (None, forms))
            found, expected = fuse_all(shared, shared.singletons()), fuse_all(alone, alone.singletons())
            assert [(g.parts, g.form, g.tensors) for g in found] == [(g.parts, g.form, g.tensors) for g in expected]
    before = len(forms.normal)
    again = Partitioner(builder_of(made[0], policy, forms), Roofline(TARGET))
    fuse_all(again, again.singletons())
    assert len(forms.normal) == before


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_late_legality_checks_give_the_same_partition(made: object) -> None:
    """Costs are evaluated in the same order.

    The model may judge groups by the first evaluations.
    """
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    asked: list[list[object]] = [[], []]

    class Asked:
        """Roofline that records its requests."""

        def __init__(self, found: list[object]) -> None:
            self.found = found

        def cost(self, group: FusedGroup) -> float:
            self.found.append(form_key(group))
            return Roofline(TARGET).cost(group)

    class AtOnce(GroupBuilder):
        """A workshop that tells nothing of a merge but by forming it."""

        def outline(self, members: Sequence[Group]) -> FusedGroup | None:
            return None

    views, policy, least = parts.builder.views, parts.builder.policy, Roofline(TARGET).traffic
    late, at_once = (
        Partitioner(kind(views, policy), Asked(found), least=least)
        for kind, found in zip((GroupBuilder, AtOnce), asked, strict=True)
    )
    assert improve(late, late.singletons()) == improve(at_once, at_once.singletons())
    assert asked[0] == asked[1]


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_traffic_of_a_merge_is_at_least_predicted(made: object) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    groups = parts.singletons()
    for first, second in neighbours(parts, groups, parts.owners(groups)):
        announced, merged = parts.builder.outline((first, second)), parts.builder.fuse(first, second)
        if announced is not None and isinstance(merged, Group):
            assert {*announced.inputs} <= {*merged.inputs} and {*announced.outputs} <= {*merged.outputs}


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_successors_of_groups_are_right_after_merges(made: object) -> None:
    """A merge's recorded paths agree with a walk through the graph."""

    class Walking(Partitioner):
        """A partitioner that walks."""

        def convex(self, first: Group, second: Group, owner: Owners) -> bool:
            def leads(vertex: Group | str, seen: set[Group | str]) -> bool:
                following = self.successors(vertex, owner) - seen
                return second in following or any(leads(each, seen | following) for each in following)

            around = any(leads(each, set()) for each in self.successors(first, owner) - {second})
            known = super().convex(first, second, owner)
            if second in self.successors(first, owner):
                assert known != around
            return known

    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    walking = Walking(parts.builder, parts.evaluator)
    initial = walking.singletons()
    assert improve(walking, initial) == improve(parts, initial)


def test_equal_forms_of_any_origin_share_a_key() -> None:
    form = next(iter(partitioner(CHAIN, TARGET).singletons())).form
    other = pickle.loads(pickle.dumps(form))
    assert other is not form and other == form and not other.memo
    assert form_key(other) is form_key(form) is pickle.loads(pickle.dumps(form_key(form)))
    changed = evolve(form, inputs=(*form.inputs, "more"))
    assert form_key(changed) is not form_key(form)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.lists(st.text(max_size=3) | st.sampled_from(["t0", "t1", "if", "inf", "i0"]), unique=True))
def test_a_group_refers_to_tensors_of_its_graph(made: object, drawn: list[str]) -> None:
    """Tensors may have any name, including those of normal forms."""
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    for group in fuse_all(parts, parts.singletons()):
        for first in (drawn, []):
            new = dict(zip(group.tensors, (*first, *(f"other{n}" for n in range(len(group.tensors)))), strict=False))
            text, named = evolve(group, tensors=new).text, rename_group(group.form, new)
            assert parse_ir(text) == named
            assert first or text == print_ir(named)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_element_counts_permit_only_merges_of_maps(made: object) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    groups, views = parts.singletons(), parts.builder.views
    pairs = list(neighbours(parts, groups, parts.owners(groups)))
    announced = [parts.builder.fuse(*pair) for pair in pairs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cuts.passes.fusion.normalise.check_counts", lambda statements, live: None)
        solved = [GroupBuilder(views, parts.builder.policy).fuse(*pair) for pair in pairs]
    assert [isinstance(found, Group) for found in announced] == [isinstance(found, Group) for found in solved]


def total(parts: Partitioner, groups: Sequence[Group]) -> float:
    return sum(parts.cost(group) for group in groups)


def assert_reads_are_made(parts: Partitioner, groups: Sequence[Group] | None) -> None:
    """Assert that no group reads results of its own units from memory."""
    for group in groups or ():
        made = {t for u in group.units for t in parts.builder.units[u].writes}
        assert not made & {group.tensors[t] for t in group.form.inputs}, group.units


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_the_optimal_partition_beats_algorithm_1(made: object) -> None:
    parts = partitioner(made, TARGET)  # type: ignore[arg-type]
    initial = parts.singletons()
    found, path = algorithm_1(parts, initial), improve(parts, initial)
    best = optimal_partition(parts, initial, path)
    assert found is not None
    assert best is not None
    parts.schedule(best)  # asserts that the quotient graph has no cycle
    assert_reads_are_made(parts, best)
    assert sorted(u for g in best for u in g.units) == sorted(u for g in initial for u in g.units)
    assert total(parts, best) <= total(parts, path) * (1 + 1e-12)
    along_edges = [p for p in found if all(len(g.units) == 1 or g in path for g in p)]
    assert total(parts, best) <= min(total(parts, list(p)) for p in along_edges) * (1 + 1e-12)


def test_the_optimal_partition_computes_what_its_groups_read() -> None:
    """A path leaves the first product and comes back."""
    made = graph(
        {"x": (32, 32), "w": (32, 32)},
        *(op("a", "matmul", "x", "w"), op("b", "relu", "a"), op("c", "matmul", "b", "w"), op("d", "relu", "c")),
        *(op("e", "matmul", "d", "w"), op("y", "add", "e", "b")),
        out="y",
    )
    parts = partitioner(made, TARGET)
    initial = parts.singletons()
    assert_reads_are_made(parts, optimal_partition(parts, initial, improve(parts, initial)))


def test_the_optimal_partition_crosses_a_slower_merge() -> None:
    class Dear:
        """All pairs are slower than their parts, the whole is faster."""

        def cost(self, group: FusedGroup) -> float:
            (output,) = group.segments[0].outputs
            return {1: 1.0, 2: 2.5, 3: 1.0}[repr(output.body).count("Call(")]

    parts = Partitioner(partitioner(CHAIN, TARGET).builder, Dear())
    initial = parts.singletons()
    best = optimal_partition(parts, initial)
    assert best is not None
    assert [len(group.units) for group in best] == [3]
    assert len(improve(parts, initial)) == 3
