"""Searches of groups in other processes, ahead of the partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pytest
from attrs import define, field
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes import PointsRequest, search_points
from cuts.passes.costs import LocalExecutor
from cuts.passes.pipeline import compile_graph


@define
class SearchingExecutor(LocalExecutor):
    """Executor that answers searches at once."""

    asked: list[PointsRequest] = field(factory=list)

    def submit(self, requests: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """Answer searches; leave other questions to the caller."""
        if not any(isinstance(request, PointsRequest) for request in requests):
            return super().submit(requests)
        self.asked += requests
        return lambda: [search_points(request.form, request.target) for request in requests]


def test_searches_ahead_change_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("cuts.passes.fusion.grouping.partition"), "EXACT_UNITS", 0)
    shapes = {"x": (1, 96), "w": (96, 80), "y": (1, 80), "z": (1, 80)}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    nodes = (Node("n", "matmul", ("x", "w"), ("y",)), Node("s", "softmax", ("y",), ("z",)))
    graph, ahead = Graph("row", ("x", "w"), ("z",), types, nodes), SearchingExecutor()
    compiled = [
        compile_graph(graph, Registry.builtin(), find_target("cuda:h200"), CompileOptions(), emit, executor)
        for executor in (LocalExecutor(), ahead)
    ]
    assert ahead.asked
    assert compiled[0].kernels == compiled[1].kernels
