"""External buffers: results, touched memory, and memory layout of plans."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import SequenceLauncher, SequencePlan, find_target, open_sequence_launcher
from cuts.backends.cuda import CudaSequenceLauncher
from cuts.compile import build_graph
from cuts.ir import CompileOptions
from cuts.ir.compiled import Step, Storage
from cuts.runtime import (
    ExternalSession,
    LaunchDependencies,
    Plan,
    Session,
    make_concurrent,
    make_plan,
    place_over_blocks,
)
from cuts.tests.backends.fake_driver import FakeDriver
from cuts.tests.needs import needs_c_compiler, needs_opencl
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR
from cuts.tests.operations_graph import bench_of

from .handmade import COLUMNS, ROWS, example, example_plan, expected_outputs, kernel, random_x
from .test_hazards import some_order

#: Bytes of no tensor around each block, all of a value that no kernel writes.
ZONE, GUARD_BYTE = 64, 0xA5


class Arena:
    """Memory of a caller: blocks with zones around them."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, int, int]] = []

    def new(self, nbytes: int, values: Any = None) -> int:
        """Return the address of a new block.

        It holds zeros or the bytes of an array.
        """
        whole = np.full(nbytes + 3 * ZONE, GUARD_BYTE, np.uint8)
        start = ZONE + -(whole.ctypes.data + ZONE) % ZONE
        whole[start : start + nbytes] = 0 if values is None else np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.blocks.append((whole, start, nbytes))
        return int(whole.ctypes.data) + start

    def bytes_at(self, address: int) -> Any:
        """Return the bytes of the block at an address."""
        return next(w[s : s + n] for w, s, n in self.blocks if int(w.ctypes.data) + s == address)

    def is_untouched(self) -> bool:
        """Return true where no byte around any block was written."""
        return all(np.all(w[:s] == GUARD_BYTE) and np.all(w[s + n :] == GUARD_BYTE) for w, s, n in self.blocks)


def run(
    plan: Plan, chains: SequenceLauncher, inputs: dict[str, Any], held: tuple[str, ...] = (), times: int = 2
) -> Any:
    """Run a plan over external buffers, other memory each time.

    Returns the results of the last run.
    """
    arena = Arena()
    session = ExternalSession(plan, chains, held, arena.new)
    layout = session.layout
    fixed = session.fixed_addresses(
        [arena.new(inputs[n].nbytes, inputs[n]) for n in layout.held], arena.new(layout.sizes[1])
    )
    found: dict[str, Any] = {}
    for _ in range(times):
        given = [arena.new(inputs[n].nbytes, inputs[n]) for n in layout.moving]
        made = [arena.new(layout.sizes[n]) for n in layout.fresh]
        session.launch(fixed, [*given, *made], 0)
        blocks = [*fixed, *given, *made]
        for outlet in layout.output_views:
            elements = arena.bytes_at(blocks[outlet.block]).view(outlet.dtype.numpy)[outlet.offset :]
            strides = tuple(s * outlet.dtype.size for s in outlet.strides)
            found[outlet.name] = np.lib.stride_tricks.as_strided(elements, outlet.shape, strides).copy()
        for name, address in zip((*layout.held, *layout.moving), (*fixed[2:], *given), strict=True):
            same = arena.bytes_at(address) == np.ascontiguousarray(inputs[name]).reshape(-1).view(np.uint8)
            assert np.all(same), f"input {name} was written to"
        assert arena.is_untouched()
    return found


def opencl() -> SequenceLauncher:
    chains = open_sequence_launcher(find_target("opencl"))
    assert chains is not None
    return chains


USES = [*DIFFERENTIABLE, *SCALAR, *FLAT]


class AnyOrder:
    """Launch sequences in an order that respects dependencies, other than the plan's."""

    is_blocking = True

    def __init__(self) -> None:
        self.chains = opencl()
        self.upload, self.settle = self.chains.upload, self.chains.settle

    def load(self, plan: SequencePlan, *rest: Any) -> Any:
        assert plan.waits is not None
        order = some_order(LaunchDependencies(plan.waits, ()), Random(1))
        return self.chains.load(evolve(plan, order=tuple(plan.order[number] for number in order)), *rest)


@needs_opencl
@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("branched", [False, True])
def test_external_buffers_give_the_results_of_an_arena(first: int, branched: bool) -> None:
    """Recurrences, concatenations, views, scatters among them, in one plan."""
    bench = bench_of([use for use in USES[first::6] if use.op in ("lstm", "gru", "concat") or use in USES[first::12]])
    made = build_graph(bench.graph, bench.spec, find_target("opencl"), CompileOptions())
    inputs = {name: np.asarray(bench.inputs[name]) for name in made.plan.inputs}
    plan, chains = (make_concurrent(made.plan), AnyOrder()) if branched else (made.plan, opencl())
    assert plan is not None
    found = run(plan, chains, inputs, held=made.plan.inputs[::2])  # type: ignore[arg-type]
    for name, value in Session(made.plan).run(inputs).items():
        assert np.array_equal(found[name], value, equal_nan=value.dtype.kind == "f"), name


