"""Cache of compiled kernels.

Entries come back whole or not, from a folder of our own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.backends.cache import KernelStore, cache_info, cache_key, cache_root, clear_cache
from cuts.ir.errors import BackendError
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_entries_come_back(folder: Path) -> None:
    store = KernelStore.open("cubin")
    assert store.get("k") is None
    store.put("k", b"code")
    assert KernelStore.open("cubin").get("k") == b"code"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_info()["kinds"] == {"cubin": {"entries": 1, "bytes": 68}}
    assert clear_cache() == 1
    assert KernelStore.open("cubin").get("k") is None


@pytest.mark.parametrize("damage", [b"", b"x" * 30, b"0" * 64 + b"code"])
def test_damaged_entries_are_misses_and_dropped(folder: Path, damage: bytes) -> None:
    store = KernelStore.open("cubin")
    (folder / "cubin" / "k").write_bytes(damage)
    assert store.get("k") is None
    assert not (folder / "cubin" / "k").exists()


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_folders_that_others_can_write_are_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(BackendError, match="can be written by others"):
        KernelStore.open("cubin")


def test_the_cache_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_NO_CACHE", "1")
    assert cache_root() is None
    store = KernelStore.open("cubin")
    store.put("k", b"code")
    assert store.get("k") is None
    assert cache_info()["entries"] == 0
    assert clear_cache() == 0


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(BackendError, match="cannot use cache folder"):
        cache_root()


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_keys_are_equal_only_for_equal_parts(first: list[str], second: list[str]) -> None:
    assert (cache_key(first) == cache_key(second)) == (first == second)
