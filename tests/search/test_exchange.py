"""Results of searches in files.

Exported content, local content, and damaged or hostile files.
"""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from cuts.ir.errors import UsageError
from cuts.search.database import Database, Measurement, Winner
from cuts.search.database.exchange import ExportCounts, ImportCounts, export_pack, export_results, import_results
from cuts.search.tasks.decisions import DecisionRecord
from cuts.store import digest

from .fakes import problem_of

PROBLEM, OTHER = problem_of(), problem_of(48)
WINNER = Winner("s", 1e-3, 0.01, "digest", 7, 100.0, 0.5)


def filled_database() -> Database:
    database = Database(None)
    database.finish(PROBLEM, WINNER)
    database.register(OTHER)
    database.record(
        OTHER, [Measurement("a", "ok", 3e-3, source="x"), Measurement("b", "ok", 2e-3), Measurement("c", "wrong")]
    )
    return database


@pytest.mark.parametrize("name", ["results.json", "results.json.gz", "results.json.xz"])
def test_the_best_of_every_problem_travels(tmp_path: Path, name: str) -> None:
    assert export_results(filled_database(), tmp_path / name) == ExportCounts(2, 0)
    there = Database(None)
    assert import_results(there, tmp_path / name) == ImportCounts(2, 0, 0)
    assert there.winner(PROBLEM) == WINNER
    assert there.winner(OTHER) is None
    assert [(t.schedule, t.seconds) for t in there.measurements(OTHER)] == [("b", 2e-3)]
    assert there.results() == filled_database().results()
    assert import_results(there, tmp_path / name) == ImportCounts(0, 2, 0)


def test_results_of_former_keywords_are_renewed(tmp_path: Path) -> None:
    database = Database(None)
    database.finish(PROBLEM, Winner("chunks ahead 1", 1e-3, 0.0))
    export_results(database, tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps(document | {"format": 3}))
    there = Database(None)
    import_results(there, tmp_path / "r.json")
    assert there.winner(PROBLEM) == Winner("k_loop prefetch 1", 1e-3, 0.0)


def test_what_is_there_stays_unless_it_is_slower(tmp_path: Path) -> None:
    export_results(filled_database(), tmp_path / "r.json")
    there = Database(None)
    own = Winner("own", 5e-3, 0.0, "y", 1, 1.0, 0.0)
    there.finish(PROBLEM, own)
    there.register(OTHER)
    there.record(OTHER, [Measurement("mine", "ok", 1e-3)])
    assert import_results(there, tmp_path / "r.json") == ImportCounts(0, 2, 0)
    assert there.winner(PROBLEM) == own
    assert [t.schedule for t in there.measurements(OTHER)] == ["mine"]


def test_results_of_another_machine_are_hints(tmp_path: Path) -> None:
    database, elsewhere = Database(None), problem_of(machine={"device": "another"})
    database.finish(elsewhere, WINNER)
    export_results(database, tmp_path / "r.json")
    there = Database(None)
    import_results(there, tmp_path / "r.json")
    assert there.winner(PROBLEM) is None
    assert there.hints(PROBLEM) == ["s"]


def test_what_another_version_found_is_a_hint() -> None:
    database = Database(None)
    database.finish(PROBLEM, WINNER)
    database.invalidate(PROBLEM)
    assert database.winner(PROBLEM) is None
    assert database.hints(PROBLEM) == ["s"]


