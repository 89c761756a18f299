"""Policy `batch-invariant`: equal rows have equal bits in any batch.

Operations of every declaration that reduces grow along an axis that is found to be a batch: results of the reference
do not change. The space of a GPU is drawn from, in OpenCL C.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.ir.compiled import CompileOptions
from cuts.ir.errors import CutsError
from cuts.ir.machine import Target, with_policy
from cuts.ir.types import TensorType
from cuts.ops.reference import evaluate
from cuts.tests.kernels.test_every_operation import FORWARD, TOGETHER
from cuts.tests.needs import needs_opencl
from cuts.tests.operations import Use
from cuts.tests.operations_graph import bench_of

pytestmark = pytest.mark.long
BATCHES = (1, 3, 64)
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


@cache
def batch_operands(number: int) -> frozenset[int]:
    """Return the operands of a use that have a batch, if any."""
    use = FORWARD[number]
    heads = [t.shape[:1] if t is not None else () for t in use.types]
    ways = [frozenset(n for n, head in enumerate(heads) if head and head == size) for size in dict.fromkeys(heads)]
    ways += [frozenset({0})] if heads and heads[0] else []
    return next((which for which in ways if which and reduces(use) and is_batch(use, which)), frozenset())


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


REDUCING = [n for n in range(len(FORWARD)) if batch_operands(n)]


def parts(numbers: list[int]) -> list[list[int]]:
    return [numbers[first : first + TOGETHER] for first in range(0, len(numbers), TOGETHER)]


def results(numbers: list[int], batch: int, target: Target) -> list[np.ndarray]:
    """Return the results of uses for the first rows of the largest batch."""
    most = max(BATCHES)
    uses = [grow(FORWARD[n], batch, batch_operands(n)) for n in numbers]
    bench, inputs = bench_of(uses), dict[str, Any]()
    for n, (number, use) in enumerate(zip(numbers, uses, strict=True)):
        which = batch_operands(number)
        every = first_rows(grow(FORWARD[number], most, which).values(), use, batch, which)
        inputs |= {f"{use.op} {n}.{name}": value for name, value in every.items()}
    typed = {name: np.asarray(v, bench.inputs[name].dtype) for name, v in inputs.items()}
    plan = build_graph(bench.graph, bench.spec, target, CompileOptions())
    found = plan.run(typed)
    return [found[name] for name in bench.graph.outputs]


@needs_opencl
@pytest.mark.parametrize("numbers", parts(REDUCING), ids=lambda numbers: FORWARD[numbers[0]].op)
def test_rows_do_not_depend_on_batch(numbers: list[int]) -> None:
    whole = results(numbers, BATCHES[-1], TARGET)
    for batch in BATCHES[:-1]:
        for one, every in zip(results(numbers, batch, TARGET), whole, strict=True):
            assert one.tobytes() == every[:batch].tobytes()
