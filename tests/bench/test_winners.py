"""Launches of the winners of a search.

A case without a search is an error that says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.bench.operators import ops, winners
from cuts.bench.operators.cases import all_cases, sample_cases

from ..needs import needs_opencl

pytestmark = pytest.mark.long
ROW = ["--target", "opencl", "--class", "memory", "--only", "relu 1 MB", "--no-peers"]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tuning databases in a folder of the test's own."""
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path


@needs_opencl
def test_winners_come_from_the_database(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert winners.main(ROW) == 1
    assert "not in the tuning database" in capsys.readouterr().err
    monkeypatch.setattr(
        "sys.argv", ["ops.py", *ROW, "--budget", "60", "--limit", "120", "--out", str(own_cache / "ops.json")]
    )
    ops.main()
    assert winners.main(ROW) == 0
    assert "1 kernels of 1 operations launched, 0 wrong" in capsys.readouterr().out
    assert winners.main([*ROW, "--only", "add 1 MB"]) == 1
    assert "1 kernels of 1 operations launched, 0 wrong, 1 operations unknown" in capsys.readouterr().out


@needs_opencl
def test_untuned_operations_take_the_models_choice(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert winners.main([*ROW, "--only", "add 1 MB", "--untuned"]) == 0
    assert "2 kernels of 2 operations launched, 0 wrong, 0 operations unknown" in capsys.readouterr().out
    assert winners.main([*ROW, "--only", "add 1 MB", "--untuned", "--most", "1"]) == 0
    assert "1 kernels of 1 operations launched" in capsys.readouterr().out


def test_a_sample_covers_every_class_and_batch() -> None:
    cases = all_cases()
    few = sample_cases(cases, 10)
    kinds = {(case.kind, case.batch) for case in cases}
    assert {(case.kind, case.batch) for case in few} == kinds
    assert len(few) <= len(cases) / 10 + len(kinds)
    assert sample_cases(cases, 1) == cases
