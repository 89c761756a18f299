"""Separation of long reductions with few results from their readers, for split-K."""

from __future__ import annotations

from typing import Any

import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.passes.fusion.cut_units import MAX_NARROW_RESULTS, MIN_NARROW_TERMS
from cuts.passes.fusion.programs import build_programs

from ..needs import needs_opencl
from .build import REGISTRY, graph, op


def norm(groups: int, channels: int, size: int) -> Graph:
    shapes = {"x": (1, groups * channels, size, size), "s": (groups * channels,), "b": (groups * channels,)}
    return graph(shapes, op("y", "group_norm", "x", "s", "b", num_groups=groups), out="y")


def sums(unit: Any) -> int:
    return sum(s.combine is not None for s in unit.statements)


@pytest.mark.parametrize(
    ("groups", "channels", "size", "separate"),
    [(4, 16, 32, True), (MAX_NARROW_RESULTS, 16, 32, True), (MAX_NARROW_RESULTS + 1, 16, 32, False), (4, 8, 16, False)],
)
def test_few_long_sums_are_separate_units(groups: int, channels: int, size: int, separate: bool) -> None:
    units = build_programs(norm(groups, channels, size), REGISTRY).units
    assert (channels * size * size >= MIN_NARROW_TERMS and groups <= MAX_NARROW_RESULTS) == separate
    assert [sums(unit) for unit in units if sums(unit)] == ([1, 1] if separate else [2])
    if separate:  # their readers are a unit of their own
        assert sums(units[-1]) == 0


@needs_opencl
def test_separate_sums_compute_the_same() -> None:
    plan = build_graph(norm(3, 16, 32), load_spec([]), find_target("opencl"), CompileOptions())
    assert all(result.ok for result in plan.verify())
