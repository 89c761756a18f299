"""Archives, folders and databases of other hosts and of earlier versions."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest
from cuts.ir.errors import UsageError
from cuts.search.database import Database, Winner, import_database, open_database
from cuts.search.database.exchange import ImportCounts
from cuts.store import EntryCounts, EntryStore, Key, export_store, import_store
from cuts.tests.cli.conftest import Cuts, cuts  # noqa: F401
from cuts.tests.search.fakes import problem_of

KEYS = [Key("cubin", {"source": n}, label=str(n)) for n in range(3)]
#: A tuning database that an earlier version wrote: two problems, four trials, a winner, a decision record.
EARLIER_DATABASE = Path(__file__).parent / "earlier" / "tuning.sqlite3.xz"
PROBLEM, OTHER = problem_of(), problem_of(48)


def earlier_database(folder: Path) -> Path:
    """Write the database of an earlier version."""
    path = folder / "earlier.sqlite3"
    path.write_bytes(lzma.decompress(EARLIER_DATABASE.read_bytes()))
    return path


def filled_store(folder: Path) -> EntryStore:
    folder.mkdir(mode=0o700)
    store = EntryStore(folder)
    for key in KEYS:
        store.put(key, {"code": key.name.encode(), "report": b"{}"})
    return store


@pytest.mark.parametrize("name", ["store.tar", "store.tar.gz", "store.tar.xz", ""])
def test_entries_travel_to_another_host(tmp_path: Path, name: str) -> None:
    """Archive and folder bring the same; an own entry stays."""
    here, there = filled_store(tmp_path / "here"), filled_store(tmp_path / "there")
    (tmp_path / "here" / "rows").write_bytes(b"rows")
    there.put(KEYS[0], {"code": b"own"})
    for key in KEYS[1:]:
        next(path for path, _ in there.heads(prefix=key.name)).unlink()
    source = tmp_path / (name or "here")
    if name:
        assert export_store(here, source, {"rows": tmp_path / "here" / "rows"}) == 3
    assert import_store(there, source, {"rows": tmp_path / "arrived"}) == EntryCounts(2, 1)
    assert (tmp_path / "arrived").read_bytes() == b"rows"
    assert there.get(KEYS[0]) == {"code": b"own"}
    assert [there.get(key) for key in KEYS[1:]] == [here.get(key) for key in KEYS[1:]]
    assert [head.label for _, head in there.heads()] == [head.label for _, head in here.heads()]


def test_damaged_and_foreign_entries_are_left_out(tmp_path: Path) -> None:
    here = filled_store(tmp_path / "here")
    first, second, _ = (path for path, _ in here.heads())
    first.write_bytes(first.read_bytes()[:-1])
    second.rename(second.with_name("0" * 64))
    (second.parent.parent / "..evil").write_bytes(b"")
    (tmp_path / "there").mkdir()
    assert import_store(EntryStore(tmp_path / "there"), tmp_path / "here", {}) == EntryCounts(1, 0, 3)
    assert [path.name for path in tmp_path.glob("there/**/*") if path.is_file()] == [
        path.name for path, _ in EntryStore(tmp_path / "there").heads()
    ]


@pytest.mark.parametrize("content", [b"", b"junk" * 300], ids=["nothing", "junk"])
def test_file_of_another_kind_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UsageError, match="cannot read"):
        import_store(EntryStore(tmp_path), tmp_path / "file", {})
    with pytest.raises(UsageError, match="expected a tuning database"):
        import_database(Database(None), tmp_path / "file")
    with pytest.raises(UsageError, match="cannot write"):
        export_store(EntryStore(tmp_path), tmp_path / "no" / "folder.tar", {})


def test_database_of_an_earlier_version_is_imported(tmp_path: Path) -> None:
    path, database = earlier_database(tmp_path), Database(None)
    content = path.read_bytes()
    assert import_database(database, path) == ImportCounts(2, 0, 0, 1)
    assert database.winner(PROBLEM) == Winner("s", 1e-3, 0.01, "digest", 7, 100.0, 0.5)
    assert {t.schedule: t.outcome for t in database.measurements(PROBLEM)} == {"s": "ok", "t": "wrong"}
    assert [t.seconds for t in database.measurements(OTHER)] == [3e-3, 2e-3]
    assert (database.cost("launch"), len(database.answers())) == (2e-6, 1)
    assert import_database(database, path) == ImportCounts(0, 2, 0, 0)
    assert [path.read_bytes(), sorted(tmp_path.iterdir())] == [content, [path]], "it is not changed"


def test_database_of_an_earlier_version_is_opened(tmp_path: Path) -> None:
    assert Database(earlier_database(tmp_path)).winner(PROBLEM) is not None


def test_commands_exchange_whole_caches(
    cuts: Cuts,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cache(name: str) -> None:
        monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / name))

    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    cache("here")
    EntryStore.open().put(KEYS[0], {"code": b"x"})
    assert cuts("cache", "import", str(earlier_database(tmp_path)), "--json").json["new"] == 2
    assert cuts("cache", "export", "c.tar.xz", "--json").json == {"entries": 1, "trials": 4}
    for name, source in (("archive", "c.tar.xz"), ("folder", "here")):
        cache(name)
        found: Any = cuts("cache", "import", source, "--json").json
        assert (found["entries"]["new"], found["results"]["new"]) == (1, 2)
        assert EntryStore.open().get(KEYS[0]) == {"code": b"x"}
        database = open_database()
        assert len(database.measurements(PROBLEM)) == 2
        database.close()
    monkeypatch.setenv("CUTS_NO_CACHE", "1")
    assert cuts("cache", "import", "c.tar.xz").code == 2
