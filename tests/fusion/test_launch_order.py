"""Law of the launch order.

Every order that the dependences of groups allow keeps it, and every other order breaks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompileOptions, Mode
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.passes.context import CompileContext
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.views import Views
from cuts.passes.inspection.verify import verify_launches
from cuts.passes.launch_order import launch_violations, updated_tensors
from cuts.passes.partitioning.dependencies import dependencies, levels
from cuts.passes.partitioning.shared_launches import Launch, in_order
from cuts.passes.pipeline import compile_graph, stage_results
from cuts.passes.results import Partition
from cuts.tests.amounts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .build import REGISTRY, Line, graph, op
from .test_horizontal_fusion import PLAIN, recurrence

GPU = find_target("cuda:h200")
_SLOW_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
INPUTS = {
    "x": (6, 24),
    "w": (24, 24),
    "g": (1, 72, 24),
    "long": (2, 1 << 20),
    "i": TensorType(DType.I32, (3, 1)),
    "u": (3, 24),
}


@st.composite
def branches(draw: st.DrawFn) -> Graph:
    """Draw a graph of kernels, views, updates, loops and long sums.

    It has piecewise tensors, too.
    """
    lines: list[Line] = []
    values = ["x"]
    for number in range(draw(st.integers(2, 7))):
        kind, source = draw(st.sampled_from(sorted(KINDS))), draw(st.sampled_from(values))
        lines += KINDS[kind](f"v{number}", source)
        values.append(f"v{number}")
    outputs = draw(st.sets(st.sampled_from(values[1:]), min_size=1))
    return graph(INPUTS, *lines, out=" ".join(sorted(outputs)))


def _pieces(name: str, source: str) -> list[Line]:
    """Return two separately computed halves of one tensor."""
    return [
        op(f"{name}a", "slice", source, starts=(0,), ends=(3,), axes=(0,), steps=(1,)),
        op(f"{name}b", "slice", source, starts=(3,), ends=(6,), axes=(0,), steps=(1,)),
        op(f"{name}c", "softmax", f"{name}a", axis=1),
        op(f"{name}d", "exp", f"{name}b"),
        op(name, "concat", f"{name}c", f"{name}d", axis=0),
    ]


def _sum_lines(name: str, source: str) -> list[Line]:
    """A sum of so many terms that it is split, beside the source."""
    return [
        op(f"{name}s", "reduce_sum", "long", axes=(0, 1), keepdims=True),
        op(name, "add", source, f"{name}s"),
    ]


def _gated_lines(name: str, source: str) -> list[Line]:
    """Return a recurrence of several kernels an iteration, which begins with a function of its input."""
    return [
        op(f"{name}x", "reshape", source, shape=(6, 1, 24)),
        op(f"{name}h", "reduce_max", source, axes=(0,), keepdims=True),
        op(f"{name}s", "reshape", f"{name}h", shape=(1, 1, 24)),
        op(f"{name}o {name}l", "gru", f"{name}x", "g", "g", None, None, f"{name}s"),
        op(name, "reshape", f"{name}o", shape=(6, 24)),
    ]


KINDS: dict[str, Any] = {
    "function": lambda name, source: [op(name, "tanh", source)],
    "product": lambda name, source: [op(name, "matmul", source, "w")],
    "rows": lambda name, source: [op(name, "softmax", source, axis=1)],
    "update": lambda name, source: [op(name, "scatter_nd", source, "i", "u", reduction="add", atomic=True)],
    "pieces": _pieces,
    "loop": recurrence,
    "gates": _gated_lines,
    "sum": _sum_lines,
}


def result_of(model: Graph, last: str, mode: Mode = "mixed") -> Any:
    """Return the result of a stage, with all results verified."""
    results = stage_results(model, CompileContext(REGISTRY, GPU, CompileOptions(mode, verify=True), emit))
    return next(result for name, result in results if name == last)


def violations(launches: Sequence[Launch], views: Views) -> list[str]:
    groups = [launch.groups for launch in launches]
    return [error.message for error in launch_violations(groups, [launch.places for launch in launches], views)]


def single(groups: Sequence[Group], places: Iterable[int]) -> list[Launch]:
    return [Launch((groups[n],), (), (n,)) for n in places]


@settings(max_examples=examples(12, 300), deadline=None, suppress_health_check=_SLOW_CHECKS)
@given(branches(), st.sampled_from(("no-fusion", "no-fusion", "mixed")), st.randoms(use_true_random=False))
def test_exactly_the_orders_of_dependences_are_legal(model: Graph, mode: Mode, draw: Any) -> None:
    """Any choice of the groups that share a launch is legal.

    The model and the clock choose among the groups of a level.
    """
    made = result_of(model, "split", mode)
    needs = dependencies(made.groups, made.views)
    order = _draw_order(needs, made.groups, draw)
    assert violations(single(made.groups, order), made.views) == []
    assert violations(list(in_order(_draw_launches(needs, made.groups, draw), needs)), made.views) == []
    loops = [group.repeat or object() for group in made.groups]
    for later, before in ((n, m) for n, waits in enumerate(needs) for m in waits if loops[n] != loops[m]):
        moved = [n for n in order if n == later or loops[n] == loops[later]]
        rest = [n for n in order if n not in moved]
        at = min(n for n, place in enumerate(rest) if place == before or loops[place] == loops[before])
        assert violations(single(made.groups, [*rest[:at], *moved, *rest[at:]]), made.views), (later, before)
        pair = Launch((made.groups[before], made.groups[later]), (), (before, later))
        launches = single(made.groups, [n for n in order if n != later])
        together = [pair if launch.places == (before,) else launch for launch in launches]
        assert violations(together, made.views), f"{later} and {before} share a launch"


def _draw_launches(needs: Sequence[frozenset[int]], groups: Sequence[Group], draw: Any) -> list[Launch]:
    """Return launches of groups of one level, as many as chance has it."""
    found: dict[object, list[int]] = {}
    for place, level in enumerate(levels(needs, groups)):
        adds = groups[place].form.adds_to_memory
        found.setdefault((place,) if level is None else (level, adds, draw.randrange(2)), []).append(place)
    return [Launch(tuple(groups[n] for n in places), (), tuple(places)) for places in found.values()]


def _draw_order(needs: Sequence[frozenset[int]], groups: Sequence[Group], draw: Any) -> list[int]:
    """Return places in an order that needs allow, loops whole and as they were."""
    runs: dict[object, list[int]] = {}
    for place, group in enumerate(groups):
        runs.setdefault(place if group.repeat is None else group.repeat, []).append(place)
    done: list[int] = []
    while waiting := [run for run in runs.values() if run[0] not in done]:
        ready = [run for run in waiting if all(needs[n] <= {*done, *run} for n in run)]
        done += draw.choice(ready)
    return done


@settings(max_examples=examples(3, 60), deadline=None, suppress_health_check=_SLOW_CHECKS)
@given(branches())
def test_what_the_stage_leaves_keeps_the_law(model: Graph) -> None:
    found = result_of(model, "launches")
    verify_launches(found.launches, found.places, found.scheduled.partition.views)


#: Filled memory of an atomic update, by type: fp32 sums begin with the other operand, in the result's memory, and
#: narrow ones with zeros, in their accumulator.
FILLED_TENSORS = {DType.F32: "s", DType.BF16: "n0.added.total"}
with_fills = pytest.mark.parametrize(("dtype", "filled"), FILLED_TENSORS.items(), ids=str)


def update_partition(dtype: DType) -> Partition:
    """Return an atomic update whose fill could share a launch."""
    inputs = {"x": TensorType(dtype, (6, 24)), "i": INPUTS["i"], "u": TensorType(dtype, (3, 24))}
    lines = [op("s", "scatter_nd", "x", "i", "u", reduction="add", atomic=True), op("e", "softmax", "x", axis=1)]
    return result_of(graph(inputs, *lines, out="s e"), "split")


def fill_and_update(made: Partition, filled: str) -> tuple[int, int]:
    """Return the places of the groups that fill and update memory."""
    (adding,) = (n for n, group in enumerate(made.groups) if updated_tensors(group) == (filled,))
    (fill,) = (n for n, group in enumerate(made.groups) if filled in group.outputs and n != adding)
    return fill, adding


@with_fills
def test_an_update_before_its_fill_is_reported(dtype: DType, filled: str) -> None:
    made = update_partition(dtype)
    fill, adding = fill_and_update(made, filled)
    rest = [n for n in range(len(made.groups)) if n not in (fill, adding)]
    found = violations(single(made.groups, [adding, fill, *rest]), made.views)
    assert found == [f"group '{made.groups[adding].units[0]}' adds to '{filled}' before it is filled"]
    assert violations(single(made.groups, [fill, adding, *rest]), made.views) == []


@with_fills
def test_a_reader_of_filled_memory_precedes_the_update(dtype: DType, filled: str) -> None:
    """The test makes a unit that reads between fill and update."""
    made = update_partition(dtype)
    programs = made.views.programs
    fill, adding = fill_and_update(made, filled)
    reader = next(n for n, group in enumerate(made.groups) if group.outputs == ("e",))
    units = {unit.name: unit for unit in programs.units}
    early = evolve(units[made.groups[reader].units[0]], reads=(filled,))
    update = units[made.groups[adding].units[0]]
    changed = [unit for unit in programs.units if unit.name != early.name]
    changed.insert(changed.index(update), early)
    views = evolve(made.views, programs=evolve(programs, units=tuple(changed)))
    rest = [n for n in range(len(made.groups)) if n not in (fill, adding, reader)]
    assert violations(single(made.groups, [fill, reader, adding, *rest]), views) == []
    found = violations(single(made.groups, [fill, adding, reader, *rest]), views)
    assert found == [f"group '{update.name}' adds to '{filled}' before '{early.name}' has read it"]


def test_a_shared_or_divided_loop_is_reported() -> None:
    made = result_of(graph(INPUTS, *_gated_lines("a", "x"), op("e", "tanh", "x"), out="a e"), "split")
    groups = made.groups
    loop = [n for n, group in enumerate(groups) if group.repeat is not None]
    free = next(n for n, group in enumerate(groups) if "e" in group.outputs)
    front = [n for n in range(loop[0]) if n != free]
    later = [n for n in range(loop[-1] + 1, len(groups)) if n != free]
    assert violations(single(groups, [*front, free, *loop, *later]), made.views) == []
    shared = Launch((groups[loop[0]], groups[free]), (), (loop[0], free))
    launches = [*single(groups, front), shared, *single(groups, [*loop[1:], *later])]
    assert any("shares a launch" in text for text in violations(launches, made.views))
    torn = single(groups, [*front, loop[0], free, *loop[1:], *later])
    assert any("in 2 pieces" in text for text in violations(torn, made.views))
    turned = single(groups, [*front, free, *reversed(loop), *later])
    assert any("changed their order" in text for text in violations(turned, made.views))


def test_the_stage_is_held_to_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that forgets the order of fill and update fails.

    The stage verifier raises the error.
    """

    def forgetful(groups: Sequence[Group], views: Views) -> list[frozenset[int]]:
        needs = dependencies(groups, views)
        return [frozenset() if updated_tensors(g) else n for g, n in zip(groups, needs, strict=True)]

    inputs = {"x": (4, 3), "i": TensorType(DType.I32, (3, 1)), "u": (3, 3)}
    lines = [op(f"s{n}", "scatter_nd", "x", "i", "u", reduction="add", atomic=True) for n in range(2)]
    model = graph(inputs, *lines, out="s0 s1")
    compile_graph(model, REGISTRY, PLAIN, CompileOptions(verify=True), emit)
    monkeypatch.setattr("cuts.passes.partitioning.horizontal_fusion.dependencies", forgetful)
    monkeypatch.setattr(
        "cuts.passes.partitioning.shared_launches._last_place",
        lambda run: -max(p for launch in run for p in launch.places),
    )
    with pytest.raises(CutsError, match="stage 'launches' broke what it made"):
        compile_graph(model, REGISTRY, PLAIN, CompileOptions(verify=True), emit)
