"""Budgets without time for measurements ship the plan without a budget.

This holds group by group. For a convolution with another algorithm `test_first_plans.py` shows the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuts.backends.source.emit import emit
from cuts.ir.compiled import Budget, CompiledGraph, CompileOptions
from cuts.ir.graph import Graph
from cuts.ops import Registry
from cuts.passes.pipeline import compile_graph
from cuts.search.session import TuningSession
from cuts.search.tuner.task_record import TaskRecord
from cuts.search.tuner.tuner import Tuner

from ..fusion.build import Line, graph, op
from .simulation import FakeClock, session
from .test_baseline_plan import GPU
from .test_budgets import SHORT_SEARCH, slow_host

__all__ = ["slow_host"]
pytestmark = pytest.mark.long
Shapes = dict[str, tuple[int, ...]]
PADS = (1, 1, 1, 1)


def dense() -> Graph:
    """Return a dense block: a layer's result is concatenated with its input."""
    shapes: Shapes = {"x0": (1, 32, 28, 28)}
    lines: list[Line] = []
    for n in range(2):
        width = 32 + 16 * n
        shapes |= {f"s{n}": (width,), f"k{n}": (64, width, 1, 1), f"t{n}": (64,), f"l{n}": (16, 64, 3, 3)}
        lines += [op(f"a{n}", "batch_norm", f"x{n}", *[f"s{n}"] * 4), op(f"b{n}", "relu", f"a{n}")]
        lines += [op(f"c{n}", "conv", f"b{n}", f"k{n}"), op(f"d{n}", "batch_norm", f"c{n}", *[f"t{n}"] * 4)]
        lines += [op(f"e{n}", "relu", f"d{n}"), op(f"f{n}", "conv", f"e{n}", f"l{n}", pads=PADS)]
        lines += [op(f"x{n + 1}", "concat", f"x{n}", f"f{n}", axis=1)]
    return graph(shapes, *lines, out="x2")


def branches() -> Graph:
    """Return convolutions of several widths that read one tensor, as in Inception."""
    shapes: Shapes = {"x0": (1, 64, 17, 17)}
    lines: list[Line] = []
    for n in range(2):
        for width in (16, 24, 32):
            shapes |= {f"k{n}_{width}": (width, 64 if n == 0 else 72, 1, 1)}
            lines += [op(f"a{n}_{width}", "conv", f"x{n}", f"k{n}_{width}")]
            lines += [op(f"b{n}_{width}", "relu", f"a{n}_{width}")]
        lines += [op(f"x{n + 1}", "concat", *(f"b{n}_{width}" for width in (16, 24, 32)), axis=1)]
    return graph(shapes, *lines, out="x2")


def attention() -> Graph:
    """Return an attention layer: products, a softmax between them, and their neighbours."""
    shapes: Shapes = {"x": (128, 64), "q": (64, 64), "k": (64, 64), "v": (64, 64), "o": (64, 64)}
    lines = [op(f"y{n}", "matmul", "x", n) for n in "qkv"]
    lines += [op("t", "transpose", "yk", perm=(1, 0)), op("s", "matmul", "yq", "t"), op("p", "softmax", "s")]
    lines += [op("c", "matmul", "p", "yv"), op("r", "matmul", "c", "o"), op("y", "add", "r", "x")]
    return graph(shapes, *lines, out="y")


def launches_of(found: CompiledGraph) -> list[tuple[object, ...]]:
    """Return the launches of a plan in order.

    Each is its nodes, their algorithms, the schedule and the source.
    """
    groups = zip(found.groups, found.steps, strict=True)
    return [(g["nodes"], g["algorithms"], g["parameters"], found.kernels[s.kernel].source) for g, s in groups]


@pytest.mark.parametrize("seconds", [5.0, 12.0])
@pytest.mark.parametrize("made", [dense, branches, attention])
def test_unmeasurable_plan_equals_that_without_a_budget(
    made: Callable[[], Graph], seconds: float, slow_host: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning takes up to some seconds more than the shorter budget."""
    monkeypatch.setattr(TaskRecord, "measurable", property(lambda task: False))
    options = CompileOptions("mixed")
    without = compile_graph(made(), Registry.builtin(), GPU, options, emit)
    clock = FakeClock()
    slow_host(clock, 0.06)
    tuning = TuningSession(GPU, Tuner(session(Budget.of(seconds, clock), clock)), SHORT_SEARCH)
    found = tuning.compile(made(), Registry.builtin(), GPU, CompileOptions("mixed", seconds), emit)
    assert all(choice.seconds is None for choice in tuning.findings.choices)
    assert launches_of(found) == launches_of(without)
    assert clock() <= seconds + 5.0
