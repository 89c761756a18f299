"""Random graphs compute the reference, however they are compiled;
and the means by which `python -m cuts.tests.fuzz` shows that work.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from cuts.backends.devices import find_target
from cuts.frontends.graph_json import graph_from_json, graph_to_json
from cuts.ir.graph import Graph
from cuts.ir.text import parse_ir
from cuts.ir.types import DType
from cuts.ir.verify.graph import verify_graph
from cuts.numerics.comparison import compare
from cuts.ops.language import Registry
from cuts.ops.reference import evaluate_graph
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.runtime.arrays import random_inputs
from cuts.search.processes.child import Child
from cuts.tests.amounts import examples
from cuts.tests.fuzz.__main__ import main
from cuts.tests.fuzz.campaign.asking import SERVICE, check_graph
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from ..kernels.cases import builder
from ..needs import needs_cuda, needs_opencl
from .chance import Chance
from .checking import WAYS, Bench
from .drawing import BATCH, draw_graphs, shrunk
from .graphs import graphs
from .planted_bugs import BUGS
from .planting import Bug, changed_row, mutate_function
from .reducing import reduce_graph


@cache
def _bench(target: str) -> Bench:
    return Bench(target)


def check(target: str, graph: Graph, seed: int, ways: Sequence[str] = WAYS) -> None:
    """Assert that a graph computes the reference in some ways."""
    note(graph_to_json(graph))
    wrong = [f"{o.way}: {text}" for o in _bench(target).check(graph, seed, ways) for text in o.wrong if not o.ill]
    assert not wrong


#: Here a difference is only reported; `python -m cuts.tests.fuzz --replay` and its own runs reduce it.
REPORTED_PHASES = (Phase.explicit, Phase.generate)


@settings(max_examples=examples(25, 600), deadline=None, phases=REPORTED_PHASES)
@given(graphs(), st.integers(0, 2**16))
def test_normal_forms_agree_with_the_reference(graph: Graph, seed: int) -> None:
    check("opencl", graph, seed, WAYS[:1])


@needs_opencl
@settings(max_examples=6, deadline=None, phases=REPORTED_PHASES)
@given(graphs(), st.integers(0, 2**16))
def test_fused_unfused_and_reference_agree_opencl(graph: Graph, seed: int) -> None:
    check("opencl", graph, seed)


@needs_cuda
@pytest.mark.parametrize("share", range(6))
@settings(max_examples=10, deadline=None, phases=REPORTED_PHASES)
@given(graphs(), st.integers(0, 2**16))
def test_fused_unfused_and_reference_agree_cuda(share: int, graph: Graph, seed: int) -> None:
    check("cuda", graph, seed)


@needs_opencl
def test_rows_of_two_lengths_are_divided_separately() -> None:
    """One kernel stores a row of 4 and a longer one.

    The longer row has a loop of its own, whose phase has nothing of the first.
    """
    make = builder()
    greatest = make.node("reduce_max", make.input(4, 3, 3, 4), axes=(0,), keepdims=True)
    long, rest = make.node("tile", greatest, repeats=(1, 1, 1, 3)), make.node("sub", "in 0", greatest)
    graph = Graph("rows", tuple(make.inputs), (long, rest), dict(make.types), tuple(make.nodes))
    for seed in range(20):
        assert not [o.wrong for o in _bench("opencl").check(graph, seed, WAYS[1:2]) if o.wrong]


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_graphs_are_valid_and_survive_json(graph: Graph) -> None:
    infer = Registry.builtin().instances.infer
    verify_graph(graph, infer)
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    assert all((again.constants[name] == array).all() for name, array in graph.constants.items())


def test_graph_numbers_do_not_depend_on_the_start() -> None:
    whole = dict(draw_graphs(3, BATCH - 5, 10))
    assert list(whole) == list(range(BATCH - 5, BATCH + 5))
    assert dict(draw_graphs(3, BATCH + 1, 2)) == {n: whole[n] for n in (BATCH + 1, BATCH + 2)}
    assert dict(draw_graphs(4, BATCH + 1, 2)) != dict(draw_graphs(3, BATCH + 1, 2))


def test_a_finding_is_shrunk_to_what_shows_it() -> None:
    def shows(graph: Graph) -> bool:
        return any(node.op == "concat" for node in graph.nodes)

    number = next(n for n, graph in draw_graphs(3, 0, 2 * BATCH) if shows(graph))
    least = shrunk(3, number, shows, 50)
    assert shows(least)
    assert len(reduce_graph(least, shows).nodes) == 1


def test_rounding_explains_only_its_own_effects() -> None:
    """The mean of equal terms is 0 but for rounding.

    Single precision may compute it exactly.
    """
    make = builder()
    centred = make.node("sub", make.input(7), make.node("reduce_mean", "in 0", axes=(0,), keepdims=True))
    mean = make.node("reduce_mean", centred, axes=(0,), keepdims=True)
    graph = Graph("mean", tuple(make.inputs), (mean,), dict(make.types), tuple(make.nodes))
    bench = _bench("opencl")
    inputs = random_inputs(graph.types, graph.inputs, 1)
    expected = evaluate_graph(graph, bench.registry, inputs)
    for error, explained in ((3e-8, True), (1e-4, False)):
        wrong = compare(mean, expected[mean] + error, expected[mean], 1e-6)
        assert not wrong.ok
        assert bench.ill_conditioned(graph, inputs, expected, [wrong]) == explained


def _is_explained(graph: Graph, error: float) -> bool:
    """Return whether rounding explains an error of the last element of a graph's only output."""
    bench, (name,) = _bench("opencl"), graph.outputs
    inputs = random_inputs(graph.types, graph.inputs, 1)
    expected = evaluate_graph(graph, bench.registry, inputs)
    found = expected[name].copy()
    found.flat[-1] += error
    wrong = compare(name, found, expected[name], 0.0)
    return bench.ill_conditioned(graph, inputs, expected, [wrong])


