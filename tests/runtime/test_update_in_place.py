"""Outputs in place of inputs.

Drawn graphs, memory of a caller, state of sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile import build_graph
from cuts.compile.loading import Spec
from cuts.ir import (
    CompileOptions,
    Graph,
    Interface,
    StateTensor,
    VerifyError,
    parse_graph,
    parse_ir,
    print_graph,
    print_ir,
    verify_graph,
)
from cuts.ops.language import Registry
from cuts.runtime import ExternalSession, Plan, place_over_blocks
from cuts.tests.needs import needs_opencl

from .test_external_buffers import Arena, opencl

#: Rows and columns of all matrices: no multiple of a vector's width.
SIZE = 7
#: Results of drawn graphs: the text of a node over two operands.
NODES = (
    "add({a}, {b})", "sub({a}, {b})", "where(%mask, {a}, {b})", "where(%mask, {b}, {a})",
    "transpose({a}) {{perm = [1, 0]}}", "max({a}, {b})", "scatter_nd({a}, %rows, {b})",
    "slice({a}) {{axes = [0], ends = [-100], starts = [-1], steps = [-1]}}", "reshape({a}) {{shape = [7, 7]}}",
    'cumsum({a}) {{axis = 1}}',
)  # fmt: skip


def graph_of(nodes: list[str], outputs: list[str], updates: Mapping[str, str], kind: str = "f32") -> Graph:
    """Return a graph over three matrices, a mask and rows."""
    type_ = f"{kind}[{SIZE}, {SIZE}]"
    lines = [f"input %{name}: {type_}" for name in "xzw"]
    lines += [f"input %mask: bool[{SIZE}, {SIZE}]", f"input %rows: i64[{SIZE}, 1]"]
    lines += [f"%n{number}: {type_} = {text} @n{number}" for number, text in enumerate(nodes)]
    lines += ["output " + ", ".join(f"%{name}" for name in outputs)]
    lines += [f"update %{old} to %{new}" for old, new in updates.items()]
    return parse_graph("\n".join(['graph "drawn" {', *lines, "}", ""]))


def drawn_graph(random: Random, kind: str) -> Graph:
    nodes: list[str] = []
    for number in range(random.randint(2, 6)):
        known = ["%x", "%x", "%z", "%z", "%w", *(f"%n{n}" for n in range(number))]
        nodes.append(random.choice(NODES).format(a=random.choice(known), b=random.choice(known)))
    outputs = random.sample([f"n{n}" for n in range(len(nodes))], random.randint(1, min(3, len(nodes))))
    news = random.sample(outputs, min(len(outputs), random.randint(1, 2)))
    return graph_of(nodes, outputs, dict(zip(random.sample("xz", len(news)), news, strict=True)), kind)


def drawn_inputs(random: Random, kind: str) -> dict[str, Any]:
    values = np.random.default_rng(random.randrange(1 << 30))
    dtype = {"f32": np.float32, "f16": np.float16, "i32": np.int32}[kind]
    found: dict[str, Any] = {name: values.integers(-9, 9, (SIZE, SIZE)).astype(dtype) for name in "xzw"}
    if kind != "i32":
        for name in "xz":
            found[name][random.randrange(SIZE)] = random.choice((np.nan, np.inf, -0.0))
    found["mask"] = values.random((SIZE, SIZE)) < 0.5
    found["rows"] = values.integers(0, SIZE, (SIZE, 1))
    return found


def run_in_place(plan: Plan, inputs: dict[str, Any], held: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return outputs in memory of a caller, and inputs after the run."""
    arena = Arena()
    session = ExternalSession(plan, opencl(), held, arena.new)
    layout = session.layout
    addresses = [arena.new(inputs[n].nbytes, inputs[n]) for n in layout.held]
    fixed = session.fixed_addresses(addresses, arena.new(layout.sizes[1]))
    given = [arena.new(inputs[n].nbytes, inputs[n]) for n in layout.moving]
    made = [arena.new(layout.sizes[n]) for n in layout.fresh]
    session.launch(fixed, [*given, *made], 0)
    assert arena.is_untouched()
    blocks, found = [*fixed, *given, *made], {}
    for view in layout.output_views:
        elements = arena.bytes_at(blocks[view.block]).view(view.dtype.numpy)[view.offset :]
        strides = tuple(s * view.dtype.size for s in view.strides)
        found[view.name] = np.lib.stride_tricks.as_strided(elements, view.shape, strides).copy()
    places = zip((*layout.held, *layout.moving), (*fixed[2:], *given), strict=True)
    after = {n: arena.bytes_at(at).view(inputs[n].dtype).reshape(inputs[n].shape) for n, at in places}
    return found, after


@needs_opencl
@pytest.mark.parametrize("kind", ["f32", "f16", "i32"])
@pytest.mark.parametrize("seed", range(12))
def test_drawn_updates(seed: int, kind: str) -> None:
    """Inputs become the outputs in their place; all others stay."""
    random = Random(f"{kind} {seed}")
    graph, inputs = drawn_graph(random, kind), drawn_inputs(random, kind)
    plan = cuts.build(graph, target="opencl").plan
    expected = cuts.build(graph, target="reference").run({n: inputs[n] for n in graph.inputs})
    held = tuple(name for name in plan.inputs if random.random() < 0.5)
    found, after = run_in_place(plan, inputs, held)
    for name in graph.outputs:
        np.testing.assert_array_equal(found[name], expected[name])
    for name in plan.inputs:
        new = plan.in_place.get(name)
        np.testing.assert_array_equal(after[name], inputs[name] if new is None else expected[new])


