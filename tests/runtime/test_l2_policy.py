"""Tensors that pass through the cache, and the device's L2 policy."""

from __future__ import annotations

import numpy as np
from attrs import evolve
from cuts import build
from cuts.backends import BlockAddress
from cuts.ir import Graph, Node, TensorType
from cuts.ir.types import DType
from cuts.runtime import place_over_blocks
from cuts.runtime.placement.l2_policy import MAX_L2_PART, evict_first_tensors
from cuts.runtime.plan import Plan


def plan_of(batch: int, hidden: int) -> Plan:
    """Return a network of three products; the last two share their weights."""
    rng = np.random.default_rng(0)
    weights = {n: rng.random(shape, np.float32) for n, shape in {"w": (64, hidden), "u": (hidden, hidden)}.items()}
    shapes = {"x": (batch, 64), **dict.fromkeys("hky", (batch, hidden))} | {n: w.shape for n, w in weights.items()}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    nodes = (
        Node("a", "matmul", ("x", "w"), ("h",), {}),
        Node("b", "matmul", ("h", "u"), ("k",), {}),
        Node("c", "matmul", ("k", "u"), ("y",), {}),
    )
    graph = Graph("three", ("x",), ("y",), types, nodes, weights)
    return build(graph, target="opencl", mode="no-fusion").plan


def test_cache_tensors_are_never_written_and_read_once() -> None:
    plan = plan_of(2, 96)
    found = evict_first_tensors(plan)
    assert found, "the first product has weights of its own"
    written = {
        t for s in plan.steps for a, t in zip(plan.kernels[s.kernel].arguments, s.tensors, strict=True) if a.written
    }
    for number, (tensor, nbytes) in found.items():
        assert tensor not in written
        assert sum(plan.turns(n) for n, step in enumerate(plan.steps) if tensor in step.tensors) == 1
        assert tensor in plan.steps[number].tensors
        assert 0 < nbytes <= plan.buffers[plan.storages[tensor].buffer].nbytes
    sizes = sorted(plan.types[tensor].nbytes for tensor, _ in found.values())
    assert 96 * 96 * 4 not in sizes, "the other one's are read by two"


def test_tensor_that_does_not_fit_is_not_cached() -> None:
    plan = plan_of(2, 96)
    number, (tensor, nbytes) = max(evict_first_tensors(plan).items(), key=lambda item: item[1][1])
    room = sum(plan.types[t].nbytes for t in plan.steps[number].tensors if t in plan.types)
    small = evolve(plan, target=evolve(plan.target, l2_bytes=int(room / MAX_L2_PART) - 2))
    assert tensor not in {t for t, _ in evict_first_tensors(small).values()}
    assert nbytes <= room


def test_calls_in_place_say_which_argument_passes() -> None:
    plan = plan_of(2, 96)
    calls = place_over_blocks(plan).sequence.calls
    for number, (tensor, nbytes) in evict_first_tensors(plan).items():
        assert calls[number].evict_first == (plan.steps[number].tensors.index(tensor), nbytes)
        assert isinstance(calls[number].iterations[0][plan.steps[number].tensors.index(tensor)], BlockAddress)