def _difference_graph(dtype: DType, of: str) -> Graph:
    """Return a graph of the difference of two nodes' operands: a product, or the caller's value."""
    make = builder()
    x, y = make.input(7, dtype=dtype), make.input(7, dtype=dtype)
    value = make.node("mul", x, y) if of == "product" else x
    result = make.node("leaky_relu", make.node("sub", value, value), alpha=1e-4)
    return Graph("apart", tuple(make.inputs), (result,), dict(make.types), tuple(make.nodes))


def test_a_product_may_be_rounded_for_one_reader() -> None:
    """A reader that multiplies and adds in one step has more digits.

    Nothing rounds a caller's values.
    """
    assert _is_explained(_difference_graph(DType.F32, "product"), 3e-8)
    assert not _is_explained(_difference_graph(DType.F32, "product"), 1e-4)
    assert not _is_explained(_difference_graph(DType.F32, "operand"), 3e-8)
    assert not _is_explained(_difference_graph(DType.F64, "product"), 3e-8)
    assert _is_explained(_difference_graph(DType.F64, "product"), 1e-17)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_has_its_place(bug: Bug) -> None:
    if bug.in_table:
        row = changed_row(bug)
        assert row.value != row.changed
        return
    original, changed = mutate_function(bug)
    parts = ("co_code", "co_consts", "co_names")
    assert any(getattr(original.__code__, part) != getattr(changed.__code__, part) for part in parts)


def test_a_planted_bug_is_found() -> None:
    bug = next(b for b in BUGS if b.what == "the rest of a mixed-radix sum keeps the digit taken off")
    planted, sound = Child(SERVICE, bug.name), Child(SERVICE)
    try:
        number, graph = next(
            (n, g) for n, g in draw_graphs(1, 0, BATCH) if check_graph(planted, "opencl", g, n, WAYS[:1]).kind
        )
        assert not check_graph(sound, "opencl", graph, number, WAYS[:1]).kind
    finally:
        planted.close()
        sound.close()


@needs_opencl
def test_a_ledger_records_checks_and_the_next_number(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    for count, ends in ((2, [2]), (3, [2, 3]), (3, [2, 3])):
        main(["--graphs", str(count), "--seed", "9", "--ways", "one", "--part", "2", "--ledger", str(path)])
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
        assert [part["until"] for part in parts] == ends
    assert sum(part["graphs"] for part in parts) == 3
    main(["--graphs", "9", "--seed", "9", "--ways", "one", "--limit", "0", "--ledger", str(path)])
    assert json.loads(path.read_text(encoding="utf-8"))["parts"] == parts


@needs_opencl
def test_a_ledger_says_where_kernels_ran(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    main(["--graphs", "2", "--seed", "9", "--ways", "one", "--ledger", str(path)])
    (part,) = json.loads(path.read_text(encoding="utf-8"))["parts"]
    (machine,) = part["machines"]
    assert machine["name"] and machine["version"].startswith("OpenCL") and "settings" in machine


def test_graphs_do_not_depend_on_loaded_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Hypothesis would draw numbers from the source of loaded modules."""
    before = [graph_to_json(graph) for _, graph in draw_graphs(2, 0, BATCH)]
    (tmp_path / "many_numbers.py").write_text(f"NUMBERS = {[*range(2, 700)]}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("many_numbers")
    request.addfinalizer(lambda: sys.modules.pop("many_numbers", None))
    assert [graph_to_json(graph) for _, graph in draw_graphs(2, 0, BATCH)] == before


#: The sum of each row, over an axis of some name.
ROWS = """
var i0 < 4, {axis} < 17

group {{
  tensor t0: f32[4, 17]
  tensor t1: f32[4]
  tensor acc0: f32[4]
  inputs t0
  outputs t1
  segment (i0) {{
    reduce acc0 = sum over ({axis}) of t0[i0, {axis}]
    output t1[i0] = acc0[i0]
  }}
}}
"""


def test_random_points_name_axes_of_their_group() -> None:
    chance = Chance(find_target("cuda:sm_90"), seed=3)
    first, second = (parse_ir(ROWS.format(axis=axis)) for axis in ("r0", "r2"))
    points = [chance.point(form) for form in (first, second)]
    for form, point in zip((first, second), points, strict=True):
        assert point is not None and not [*check_schedule(form, point, chance.target)]
