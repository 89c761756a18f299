"""Plans of `cuts.build` that a later process reuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

import cuts
import cuts.compile as compile_package
import cuts.compile.selection as selection
import cuts.search as search
import cuts.search.tasks as tasks
import numpy as np
import pytest
from attrs import evolve
from cuts.compile import cached_build, driver
from cuts.ir import CompileOptions, Graph, parse_graph
from cuts.ir.lazy_exports import typed_imports
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
    built, build = list[Graph](), driver.build_graph
    monkeypatch.setattr(driver, "build_graph", lambda graph, *rest: (built.append(graph), build(graph, *rest))[1])
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
    monkeypatch.setattr(selection, "has_cached_decisions", lambda *asked: True)
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


#: Modules that a process does without where the plan is stored: the passes, and libraries of commands and reports.
NEEDLESS = ("cuts.passes", "cuts.compile.driver", "cuts.search.building", "rich", "jinja2")


def test_stored_plans_need_no_import_of_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cached_build, "MIN_CACHED_BUILD_SECONDS", 0.0)
    cuts.build(small(), target=TARGET, options=OPTIONS)
    code = f"""
import sys
import cuts, numpy
from cuts.ir import CompileOptions, parse_graph
graph = parse_graph({GRAPH!r}, {{"w": numpy.full((8, 16), 1.0, numpy.float32)}})
plan = cuts.build(graph, target={TARGET!r}, options=CompileOptions(verify=False))
print(len(plan.kernels), sorted(set({NEEDLESS!r}) & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[0] == "1 []", done.stderr


def test_lazy_packages_export_names_for_type_checkers() -> None:
    for package in (compile_package, search, tasks, selection):
        names = typed_imports(Path(str(package.__file__)).read_text("utf-8"))
        assert names
        for name in names:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no_such_name'"):
            _ = package.no_such_name
