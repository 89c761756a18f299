"""Processor count: the processors that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cuts.ir import processor_count


@pytest.mark.parametrize(("text", "most"), [("150000 100000", 2), ("100 100000", 1), ("max 100000", 64), ("", 64)])
def test_a_container_may_have_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, most: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    (quota := tmp_path / "cpu.max").write_text(text)
    assert processor_count(quota) == most


def test_a_process_may_be_kept_to_some_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    assert processor_count(tmp_path / "none") == 2


def test_only_one_module_counts_processors() -> None:
    """Running on all processors of a machine would be slower.

    A process may be limited to fewer.
    """
    root = Path(__file__).parents[2]
    own = (p for p in root.rglob("*.py") if p.parts[len(root.parts)][0] != "." and "tests" not in p.parts)
    assert [str(p) for p in own if "cpu_count" in p.read_text() and p.name != "budget.py"] == []
