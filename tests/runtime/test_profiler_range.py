"""Ranges around launches that profilers show."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cuts
import cuts.runtime.profiler_range as profiler_range
import numpy as np
import pytest
from cuts.ir import Graph, Node
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import f32


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    profiler_range._annotate.cache_clear()
    yield
    profiler_range._annotate.cache_clear()


@needs_opencl
def test_a_run_is_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []

    class Annotation:
        def __init__(self, message: str, **_: Any) -> None:
            self.message = message

        def __enter__(self) -> None:
            entered.append(self.message)

        def __exit__(self, *_: object) -> None:
            entered.append("end")

    monkeypatch.setattr(profiler_range, "import_module", lambda name: SimpleNamespace(annotate=Annotation))
    types = {"x": f32(2, 3), "y": f32(2, 3)}
    plan = cuts.build(Graph("tiny", ("x",), ("y",), types, (Node("act", "relu", ("x",), ("y",)),), {}))
    for _ in range(2):
        plan.run({"x": np.ones((2, 3), np.float32)})
    assert entered == ["cuts: tiny", "end"] * 2


def test_without_the_package_there_are_no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(profiler_range, "import_module", missing)
    with profiler_range.profiler_range("tiny") as found:
        assert found is None