def test_a_result_under_another_key_is_left_out(tmp_path: Path) -> None:
    export_results(filled_database(), tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    document["results"][0]["description"] += " "
    document["format"] = 1  # which has no digest of its own
    (tmp_path / "r.json").write_text(json.dumps(document))
    assert import_results(Database(None), tmp_path / "r.json") == ImportCounts(1, 0, 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "found something else"),
        (b"[1, 2]", "found:"),
        (b'{"format": 5, "results": []}', "expected format 4, found '5'"),
        (b'{"format": 2, "results": [], "answers": [], "digest": "0"}', "changed or damaged"),
        (b'{"format": 1, "results": [{"key": 3}]}', "found:"),
        (b'{"format": 1, "results": [], "more": 1}', "found:"),
        (gzip.compress(b'{"format": 1, "results": []}', mtime=0)[:-9], "cut short"),
        (lzma.compress(b'{"format": 1, "results": []}')[:-9], "cut short"),
        (lzma.compress(b"x" * 1000)[:20] + b"junk" * 10, "found something else"),
        (b"[" * 100_000, "found something else"),
        (b"\xff\xfe\x00", "found something else"),
    ],
    ids=["nothing", "list", "format", "digest", "result", "more", "cut", "cut xz", "junk", "deep", "text"],
)
def test_a_file_of_another_kind_is_one_error(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        import_results(Database(None), tmp_path / "r.json")


def test_places_that_are_not_there_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        import_results(Database(None), tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot write"):
        export_results(filled_database(), tmp_path / "no" / "r.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        export_results(filled_database(), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def answer(name: str, seconds: float, finished: bool = True, problems: tuple[str, ...] = ()) -> DecisionRecord:
    return DecisionRecord(digest(name), name, "net", '{"digest":"d","algorithms":[],"groups":[],"launches":[]}',
    problems,
                  seconds, finished)  # fmt: skip


def test_pack_has_the_contents_of_final_plans(tmp_path: Path) -> None:
    database = filled_database()
    database.keep_answer(answer("graph", 1e-3, finished=False, problems=(OTHER.key,)))
    assert export_pack(database, tmp_path / "p.json.xz") == ExportCounts(1, 1)
    there = Database(None)
    assert import_results(there, tmp_path / "p.json.xz") == ImportCounts(1, 0, 0, 1)
    assert there.answers() == (answer("graph", 1e-3, problems=(OTHER.key,)),)
    assert [t.schedule for t in there.measurements(OTHER)] == ["b"], "an unfinished search goes on from its best"
    assert import_results(there, tmp_path / "p.json.xz") == ImportCounts(0, 1, 0, 0)


def test_file_replaces_no_better_decision_or_faster_kernel(tmp_path: Path) -> None:
    elsewhere, own = Database(None), Database(None)
    for database, seconds in ((elsewhere, 2e-3), (own, 1e-3)):
        database.keep_answer(answer("graph", seconds, finished=database is elsewhere))
        database.register(PROBLEM)
    elsewhere.finish(PROBLEM, WINNER)
    own.record(PROBLEM, [Measurement("mine", "ok", WINNER.seconds / 2)])
    export_results(elsewhere, tmp_path / "r.json")
    assert import_results(own, tmp_path / "r.json") == ImportCounts(0, 1, 0, 0)
    assert own.answer(digest("graph")) == answer("graph", 1e-3, finished=False)
    assert own.winner(PROBLEM) is None
    assert [t.schedule for t in own.measurements(PROBLEM)] == ["mine"]


def test_damaged_decisions_are_left_out(tmp_path: Path) -> None:
    database = Database(None)
    database.keep_answer(evolve(answer("graph", 1.0), decisions="{}"))
    database.keep_answer(evolve(answer("other", 1.0), description="of something else"))
    export_results(database, tmp_path / "r.json")
    there = Database(None)
    assert import_results(there, tmp_path / "r.json") == ImportCounts(0, 0, 2, 0)
    assert there.answers() == ()


def test_a_file_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_results(filled_database(), tmp_path / "r.json")
    there = Database(None)
    adopt, taken = Database.adopt, []

    def second_fails(self: Database, *asked: Any) -> bool:
        taken.append(asked)
        if len(taken) > 1:
            raise KeyboardInterrupt
        return adopt(self, *asked)

    monkeypatch.setattr(Database, "adopt", second_fails)
    with pytest.raises(KeyboardInterrupt):
        import_results(there, tmp_path / "r.json")
    assert there.results() == ()


def test_result_of_an_earlier_timing_method_counts(tmp_path: Path) -> None:
    database = filled_database()
    database.keep_answer(answer("graph", 1e-3, problems=(PROBLEM.key, "unknown")))
    export_results(database, tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    for result in document["results"]:
        said = json.loads(result["description"]) | {"format": "1"}
        key, result["description"] = result["key"], json.dumps(said, indent=1, sort_keys=True)
        result["key"] = digest(result["description"])
        for each in document["answers"]:
            each["problems"] = [result["key"] if known == key else known for known in each["problems"]]
    document["format"] = 1  # which has no digest of its own
    (tmp_path / "r.json").write_text(json.dumps(document))
    there = Database(None)
    assert import_results(there, tmp_path / "r.json") == ImportCounts(2, 0, 0, 1)
    assert there.winner(PROBLEM) == WINNER
    assert there.answers() == database.answers()
