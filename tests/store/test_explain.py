"""A miss is explained by the facts that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cuts.compile.selection.plan_cache import PlanCache, plan_key
from cuts.ir.compiled import CompileOptions
from cuts.search.settings import Settings
from cuts.store import EntryStore, Key, explain_entries, explain_key
from cuts.tests.cli.conftest import MODEL, Cuts, cuts  # noqa: F401
from cuts.tests.runtime.handmade import example_plan


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EntryStore:
    """A store of the test's own."""
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    return EntryStore.open()


def key(content: str = "a", **facts: Any) -> Key:
    given = {"target": {"arch": "sm_90"}, "options": {"mode": "mixed"}, **facts}
    return Key("cubin", {"source": content}, label=content, **given)


CHANGES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "target.arch": ({"target": {"arch": "sm_80"}}, ["sm_80", "sm_90"]),
    "options.mode": ({"options": {"mode": "fusion"}}, ["fusion", "mixed"]),
    "content.source": ({"content": "b"}, ["b", "a"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_part_of_a_key_is_named(store: EntryStore, name: str) -> None:
    changed, values = CHANGES[name]
    store.put(key(), {})
    found = explain_key(store, key(**changed))
    assert not found["found"]
    assert [{n: list(v) for n, v in near["differs"].items()} for near in found["nearest"]] == [{name: values}]
    assert explain_key(store, key())["found"]


@pytest.mark.parametrize(("fact", "version", "lowering"), [("version", 2, None), ("lowering", 1, ("ops",))])
def test_version_and_lowering_are_named(
    store: EntryStore, monkeypatch: pytest.MonkeyPatch, fact: str, version: int, lowering: Any
) -> None:
    from cuts.store.keys import KINDS, Kind

    store.put(key(), {})
    monkeypatch.setitem(KINDS, "cubin", Kind(version, lowering))
    assert list(explain_key(store, key())["nearest"][0]["differs"]) == [fact]
    assert [list(record["differs"]) for record in explain_entries(store, "")] == [[fact]]


def test_entries_of_the_same_content_come_first(store: EntryStore) -> None:
    store.put(key("b"), {})
    store.put(key("a", target={"arch": "sm_75"}, options={"mode": "fusion"}), {})
    nearest = explain_key(store, key("a"))["nearest"]
    assert [near["label"] for near in nearest] == ["a", "b"]


def test_command_explains_a_model(cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    from cuts.backends.devices import find_target
    from cuts.compile.loading import load_model, load_spec

    target, spec = find_target("cuda:sm_90"), load_spec([])
    graph = load_model("graph.json", spec, {})
    asked = ("cache", "explain", "graph.json", "--target", "cuda:sm_90")
    assert "plan tiny: missing" in cuts(*asked).out
    made = plan_key(graph, spec, target, CompileOptions(precision="tf32"), Settings())
    EntryStore.open().put(made, {"plan.json": b"{}"})
    plan, decisions = cuts(*asked, "--json").json["records"]
    assert [plan["found"], decisions["found"]] == [False, False]
    assert plan["nearest"][0]["differs"] == {"options.precision": ["fp32", "tf32"]}
    assert "options.precision: fp32 asked, tf32 stored" in cuts(*asked).out
    assert "plan tiny: found" in cuts(*asked, "--precision", "tf32").out
    shown = cuts("cache", "explain", made.name[:10])
    assert f"plan {made.name}" in shown.out and "the key is the SHA-256 of" in shown.out
    changed = json.loads(json.dumps(MODEL))
    changed["nodes"][1]["op"] = "tanh"
    (tmp_path / "graph.json").write_text(json.dumps(changed))
    assert "content.graph: " in cuts(*asked, "--precision", "tf32").out
    assert cuts("cache", "info", "--precision", "tf32").code == 2


def test_unreadable_plan_is_set_aside_once(store: EntryStore) -> None:
    """A plan of another format is a miss, and is compiled again."""
    from cuts.runtime import plan_files

    plan, target = example_plan("opencl"), example_plan("opencl").target
    cache = PlanCache(Key("plan", {"graph": "g"}), target)
    store.put(cache.key, plan_files(plan))
    found = cache.find()
    assert found is not None and found.plan == plan and found.cache_name == cache.key.name
    store.put(cache.key, {**plan_files(plan), "plan.json": b"{}"})
    with pytest.warns(UserWarning, match="set aside"):
        assert cache.find() is None
    assert cache.find() is None
