"""Packs of the package are sound and read once.

A damaged one costs nothing but a notice.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import pytest
from cuts.backends.devices import find_target
from cuts.cli.main import main
from cuts.compile.loading import Spec
from cuts.compile.selection.cached_decisions import decision_key, has_cached_decisions
from cuts.ir.compiled import CompileOptions
from cuts.ops import Registry
from cuts.search.database import Database, offer_packs, open_database, shipped_packs
from cuts.search.database.exchange import import_bytes
from cuts.search.tasks.decisions import FORMAT
from cuts.search.tasks.tuning_task import read_schedule, schedule_text

from .fakes import fake_compile
from .test_decisions import layer, tune_graph
from .test_selector import chain

PACKS = list(shipped_packs())
GPU = find_target("cuda:h200")


@pytest.mark.parametrize(("name", "data"), PACKS, ids=[name for name, _ in PACKS])
def test_a_pack_is_small_and_sound(name: str, data: bytes) -> None:
    assert len(data) < 1 << 20
    database = Database(None)
    found = import_bytes(database, data, name)
    assert found.damaged == 0
    assert found.graphs == len(database.answers()) > 0
    for result in database.results():
        text = result.winner.schedule
        assert schedule_text(read_schedule(text)) == text, "today's keywords"
    known = {result.key for result in database.results()}
    for answer in database.answers():
        assert answer.finished
        decisions = answer.read()
        assert decisions is not None
        assert all(place < len(decisions.nodes) for place, _ in decisions.algorithms)
        places = {p for g in decisions.groups for part in g.segments for p in part if g.loop is None}
        assert decisions.units and max(places) < len(decisions.units)
        assert all(g.leaves for g in decisions.groups)
    assert known <= {key for answer in database.answers() for key in answer.problems}


def test_packs_are_read_once() -> None:
    database = Database(None)
    assert offer_packs(database) == len(PACKS)
    assert offer_packs(database) == 0


def test_damaged_pack_is_left_out_with_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"cut": lzma.compress(b"{}")[:-8], "foreign": b"{}", "digest": b'{"format": 2, "results": []}'}
    monkeypatch.setattr("cuts.search.database.packs.shipped_packs", lambda: iter(texts.items()))
    database, notices = Database(None), list[str]()
    assert offer_packs(database, notices.append) == 3
    assert [notice.split(": ")[1] for notice in notices] == ["cut", "foreign", "digest"]
    assert database.results() == ()
    assert offer_packs(database) == 0, "one notice is enough"


def test_a_compilation_takes_over_what_a_file_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "there"))
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    monkeypatch.setattr("cuts.search.building.factory.compile_kernel", fake_compile)
    there = open_database()
    tune_graph(chain(2), there, lambda kernel: 1e-3, GPU)
    there.close()
    file = str(tmp_path / "pack.json.xz")
    assert main(["cache", "pack", file]) == 0
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "here"))
    spec, options = Spec(Registry.builtin()), CompileOptions()
    assert not has_cached_decisions(chain(2), spec, GPU, options)
    assert main(["cache", "import", file]) == 0
    assert re.search(r"^graphs +1$", capsys.readouterr().out, re.MULTILINE)
    assert has_cached_decisions(chain(2), spec, GPU, options)
    assert has_cached_decisions(chain(3), spec, GPU, options), "two of its three layers are"
    assert not has_cached_decisions(layer(), spec, GPU, options)
    monkeypatch.setenv("CUTS_NO_CACHE", "1")
    assert not has_cached_decisions(chain(2), spec, GPU, options)


def test_what_packs_decided_is_what_is_asked_today() -> None:
    """Another format of questions would leave all of it unfound."""
    database = Database(None)
    offer_packs(database)
    assert database.answers()
    options = json.loads(decision_key(chain(1), Spec(Registry.builtin()), GPU, CompileOptions()).description)["options"]
    results = {result.key for result in database.results()}
    for answer in database.answers():
        assert json.loads(answer.description)["format"] == str(FORMAT)
        assert json.loads(answer.description)["options"] == options, "decisions do not depend on libraries"
        assert results.issuperset(answer.problems)
