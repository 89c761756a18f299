"""Plans of `cuts.build` that a later process reuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.compile import cached_build
from cuts.ir import CompileOptions, Graph, parse_graph
from cuts.store import Key, entries

GRAPH = """
graph "small" {
  input %x: f32[4, 8]
  const %w: f32[8, 16] = opaque
  %h: f32[4, 16] = matmul(%x, %w) @ "product"
  %y: f32[4, 16] = relu(%h) @ "activation"
  output %y
}
"""
#: Options whose stages are not verified: only then no stage has to run.
OPTIONS = CompileOptions(verify=False)
TARGET = "cuda:sm_90"


@pytest.fixture
def count_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts the builds so far."""
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cached_build, "MIN_CACHED_BUILD_SECONDS", 0.0)
    built, build = list[Graph](), cached_build.build_graph
    monkeypatch.setattr(cached_build, "build_graph", lambda graph, *rest: (built.append(graph), build(graph, *rest))[1])
    return lambda: len(built)


def small(scale: float = 1.0) -> Graph:
    """Return a graph with weights."""
    return parse_graph(GRAPH, {"w": np.full((8, 16), scale, np.float32)})


def test_a_plan_without_a_search_is_built_once(count_builds: Callable[[], int]) -> None:
    first = cuts.build(small(), target=TARGET, options=OPTIONS)
    second = cuts.build(small(), target=TARGET, options=OPTIONS)
    assert count_builds() == 1
    assert [k.source for k in second.kernels] == [k.source for k in first.kernels]
    assert second.plan.arena == first.plan.arena
    cuts.build(small(2.0), target=TARGET, options=OPTIONS)
    assert count_builds() == 2, "other weights"
    cuts.build(small(), target=TARGET, options=evolve(OPTIONS, horizontal_fusion=False))
    assert count_builds() == 3, "other options"


def test_large_plans_are_written_as_they_were(
    count_builds: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(entries, "LARGE_BYTES", 0)
    begun, put = Event(), entries.EntryStore.put

    def put_slowly(store: entries.EntryStore, key: Key, parts: Mapping[str, bytes]) -> None:
        if key.kind == "plan":
            begun.wait(60)
        put(store, key, parts)

    monkeypatch.setattr(entries.EntryStore, "put", put_slowly)
    graph = small()
    first = cuts.build(graph, target=TARGET, options=OPTIONS)
    assert not list((tmp_path / "entries" / "plan").glob("*")), "nothing is written yet"
    graph.constants["w"][:] = 2.0
    begun.set()
    second = cuts.build(small(), target=TARGET, options=OPTIONS)
    assert count_builds() == 1
    assert [k.source for k in second.kernels] == [k.source for k in first.kernels]
    assert all((array == 1.0).all() for array in second.plan.constants.values())


def test_decisions_of_a_search_replace_stored_plans(
    count_builds: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts.build(small(), target=TARGET, options=OPTIONS)
    monkeypatch.setattr(cached_build, "decisions_digest", lambda *asked: "after a search")
    monkeypatch.setattr(cached_build, "has_cached_decisions", lambda *asked: True)
    for _ in range(2):
        cuts.build(small(), target=TARGET, options=OPTIONS)
    assert count_builds() == 3, "a replay is not stored: it depends on measurements too"


@pytest.mark.parametrize("changed", [{"budget": 60.0}, {"verify": True}, {"plain": True}, {"dump": Path("nowhere")}])
def test_builds_that_are_watched_or_limited_run(
    changed: dict[str, object], count_builds: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[object]()
    monkeypatch.setattr(cached_build, "build_tuned", lambda *asked, **more: ran.append(asked))
    for _ in range(2):
        cuts.build(small(), target=TARGET, options=evolve(OPTIONS, **changed))
    assert len(ran) == 2
    assert not count_builds()
