"""Entries come back whole or not, from a folder of our own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from attrs import evolve
from cuts.ir.errors import BackendError, CutsWarning
from cuts.store import (
    EntryStore,
    Key,
    cache_root,
    clear_store,
    digest,
    digest_parts,
    entries,
    eviction,
    store_info,
    take_earlier,
)
from cuts.store.folder import warn_unusable
from cuts.store.keys import KINDS, Kind, differences
from hypothesis import given
from hypothesis import strategies as st

KEY = Key("cubin", {"source": "k"}, {"arch": "sm_90"}, label="kernel")
PARTS = {"report": b"{}", "code": b"machine code"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file_of(folder: Path, key: Key = KEY) -> Path:
    """Return the file of an entry."""
    return folder / "entries" / key.kind / key.name


def test_forked_processes_write_large_entries_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "LARGE_BYTES", 0)
    store, other = EntryStore.open(), evolve(KEY, content={"source": "of the child"})
    store.put_later(KEY, lambda: PARTS, 1)
    assert store.get(KEY) == PARTS
    child = os.fork()
    if not child:
        signal.alarm(20)
        store.put_later(other, lambda: PARTS, 1)
        os._exit(0 if store.get(other) == PARTS else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get(other) == PARTS


def test_entries_come_back(folder: Path) -> None:
    store = EntryStore.open()
    assert store.get(KEY) is None
    store.put(KEY, PARTS)
    assert EntryStore.open().get(KEY) == PARTS
    assert store.get(evolve(KEY, label="another")) == PARTS
    size = file_of(folder).stat().st_size
    assert store_info(folder)["kinds"] == {"cubin": {"entries": 1, "bytes": size}}
    store.put(KEY, {"code": b"later"})
    assert store.get(KEY) == {"code": b"later"}, "the last writer wins"
    assert clear_store(folder) == 1
    assert store.get(KEY) is None


def test_only_the_owner_reads_and_writes(folder: Path) -> None:
    EntryStore.open().put(KEY, PARTS)
    for path in (folder, file_of(folder).parent, file_of(folder)):
        assert path.stat().st_mode & 0o077 == 0


def test_crash_at_any_byte_leaves_a_readable_store(folder: Path) -> None:
    """A cut file is set aside with one warning; others stay."""
    store, other = EntryStore.open(), Key("cubin", {"source": "other"})
    store.put(KEY, PARTS)
    store.put(other, PARTS)
    whole = file_of(folder).read_bytes()
    for length in range(len(whole)):
        file_of(folder).write_bytes(whole[:length])
        with pytest.warns(CutsWarning, match="is damaged .* set aside") as said:
            assert store.get(KEY) is None
        assert len(said) == 1
        assert store.get(KEY) is None
        assert len(list((folder / "damaged").iterdir())) == length + 1
    assert store.get(other) == PARTS
    store.put(KEY, PARTS)
    assert store.get(KEY) == PARTS


def test_no_changed_byte_is_read(folder: Path) -> None:
    store = EntryStore.open()
    store.put(KEY, PARTS)
    whole = file_of(folder).read_bytes()
    for place in range(len(whole)):
        file_of(folder).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert store.get(KEY) in (None, PARTS)  # a label and a time may change


def test_entry_under_another_name_is_damaged(folder: Path) -> None:
    store, other = EntryStore.open(), Key("cubin", {"source": "other"})
    store.put(KEY, PARTS)
    file_of(folder).rename(file_of(folder, other))
    with pytest.warns(CutsWarning, match="no such entry"):
        assert store.get(other) is None


WRITER = """
import sys
from cuts.store import Key, EntryStore
store, content = EntryStore.open(), bytes([int(sys.argv[1])]) * 100_000
for n in range(200):
    store.put(Key("cubin", {"source": n % 5}), {"code": content})
    found = store.get(Key("cubin", {"source": (n + 1) % 5}))
    assert found is None or len(set(found["code"])) == 1
