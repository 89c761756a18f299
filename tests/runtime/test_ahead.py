"""Launches ask the L2 cache for the constants of those behind them."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import find_target
from cuts.backends.source import asking_ahead
from cuts.compile import compile_model, load_spec
from cuts.compile.ahead import LEAST, with_constants_ahead
from cuts.compile.plan import plan_of
from cuts.ir import CompiledGraph, CompileOptions, DType, Graph, KernelFunction, Node, TensorType, Turns

from ..needs import needs_toolchain

H200 = find_target("cuda:h200")
#: A square matrix of weights is larger than what is not asked for.
WIDTH = 128


def layers(count: int) -> Graph:
    """Return products with a matrix each, a softmax behind each, so that they are kernels of their own."""
    types = {"x": TensorType(DType.F32, (4, WIDTH))}
    nodes, constants, last = [], {}, "x"
    for n in range(count):
        weights, product, result = f"w{n}", f"p{n}", f"y{n}"
        types |= {weights: TensorType(DType.F32, (WIDTH, WIDTH))}
        types |= {name: TensorType(DType.F32, (4, WIDTH)) for name in (product, result)}
        constants[weights] = np.full((WIDTH, WIDTH), 1 + n, np.float32)
        nodes += [Node(f"m{n}", "matmul", (last, weights), (product,)), Node(f"s{n}", "softmax", (product,), (result,))]
        last = result
    return Graph("layers", ("x",), (last,), types, tuple(nodes), constants)


def compiled(count: int = 3) -> CompiledGraph:
    return compile_model(layers(count), load_spec([]), H200, CompileOptions(mode="no-fusion"))


def weights_of(graph: CompiledGraph, step: int) -> list[str]:
    return [t for t in graph.steps[step].tensors if t in graph.graph.constants]


def test_a_constant_is_asked_for_by_the_launch_in_front_of_its_first_reader() -> None:
    before = compiled()
    after = with_constants_ahead(before, H200)
    readers = [n for n in range(len(before.steps)) if weights_of(before, n)]
    assert len(readers) == 3
    for number, (old, new) in enumerate(zip(before.steps, after.steps, strict=True)):
        wanted = weights_of(before, number + 1) if number + 1 in readers else []
        assert list(new.tensors) == [*old.tensors, *wanted]
        assert len(after.kernels[new.kernel].arguments) == len(new.tensors)
    assert {kernel.name for kernel in after.kernels} == {after.kernels[step.kernel].name for step in after.steps}


def test_machines_that_cannot_ask_launch_what_was_measured() -> None:
    before = compiled()
    assert with_constants_ahead(before, evolve(H200, bulk_prefetch=False)) is before


def test_a_turn_of_a_loop_asks_for_nothing() -> None:
    before = compiled()
    looped = evolve(before, loops=(Turns(0, len(before.steps), 5),))
    assert with_constants_ahead(looped, H200).steps == before.steps


@pytest.mark.parametrize("nbytes", [LEAST, LEAST + 16, 3 * LEAST + 4])
def test_the_shares_of_all_blocks_are_what_is_asked_for(nbytes: int) -> None:
    kernel = compiled().kernels[0]
    asked = asking_ahead(kernel, DType.F32, nbytes)
    assert isinstance(asked, KernelFunction)
    (call,) = (line for line in asked.source.split("\n") if line.startswith("  cuts_ahead("))
    share, size = (int(word.strip(" );").rstrip("u")) for word in call.split(",")[1:])
    assert share % 16 == size % 16 == 0
    assert kernel.grid[0] * share >= size > nbytes - 16
    assert size <= nbytes


def test_text_without_a_place_for_it_stays_as_it_is() -> None:
    kernel = compiled().kernels[0]
    assert asking_ahead(evolve(kernel, source="nothing of ours"), DType.F32, LEAST) is None
    assert asking_ahead(evolve(kernel, dialect="opencl"), DType.F32, LEAST) is None


@needs_toolchain
def test_a_plan_binds_what_its_kernels_ask_for() -> None:
    graph, spec = layers(2), load_spec([])
    plan = plan_of(compiled(2), graph, spec, H200)
    assert all(cubin.code for cubin in plan.cubins)
    assert sum("cuts_ahead" in kernel.source for kernel in plan.kernels) >= 1
