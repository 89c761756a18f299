"""The tuning database: content, sharing, and damaged files."""

from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest
from cuts.ir.compiled import Storage
from cuts.ir.errors import BackendError
from cuts.search.database import OUTCOMES, Database, Measurement, Winner, explain, summary_of
from cuts.search.tasks.tuning_task import TuningTask, measurement_key

from .fakes import MACHINE, OPENCL, problem_of

PROBLEM = problem_of()


def refuse_files(connection: sqlite3.Connection) -> None:
    if connection.execute("pragma database_list").fetchone()[2]:
        raise sqlite3.OperationalError("attempt to write a readonly database")


def test_measurements_of_every_outcome_keep_their_reason(tmp_path: Path) -> None:
    trials = [
        Measurement(f"s{n}", outcome, 1e-3 if outcome == "ok" else None, message=outcome, score=n)
        for n, outcome in enumerate(OUTCOMES)
    ]
    Database(tmp_path / "t").record(PROBLEM, trials)
    assert Database(tmp_path / "t").measurements(PROBLEM) == trials


def test_a_later_result_replaces_an_earlier_one() -> None:
    database = Database(None)
    database.record(PROBLEM, [Measurement("s", "timeout")])
    database.record(PROBLEM, [Measurement("s", "ok", 2e-3)])
    assert [t.outcome for t in database.measurements(PROBLEM)] == ["ok"]


def test_only_finished_searches_have_a_winner() -> None:
    database = Database(None)
    database.register(PROBLEM)
    assert database.winner(PROBLEM) is None
    database.finish(PROBLEM, Winner("s", 1e-3, 0.01, "digest", 7, 100.0, 0.5))
    assert database.winner(PROBLEM) == Winner("s", 1e-3, 0.01, "digest", 7, 100.0, 0.5)
    database.invalidate(PROBLEM)
    assert database.winner(PROBLEM) is None


def test_winners_of_other_machines_are_only_hints() -> None:
    database, there = Database(None), problem_of(machine={"device": "another"})
    database.finish(there, Winner("s", 1e-3, 0.0))
    assert database.winner(PROBLEM) is None
    assert database.hints(PROBLEM) == ["s"]
    assert database.hints(there) == []
    assert database.hints(problem_of(48)) == []


def test_key_depends_on_work_layout_and_machine() -> None:
    def key(storages: dict[str, Storage], **other: object) -> str:
        return TuningTask(PROBLEM.form, storages, OPENCL, MACHINE, **other).key  # type: ignore[arg-type]

    (name, *_) = PROBLEM.form.inputs
    dense, wide = Storage("b", 0, (64, 1)), Storage("b", 0, (80, 1))
    assert key({}, label="a", uses=3) == PROBLEM.key == key({name: dense})
    assert len({PROBLEM.key, key({name: wide}), problem_of(48).key, problem_of(machine={"device": "b"}).key}) == 4


def test_a_key_is_explained_by_what_was_hashed() -> None:
    database = Database(None)
    database.finish(PROBLEM, Winner("s", 1e-3, 0.0))
    database.record(PROBLEM, [Measurement("s", "ok", 1e-3), Measurement("r", "wrong", message="y[0]")])
    (problem,) = explain(database, PROBLEM.key[:10])
    assert problem["hashed"]["machine"] == MACHINE
    assert "reduce" in problem["hashed"]["work"]
    assert (problem["finished"], problem["trials"]) == (True, {"ok": 1, "wrong": 1})
    (trial,) = explain(database, measurement_key(PROBLEM.key, "r").upper())
    assert (trial["schedule"], trial["outcome"], trial["message"]) == ("r", "wrong", "y[0]")
    assert explain(database, "0123456789") == []


@pytest.mark.parametrize("damage", [b"this is no database " * 100, b""])
def test_damaged_file_is_set_aside_with_a_notice(tmp_path: Path, damage: bytes) -> None:
    path, notices = tmp_path / "t.sqlite3", []
    path.write_bytes(damage)
    database = Database(path, notices.append)
    database.record(PROBLEM, [Measurement("s", "ok", 1e-3)])
    assert len(Database(path).measurements(PROBLEM)) == 1
    assert len(notices) == (1 if damage else 0)
    assert all("is damaged" in n and "set aside as t.damaged-" in n for n in notices)


def test_torn_pages_are_noticed(tmp_path: Path) -> None:
    path, notices = tmp_path / "t.sqlite3", []
    database = Database(path)
    database.record(PROBLEM, [Measurement(f"schedule {n} " * 20, "ok", 1e-3) for n in range(200)])
    database.close()
    content = bytearray(path.read_bytes())
    content[8192:20000] = b"\xff" * (20000 - 8192)
    path.write_bytes(content)
    assert Database(path, notices.append).measurements(PROBLEM) == []
    assert notices