"""


def test_processes_write_at_once(folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", WRITER]
    writers = [subprocess.Popen([*command, str(n)]) for n in range(3)]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    assert [len(list((folder / "entries" / "cubin").iterdir()))] == [5]


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_folders_that_others_can_write_are_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(BackendError, match="can be written by others"):
        EntryStore.open()


def test_the_cache_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_NO_CACHE", "1")
    assert cache_root() is None
    EntryStore.open().put(KEY, PARTS)
    assert EntryStore.open().get(KEY) is None
    assert store_info(cache_root())["entries"] == 0
    assert clear_store(cache_root()) == 0


def test_folder_that_cannot_be_made_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(CutsWarning, match=r"cannot use cache folder .*/file/cache"):
        EntryStore.open()
    EntryStore.open().put(KEY, PARTS)  # another warning would be an error
    assert EntryStore.open().get(KEY) is None


@pytest.mark.parametrize("call", ["open", "replace", "utime"])
def test_full_or_read_only_disk_is_no_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    store, other = EntryStore.open(), Key("cubin", {"source": "other"})
    store.put(KEY, PARTS)
    warn_unusable.cache_clear()
    monkeypatch.setattr(f"cuts.store.entries.os.{call}", refuse)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            store.put(other, PARTS)
            assert store.get(KEY) == PARTS, "it is still read"
    assert len(said) == (call != "utime")
    assert store.get(other) == (PARTS if call == "utime" else None)
    assert not list(file_of(folder).parent.glob(".new-*"))


def test_least_recently_used_entries_are_evicted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys = EntryStore.open(), [Key("cubin", {"source": n}) for n in range(6)]
    for place, key in enumerate(keys):
        store.put(key, {"code": bytes(1000)})
        os.utime(file_of(folder, key), (place, place))
    (folder / "pocl" / "AB" / "program").mkdir(parents=True)
    (folder / "pocl" / "AB" / "program" / "k.so").write_bytes(bytes(1000))
    os.utime(folder / "pocl" / "AB" / "program" / "k.so", (2.5, 2.5))
    store.get(keys[0])
    eviction.trim(folder, 3 * file_of(folder).parent.stat().st_size, 0)
    assert all(file_of(folder, key).exists() for key in keys), "nothing was written, so nothing is looked for"
    monkeypatch.setattr("cuts.store.entries.MAX_BYTES", int(4.5 * file_of(folder, keys[0]).stat().st_size))
    store.put(KEY, {"code": bytes(1000)})
    assert [file_of(folder, key).exists() for key in keys] == [True, False, False, False, True, True]
    assert not (folder / "pocl" / "AB" / "program").exists()
    store.put(KEY, {"code": bytes(10_000)})
    assert store.get(KEY) is not None, "the newest stays"
    assert store_info(folder)["entries"] == 1


def test_files_that_vanish_are_not_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EntryStore.open().put(KEY, PARTS)
    glob = Path.glob

    def vanishing(path: Path, pattern: str) -> object:
        yield from glob(path, pattern)
        yield path / "gone"

    monkeypatch.setattr(Path, "glob", vanishing)
    assert store_info(folder)["entries"] == 1


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_digests_are_equal_only_for_equal_parts(first: list[str], second: list[str]) -> None:
    assert (digest_parts(first) == digest_parts(second)) == (first == second)


@given(*(st.dictionaries(st.text(max_size=2), st.one_of(st.integers(), st.text(max_size=2))) for _ in range(2)))
def test_keys_are_equal_only_for_equal_facts(first: dict[str, object], second: dict[str, object]) -> None:
    assert (Key("cubin", first).name == Key("cubin", second).name) == (first == second)
    assert Key("cubin", first).name != Key("cubin", {}, first).name or not first


def test_version_and_lowering_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a kind that depends on sources misses after their change."""
    monkeypatch.setattr("cuts.store.keys.compiler_digest", lambda *folders: "before")
    before = [Key(kind, {"source": 1}) for kind in ("plan", "cubin")]
    monkeypatch.setattr("cuts.store.keys.compiler_digest", lambda *folders: "after")
    after = [Key(kind, {"source": 1}) for kind in ("plan", "cubin")]
    assert [one.name == two.name for one, two in zip(before, after, strict=True)] == [False, True]
    assert differences(before[0].facts, after[0].facts) == {"lowering": ("before", "after")}
    monkeypatch.setitem(KINDS, "cubin", Kind(KINDS["cubin"].version + 1))
    assert list(differences(before[1].facts, Key("cubin", {"source": 1}).facts)) == ["version"]


def test_cubins_of_earlier_versions_are_taken_once(folder: Path) -> None:
    content, store = b"{}\ncode", EntryStore.open()
    name = digest_parts(["cubin 2", "nvrtc", "13.0", "sm_90", "source"])
    (folder / "cubin").mkdir()
    (folder / "cubin" / name).write_bytes(digest(content).encode() + content)
    assert store_info(folder)["entries"] == 1
    assert take_earlier(store, "cubin", name) == content
    assert take_earlier(store, "cubin", name) is None
    (folder / "cubin" / name).write_bytes(b"0" * 64 + content)
    with pytest.warns(CutsWarning, match="is damaged"):
        assert take_earlier(store, "cubin", name) is None