@needs_opencl
@pytest.mark.parametrize("held", [(), ("x",)])
def test_parts_of_one_buffer_are_found_in_it(held: tuple[str, ...]) -> None:
    x = random_x()
    found = run(example_plan(), opencl(), {"x": x}, held)
    assert all(np.allclose(found[name], value, atol=1e-5) for name, value in expected_outputs(x).items())


def test_only_first_output_of_a_block_owns_it() -> None:
    layout = place_over_blocks(example_plan())
    assert [(outlet.name, outlet.owned) for outlet in layout.output_views] == [("y", True), ("left", False)]
    assert layout.sizes[layout.fresh[0]] == ROWS * 2 * COLUMNS * 4


def test_inputs_and_outputs_take_no_plan_memory() -> None:
    plan = example_plan()
    layout = place_over_blocks(plan)
    constants, scratch = layout.sizes[:2]
    assert scratch == 256, "one tensor lives between kernels"
    assert constants == 256, "a constant"
    assert plan.arena > constants + scratch


@needs_opencl
def test_input_written_by_a_kernel_is_copied_first() -> None:
    compiled, graph = example()
    clear = kernel("opencl", "k_clear", [("a", True)], "a[i] = 0.0f;")
    steps = (*compiled.steps, Step(2, ("x",)))
    plan = make_plan(
        evolve(compiled, kernels=(*compiled.kernels, clear), steps=steps, groups=()), find_target("opencl")
    )
    assert [copied.nbytes for copied in place_over_blocks(plan).sequence.before] == [ROWS * COLUMNS * 4]
    x = random_x()
    assert np.allclose(run(plan, opencl(), {"x": x})["y"], expected_outputs(x)["y"], atol=1e-5)
    assert graph.inputs == ("x",)


def test_memory_of_library_routines_does_not_move() -> None:
    """Constants are bound once.

    Moving tensors are copied to and from own memory, a model's tensors are not.
    """
    compiled, _ = example("cuda")
    routine = evolve(compiled.kernels[1], dialect="library")
    plan = make_plan(evolve(compiled, kernels=(compiled.kernels[0], routine)), find_target("cuda:sm_90"))
    moving, held = place_over_blocks(plan), place_over_blocks(plan, ["x"])
    assert [c.source.block for c in moving.sequence.before] == [2]
    assert [c.source.block for c in held.sequence.before] == []
    assert [c.destination.block for c in moving.sequence.after] == [3]
    touched = {place.block for call in moving.sequence.calls if call.kernel == 1 for place in call.iterations[0]}
    assert touched == {1}
    assert {place.block for call in held.sequence.calls if call.kernel == 1 for place in call.iterations[0]} == {1, 2}


@needs_opencl
def test_outputs_may_be_inputs() -> None:
    compiled, graph = example()
    whole = evolve(graph, outputs=("y", "back"), types={**graph.types, "back": graph.types["x"]})
    storages = {**compiled.storages, "back": Storage("x", 0, (COLUMNS, 1))}
    plan = make_plan(evolve(compiled, graph=whole, storages=storages), find_target("opencl"))
    x = random_x()
    assert np.array_equal(run(plan, opencl(), {"x": x})["back"], x)
    assert [outlet.owned for outlet in place_over_blocks(plan).output_views] == [True, False]


@needs_c_compiler()
@pytest.mark.parametrize("branched", [False, True])
def test_a_gpu_runs_the_same_chain(branched: bool) -> None:
    """A driver in Python shows the recorded and launched calls."""
    import ctypes

    def at(address: int, count: int) -> Any:
        return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32)

    def k_add(a: int, b: int, c: int) -> None:
        count = ROWS * COLUMNS
        at(c, count)[...] = at(a, count) + at(b, count) * 3

    def k_double(a: int, c: int) -> None:
        to = np.lib.stride_tricks.as_strided(at(c, 1), (ROWS, COLUMNS), (8 * COLUMNS, 4))
        to[...] = 2 * at(a, ROWS * COLUMNS).reshape(ROWS, COLUMNS)

    plan = evolve(example_plan("cuda"), binaries=(b"add", b"double"))
    driver = FakeDriver({"k_add": k_add, "k_double": k_double})
    if branched:
        plan = make_concurrent(plan) or plan
    chains = CudaSequenceLauncher(plan.target, 0, driver)
    x = random_x()
    found = run(plan, chains, {"x": x}, times=3)
    assert all(np.allclose(found[name], value, atol=1e-5) for name, value in expected_outputs(x).items())
    assert len(driver.cuda.edges()) == (1 if branched else 2)
