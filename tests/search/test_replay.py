"""Replay of decisions for a changed graph.

They hold for the unchanged part, where another part of the graph differs, or where another version writes a part
otherwise.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from cuts.compile.selection.cached_decisions import decision_key
from cuts.ir.compiled import CompiledGraph, CompileOptions, KernelFunction
from cuts.ir.expr import Read
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.passes import pipeline, rewrites
from cuts.passes.fingerprints import match_fingerprints, node_fingerprints
from cuts.passes.fusion.programs import Programs, Unit
from cuts.passes.rewrites import program_rewrite
from cuts.search.database import Database
from cuts.search.database.exchange import export_pack, import_results
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from .fakes import OPENCL
from .test_decisions import SPEC, kernels, no_device, rename_graph, tune_graph

pytestmark = pytest.mark.long

#: Functions of elements and of rows.
FUNCTIONS = ("tanh", "sigmoid", "exp", "relu", "softmax")


def layers(*functions: str, size: int = 20) -> Graph:
    """Return a graph of products with elementwise functions.

    The functions are one name or several.
    """
    kind = TensorType(DType.F32, (size, size))
    nodes, value, types = list[Node](), "x", {"x": kind}
    for n, names in enumerate(functions):
        types[f"w{n}"] = types[f"p{n}"] = kind
        nodes.append(Node(f"m{n}", "matmul", (value, f"w{n}"), (value := f"p{n}",)))
        for k, name in enumerate(names.split()):
            types[f"y{n}.{k}"] = kind
            nodes.append(Node(f"f{n}.{k}", name, (value,), (value := f"y{n}.{k}",)))
    inputs = ("x", *(f"w{n}" for n in range(len(functions))))
    return verify_graph(Graph("layers", inputs, (value,), types, tuple(nodes)), SPEC.instances.infer)


def arbitrary(kernel: KernelFunction) -> float:
    """Return unpredictable times that are the same each time."""
    return 1e-3 * (1 + zlib.crc32(kernel.source.encode()) % 97 / 97)


def cuts(found: CompiledGraph) -> list[frozenset[str]]:
    """Return the nodes of each group."""
    return [frozenset(map(str, group["nodes"])) for group in found.groups]  # type: ignore[call-overload]


def assert_unchanged(before: CompiledGraph, after: CompiledGraph, changed: Sequence[str]) -> None:
    """Assert that groups of unchanged nodes are as they were.

    Else they are whole with newly decided nodes: nodes that changed, and those that shared a group with one.
    """
    groups = cuts(before)
    anew = {*changed}.union(*(group for group in groups if not group.isdisjoint(changed)))
    for group in groups:
        if group.isdisjoint(changed):
            assert any(group == other or (group < other and other & anew) for other in cuts(after)), group


class Asked:
    """Clock that notes its requests."""

    def __init__(self) -> None:
        self.sources: set[str] = set()

    def __call__(self, kernel: KernelFunction) -> float:
        self.sources.add(kernel.source)
        return arbitrary(kernel)


@settings(max_examples=5, phases=[Phase.generate])  # each is two searches
@given(data=st.data())
def test_decisions_hold_for_all_that_did_not_change(data: st.DataObject) -> None:
    functions = data.draw(st.lists(st.sampled_from(FUNCTIONS), min_size=3, max_size=4))
    place = data.draw(st.integers(0, len(functions) - 1))
    other = data.draw(st.sampled_from((*FUNCTIONS, f"{functions[place]} neg", "neg")))
    database, asked = Database(None), Asked()
    before, _ = tune_graph(layers(*functions), database, arbitrary)
    (answer,) = database.answers()
    made = layers(*functions[:place], other, *functions[place + 1 :])
    after, tuning = tune_graph(made, database, asked)
    assert_unchanged(before, after, [f"f{place}.{k}" for k in range(3)])
    known = {kernel.source for kernel in before.kernels}
    assert asked.sources.isdisjoint(known), "a kernel that is known is not timed again"
    if other != functions[place]:
        assert len(database.answers()) == 2
        again, _ = tune_graph(made, database, no_device)
        assert kernels(again) == kernels(after), "what came of it is known from now on"
    assert tuning.tuner.complete
    assert answer in database.answers()


def copy_sigmoids(programs: Programs) -> Programs:
    """Return programs in which each sigmoid goes through a copy.

    This is another version's way to write the same.
    """
    units, types = list[Unit](), dict(programs.types)
    for unit in programs.units:
        if unit.op != "sigmoid":
            units.append(unit)
            continue
        ((statement,), (target,)) = unit.statements, unit.writes
        types[name := f"{target}.before"] = types[target]
        before = evolve(statement, target=name)
        units.append(evolve(unit, name=f"{unit.name}.before", statements=(before,), writes=(name,)))
        copy = evolve(statement, body=Read(name, statement.write))
        units.append(evolve(unit, statements=(copy,), reads=(name,)))
    return evolve(programs, units=tuple(units), types=types)


def test_decisions_hold_where_a_version_rewrites_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, database, asked = layers("tanh", "exp", "sigmoid", "softmax", "tanh"), Database(None), Asked()
    before, first = tune_graph(graph, database, arbitrary)
    newer = (*rewrites.REWRITES, program_rewrite("apart", copy_sigmoids, "a copy after each sigmoid", ""))
    monkeypatch.setattr(rewrites, "REWRITES", newer)
    stages = list(pipeline.STAGES)
    at = next(n for n, stage in enumerate(stages) if stage.name == "layouts")
    monkeypatch.setattr(pipeline, "STAGES", (*stages[:at], pipeline.rewrite_stage(newer[-1]), *stages[at:]))
    after, second = tune_graph(graph, database, asked)
    assert_unchanged(before, after, ["f2.0"])
    known = {p.key for p in first.findings.problems}
    assert len(known & {p.key for p in second.findings.problems}) >= len(known) - 2
    assert asked.sources.isdisjoint(kernel.source for kernel in before.kernels)
    again, _ = tune_graph(graph, database, no_device)
    assert kernels(again) == kernels(after)


def test_records_without_fingerprints_need_equal_units() -> None:
    database = Database(None)
    before, _ = tune_graph(layers("tanh", "exp"), database, arbitrary)
    (answer,) = database.answers()
    values = json.loads(answer.decisions)
    assert values.pop("nodes") and values.pop("units")
    for group in values["groups"]:
        assert group.pop("leaves")
    earlier = evolve(answer, decisions=json.dumps(values))
    read = earlier.read()
    assert read is not None and read.units == ()
    database.keep_answer(earlier)
    again, _ = tune_graph(layers("tanh", "exp"), database, no_device)
    assert kernels(again) == kernels(before)
    database.keep_answer(evolve(earlier, decisions=earlier.decisions.replace(read.digest, "0" * 64)))
    found, tuning = tune_graph(layers("tanh", "exp"), database, arbitrary)
    assert kernels(found) == kernels(before), "they are found again"
    assert tuning.findings.made == answer.read()


def test_graph_replays_the_nearest_record() -> None:
    database = Database(None)
    for functions in (("tanh", "exp", "relu"), ("tanh", "exp", "tanh", "relu"), ("relu", "relu", "relu")):
        tune_graph(layers(*functions), database, arbitrary)
    ask = lambda *functions, **options: decision_key(  # noqa: E731
        layers(*functions, **options), SPEC, OPENCL, CompileOptions()
    )
    near = ask("tanh", "exp", "tanh", "neg").nearest(database.answers())
    assert near is not None and near.key == ask("tanh", "exp", "tanh", "relu").key
    assert ask("tanh", "exp", "tanh", size=24).nearest(database.answers()) is None, "nothing of it is there"
    record = evolve(near, decisions=json.dumps(json.loads(near.decisions) | {"nodes": ask("tanh exp relu neg").nodes}))
    assert ask("tanh exp relu sigmoid").nearest([record]) is record
    assert ask("neg relu exp tanh").nearest([record]) is None, "it has the same nodes in another order"
    other = evolve(near, description=near.description.replace("mixed", "fusion"))
    assert ask("tanh", "exp", "tanh", "relu").nearest([other]) is None, "it was asked for otherwise"
    assert ask("tanh").nearest([evolve(near, description="["), evolve(near, decisions="[")]) is None


def test_marks_are_of_what_is_computed() -> None:
    graph = layers("tanh", "exp")
    marks = node_fingerprints(graph, SPEC.instances)
    assert marks[0] == marks[2]
    assert len({*marks}) == 3
    assert node_fingerprints(rename_graph(graph), SPEC.instances) == marks
    assert match_fingerprints("abcd", "abxcd") == {0: 0, 1: 1, 2: 3, 3: 4}
    assert match_fingerprints("abcd", "abcd") == {n: n for n in range(4)}
    assert match_fingerprints("ab", "xy") == {}


def test_marks_travel_in_files(tmp_path: Path) -> None:
    there, here = Database(None), Database(None)
    before, _ = tune_graph(layers("tanh", "exp", "relu"), there, arbitrary)
    export_pack(there, tmp_path / "pack.json.xz")
    assert import_results(here, tmp_path / "pack.json.xz").graphs == 1
    after, _ = tune_graph(layers("tanh", "exp", "neg"), here, arbitrary)
    assert_unchanged(before, after, ["f2.0"])