def test_file_of_another_version_is_an_actionable_error(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t")) as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(BackendError, match=r"has format 99, this version reads 2; cuts cache clear"):
        Database(tmp_path / "t")


@pytest.mark.parametrize("read_only", [False, True])
def test_results_of_former_keywords_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool) -> None:
    before = "schedule {\n  spread lanes 32 {\n  }\n}\n"
    today = before.replace("lanes", "reduction_threads")
    database = Database(tmp_path / "t")
    database.record(PROBLEM, [Measurement(before, "ok", 1e-3, source="digest")], today=True)
    database.finish(PROBLEM, Winner(before, 1e-3, 0.0, "digest"))
    database.rows("pragma user_version = 1")
    database.close()
    if read_only:
        monkeypatch.setattr("cuts.store.rows._write_ahead", refuse_files)
    for _ in range(2):
        with closing(Database(tmp_path / "t")) as found:
            winner = found.winner(PROBLEM)
            assert winner is not None and winner.schedule == today
            assert [(t.schedule, t.holds) for t in found.measurements(PROBLEM)] == [(today, True)]
            assert found.current_sources([measurement_key(PROBLEM.key, today)]) != {}
            assert found.row("pragma user_version") == (2,)
    assert measurement_key(PROBLEM.key, before) == measurement_key(PROBLEM.key, today)


def test_unusable_folder_degrades_to_rows_in_memory(tmp_path: Path) -> None:
    notices = list[str]()
    database = Database(tmp_path / "missing" / "t", notices.append)
    database.record(PROBLEM, [Measurement("s", "ok", 1e-3)])
    assert [t.schedule for t in database.measurements(PROBLEM)] == ["s"]
    assert database.path is None, "plans of it are not stored either"
    (notice,) = notices
    assert "missing/t cannot be written" in notice


def test_read_only_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Database(tmp_path / "t")) as database:
        database.record(PROBLEM, [Measurement("s", "ok", 1e-3)])
    monkeypatch.setattr("cuts.store.rows._write_ahead", refuse_files)
    notices = list[str]()
    database = Database(tmp_path / "t", notices.append)
    database.record(PROBLEM, [Measurement("r", "ok", 1e-3)])
    assert {t.schedule for t in database.measurements(PROBLEM)} == {"r", "s"}
    assert len(notices) == 1


def test_full_disk_moves_rows_to_memory(tmp_path: Path) -> None:
    notices = list[str]()
    database = Database(tmp_path / "t", notices.append)
    database.record(PROBLEM, [Measurement("s", "ok", 1e-3)])
    pages = database.row("pragma page_count")[0]
    database.rows(f"pragma max_page_count = {pages}")
    trials = [Measurement(f"schedule {n} " * 100, "ok", 1e-3) for n in range(200)]
    database.record(PROBLEM, trials)
    assert len(database.measurements(PROBLEM)) == 201
    assert len(notices) == 1 and "full" in notices[0]
    assert any(t.schedule == "s" for t in Database(tmp_path / "t").measurements(PROBLEM))


WRITER = """
import sys
from pathlib import Path
from cuts.search.database import Database, Measurement
from cuts.tests.search.fakes import problem_of
database, problem = Database(Path(sys.argv[1])), problem_of()
for n in range(100):
    database.record(problem, [Measurement(f"{sys.argv[2]} {n}", "ok", 1e-3)])
"""


def test_two_processes_share_one_database(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "t")]
    writers = [subprocess.Popen([*command, name]) for name in ("a", "b")]
    assert [w.wait(60) for w in writers] == [0, 0]
    assert len(Database(tmp_path / "t").measurements(PROBLEM)) == 200


@pytest.mark.parametrize("value", [b"\x00blob", None], ids=["blob", "null"])
def test_values_of_another_kind_are_no_results(value: object) -> None:
    database = Database(None)
    database.finish(PROBLEM, Winner("s", 1e-3, 0.0))
    database.finish(problem_of(machine={"device": "another"}), Winner("t", 1e-3, 0.0))
    database.record(PROBLEM, [Measurement("s", "ok", 1e-3)])
    database._connection.execute("update problems set best = ?, description = ?", (value, value or ""))
    database._connection.execute("update trials set source = ?, seconds = 'soon'", (value or 1,))
    assert database.winner(PROBLEM) is None
    assert database.measurements(PROBLEM) == database.measurements_of_work(PROBLEM.work) == []
    database.write("insert into times values ('group', ?, 'digest', 'schedule')", (value or "soon",))
    database.write("insert into expected values ('group', ?, ?)", (value or "soon", database.model_version))
    assert database.time("group") is None
    assert database.predicted_seconds("group") is None
    assert database.hints(PROBLEM) == []
    assert [sorted(record["hashed"]) for record in explain(database, PROBLEM.key)] == [["damaged"]]


def test_unclosed_database_closes_with_its_object(tmp_path: Path) -> None:
    database = Database(tmp_path / "t")
    connection = database._connection
    del database
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("select 1")


def test_new_database_opens_in_many_processes_at_once(tmp_path: Path) -> None:
    def open_database(number: int) -> bool:
        barrier.wait()
        return summary_of(Database(tmp_path / str(number // 6)))["problems"] == 0

    barrier = Barrier(6)
    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(open_database, range(120)))