#: Nodes and updates, and the inputs that are overwritten.
PLACES: dict[str, tuple[list[str], dict[str, str], str]] = {
    "a sum": (["add(%x, %w)"], {"x": "n0"}, "x"),
    "a selection": (["where(%mask, %w, %x)"], {"x": "n0"}, "x"),
    "rows by integers": (["scatter_nd(%x, %rows, %w)"], {"x": "n0"}, "x"),
    "nothing of the input": (["transpose(%w) {perm = [1, 0]}"], {"x": "n0"}, "x"),
    "two": (["add(%x, %w)", "where(%mask, %w, %z)"], {"x": "n0", "z": "n1"}, "xz"),
    "exchanged: the second reads nothing that the first needs": (
        ["add(%x, %w)", "add(%z, %w)"], {"x": "n1", "z": "n0"}, "x"),
    "several of one kernel": (["add(%x, %w)", "sub(%z, %n0)"], {"x": "n0", "z": "n1"}, "xz"),
    "several of both": (["add(%x, %z)", "sub(%z, %n0)"], {"x": "n0", "z": "n1"}, "xz"),
    "several, each of the other": (["add(%z, %w)", "sub(%x, %n0)"], {"x": "n0", "z": "n1"}, "z"),
    "a selection beside another reader": (["where(%mask, %w, %x)", "mul(%x, %n0)"], {"x": "n0"}, "x"),
    "elements of others": (["transpose(%x) {perm = [1, 0]}", "add(%n0, %w)"], {"x": "n1"}, ""),
    "sums of rows": (["cumsum(%x) {axis = 1}", "add(%x, %n0)"], {"x": "n1"}, ""),
    "the old value beside the new one": (
        ["add(%x, %w)", "sub(%x, %n0)", "cumsum(%n1) {axis = 1}"], {"x": "n0"}, ""),
}  # fmt: skip


@needs_opencl
@pytest.mark.parametrize("case", PLACES)
def test_places(case: str) -> None:
    nodes, updates, overwritten = PLACES[case]
    graph = graph_of(nodes, [f"n{n}" for n in range(len(nodes))], updates)
    plan = cuts.build(graph, target="opencl").plan
    assert parse_graph(print_graph(graph)) == graph
    assert plan.in_place == {old: updates[old] for old in overwritten}
    copied = {copy.source.block for copy in place_over_blocks(plan).sequence.before}
    assert not copied


@needs_opencl
def test_faults_of_updates() -> None:
    graph = graph_of(["add(%x, %w)"], ["n0"], {})
    for updates, words in (({"y": "n0"}, "an input and an output"), ({"x": "w"}, "an input and an output"),
                           ({"x": "n0", "z": "n0"}, "of its own"), ({"mask": "n0"}, "the output f32")):  # fmt: skip
        with pytest.raises(VerifyError, match=words):
            verify_graph(evolve(graph, interface=Interface(updates=updates)))


@needs_opencl
def test_state_stays_in_the_arena() -> None:
    """Runs on given values, timing and traces between runs leave it alone."""
    graph = graph_of(["where(%mask, %w, %x)", "transpose(%w) {perm = [1, 0]}"], ["n0", "n1"], {})
    start = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    interface = Interface({"cache": StateTensor("x", "n0", start)})
    plan = cuts.build(evolve(graph, interface=interface), target="opencl")
    assert plan.plan.in_place == {"x": "n0"}
    session, random = cuts.runtime.Session(plan.plan), Random(0)
    state = start
    for number in range(6):
        given = {name: v.astype(np.float32) if name in "xzw" else v for name, v in drawn_inputs(random, "i32").items()}
        inputs = {name: given[name] for name in plan.plan.inputs if name != "x"}
        if number == 3:
            session.time_compute(repeats=2)
            list(session.trace({**inputs, "x": start * 2}))
        if number == 4:
            state = start + 1
            session.set_state({"cache": state})
        state = np.where(inputs["mask"], inputs["w"], state)
        np.testing.assert_array_equal(session.run(inputs)["n1"], inputs["w"].T)
        if number % 2:
            np.testing.assert_array_equal(session.state["cache"], state)


def test_unchanged_elements_are_not_stored() -> None:
    graph, texts = graph_of(["where(%mask, %w, %x)"], ["n0"], {"x": "n0"}), dict[str, str]()
    options = CompileOptions(print_after=("select",), callback=texts.__setitem__)
    plan = build_graph(graph, Spec(Registry.builtin()), find_target("cuda:sm_90"), options).plan
    (kernel,) = plan.kernels
    assert plan.in_place == {"x": "n0"} and len(kernel.arguments) == 3
    text = texts["select"].partition("\n")[2].strip()
    assert " when (%" in text and print_ir(parse_ir(text)).strip() == text


def test_split_reductions_beside_updates() -> None:
    """Both kernels of a split reduction have the same units."""
    type_ = "f32[1, 65536]"
    text = f"""graph "split" {{
  input %x: {type_}
  input %w: {type_}
  %y: {type_} = add(%x, %w) @y
  %s: f32[1, 1] = reduce_sum(%w) {{axes = [1]}} @s
  output %y, %s
  update %x to %y
}}
"""
    plan = build_graph(parse_graph(text), Spec(Registry.builtin()), find_target("cuda:sm_90"), CompileOptions()).plan
    assert plan.in_place == {"x": "y"} and len(plan.steps) == 3
