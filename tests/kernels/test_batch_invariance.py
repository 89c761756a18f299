"""Policy `batch-invariant`: equal rows have equal bits in any batch.

Operations of every declaration that reduces grow along an axis that is found to be a batch: results of the reference
do not change. The space of a GPU is drawn from, in OpenCL C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.ir import Dim, Graph, size_samples
from cuts.ir.compiled import CompileOptions
from cuts.ir.errors import CutsError, UsageError
from cuts.ir.machine import Target, check_policy, with_policy
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate
from cuts.ops.symbolic import bounded_graph, graphs_at_least
from cuts.tests.amounts import NIGHTLY
from cuts.tests.kernels.test_every_operation import FORWARD, TOGETHER
from cuts.tests.needs import DEVICES
from cuts.tests.operations import Use, uses
from cuts.tests.operations_graph import Bench, bench_of
from cuts.tests.ops.symbolic_graphs import padded_inputs, present

pytestmark = pytest.mark.long
BATCHES = (1, 3, 64)
#: A use, and its operands whose first dims are a batch.
Case: TypeAlias = tuple[Use, frozenset[int]]
GPU = find_target("cuda:h200")
#: A GPU's space, as PoCL runs it.
TARGET = with_policy(
    evolve(GPU, dialect="opencl", name="opencl", MAX_thread=256, MAX_shared=48 * 1024), "batch-invariant"
)


def reduces(use: Use) -> bool:
    """Return whether a float result is reduced."""
    program = use.instance.program
    floats = any(t.dtype.is_float for t in use.instance.output_types)
    return floats and any(s.combine or s.along is not None for s in program.statements)


def grow(use: Use, batch: int, which: frozenset[int]) -> Use:
    """Set the first dims of some operands to a batch."""

    def grow_type(n: int, kind: TensorType | None) -> TensorType | None:
        return evolve(kind, shape=(batch, *kind.shape[1:])) if kind is not None and n in which else kind

    return evolve(use, types=tuple(grow_type(n, kind) for n, kind in enumerate(use.types)))


def first_rows(values: dict[str, Any], use: Use, batch: int, which: frozenset[int]) -> dict[str, Any]:
    """Return the values of a batch's first rows."""
    return {name: v[:batch] if use.instance.inputs.index(name) in which else v for name, v in values.items()}


def batch_operands(use: Use) -> frozenset[int]:
    """Return the operands of a use that have a batch, if any."""
    if not reduces(use):
        return frozenset()
    heads = [t.shape[:1] if t is not None else () for t in use.types]
    ways = [frozenset(n for n, head in enumerate(heads) if head and head == size) for size in dict.fromkeys(heads)]
    ways += [frozenset({0})] if heads and heads[0] else []
    return next((which for which in ways if which and is_batch(use, which)), frozenset())


def is_batch(use: Use, which: frozenset[int]) -> bool:
    """Return whether two of five rows have the same results alone."""
    try:
        few, many = grow(use, 2, which), grow(use, 5, which)
        if any(not t.shape or t.shape[0] != 5 for t in many.instance.output_types):
            return False
        values = many.values()
        found = [
            evaluate(few.instance.program, first_rows(values, few, 2, which)),
            evaluate(many.instance.program, values),
        ]
    except (CutsError, ValueError, IndexError, KeyError, AssertionError):
        return False
    pairs = zip(*(f.values() for f in found), strict=True)
    return all(a.shape == b[:2].shape and np.allclose(a, b[:2], 1e-12, 1e-12, True) for a, b in pairs)


#: Operations that reduce; the rest of them each night.
REDUCING = [(use, which) for use in (FORWARD if NIGHTLY else FORWARD[::12]) if (which := batch_operands(use))]


def bf16(*shape: int) -> TensorType:
    return TensorType(DType.BF16, shape)


#: Two places of a row, each a mean of four samples.
REGIONS = {"sizes": (1, 2), "samples": 2, "scale": 3.0, "mode": "avg"}
#: Uses whose sums are long enough for lanes, matrix instructions, parts and chains.
LONG_SUMS = [
    (uses("matmul", bf16(1, 512), bf16(512, 96)), frozenset({0})),
    (uses("matmul", (1, 512), (512, 96)), frozenset({0})),
    (uses("softmax", (1, 3000)), frozenset({0})),
    (uses("layer_norm", bf16(1, 700), bf16(700), bf16(700)), frozenset({0})),
    (uses("reduce_sum", (1, 70000), axes=(1,), keepdims=False), frozenset({0})),
    (uses("reduce_mean", (1, 500, 40), axes=(1,), keepdims=False), frozenset({0})),
    (uses("conv", bf16(1, 16, 6, 6), bf16(32, 16, 3, 3)), frozenset({0})),
    (uses("attention", *[bf16(1, 2, 33, 32)] * 3, causal=True), frozenset({0, 1, 2})),
    (uses("attention", bf16(1, 4, 1, 32), *[bf16(1, 2, 300, 32)] * 2), frozenset({0, 1, 2})),
    (uses("cumsum", (1, 600), axis=1), frozenset({0})),
    (uses("dft", (1, 256, 1), axis=1), frozenset({0})),
    (
        uses("roi_align", (1, 1, 4, 4), (1, 4), TensorType(DType.I64, (1,)), low=0.1, **REGIONS),
        frozenset({1, 2}),
    ),
]


def parts(cases: list[Case]) -> list[list[Case]]:
    return [cases[first : first + TOGETHER // 4] for first in range(0, len(cases), TOGETHER // 4)]


def bench_at(cases: list[Case], batch: int) -> Bench:
    """Return all cases with the first rows of the largest batch."""
    pairs = [(grow(use, batch, which), which) for use, which in cases]
    bench, inputs = bench_of([use for use, _ in pairs]), dict[str, Any]()
    for n, (use, which) in enumerate(pairs):
        every = first_rows(grow(use, max(BATCHES), which).values(), use, batch, which)
        inputs |= {f"{use.op} {n}.{name}": np.asarray(value) for name, value in every.items()}
    return evolve(bench, inputs={name: value.astype(bench.inputs[name].dtype) for name, value in inputs.items()})


def results(cases: list[Case], batch: int, target: Target) -> list[np.ndarray]:
    """Compute the first rows of the largest batch."""
    bench = bench_at(cases, batch)
    found = build_graph(bench.graph, bench.spec, target, CompileOptions()).run(bench.inputs)
    return [found[name] for name in bench.graph.outputs]


def sized_results(case: Case, most: int, target: Target) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield batches up to the greatest size with one plan's rows."""
    samples = size_samples((Dim("n", 1, most),), {"n": 1})
    spec = bench_at([case], most).spec

    def graph_at(sizes: Mapping[str, int]) -> Graph:
        return bench_of([grow(case[0], sizes["n"], case[1])]).graph

    ends = list(graphs_at_least(samples, {"n": 1}, graph_at))
    bounded = bounded_graph([graph_at(each) for each in samples.samples], samples, spec.instances, ends)
    plan = build_graph(bounded.graph, spec, target, CompileOptions())
    for batch in (each for each in BATCHES if each <= most):
        found = plan.run(padded_inputs(bounded, bench_at([case], batch).inputs, {"n": batch}))
        yield batch, [present(bounded, name, found[name], {"n": batch}) for name in bounded.graph.outputs]


def check(cases: list[Case], device: str) -> None:
    target = TARGET if device == "opencl" else with_policy(find_target(device), "batch-invariant")
    whole = results(cases, max(BATCHES), target)
    for batch in BATCHES[:-1]:
        for one, every in zip(results(cases, batch, target), whole, strict=True):
            assert one.tobytes() == every[:batch].tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cases", parts(REDUCING), ids=lambda cases: cases[0][0].op)
def test_rows_do_not_depend_on_batch(cases: list[Case], device: str) -> None:
    check(cases, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", LONG_SUMS, ids=lambda case: f"{case[0].op}-{case[0].types[0]}")
def test_long_rows_do_not_depend_on_batch(case: Case, device: str) -> None:
    check([case], device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", LONG_SUMS, ids=lambda case: f"{case[0].op}-{case[0].types[0]}")
def test_rows_of_sized_batches(case: Case, device: str) -> None:
    """Buckets have the bits of plans for one size."""
    target = TARGET if device == "opencl" else with_policy(find_target(device), "batch-invariant")
    whole = results([case], max(BATCHES), target)
    for most in (4, max(BATCHES)):
        for batch, found in sized_results(case, most, target):
            for one, every in zip(found, whole, strict=True):
                assert one.tobytes() == every[:batch].tobytes()


def test_orders_that_are_unknown_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown policy"):
        with_policy(GPU, "exact")
    with pytest.raises(UsageError, match="atomic sums add in an order of their own"):
        with_policy(GPU, "batch-invariant", deterministic=False)
    with pytest.raises(UsageError, match="routines of libraries"):
        check_policy("batch-invariant", libraries=True)
