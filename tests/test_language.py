"""The language of the project: no file departs from the rules of `tests/language.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.tests.language import ROOT, departures, language_files


@pytest.mark.parametrize("folder", sorted({p.relative_to(ROOT).parts[0] for p in language_files([])}))
def test_files_speak_the_language(folder: str) -> None:
    files = [path for path in language_files([]) if path.relative_to(ROOT).parts[0] == folder]
    assert [str(each) for path in files for each in departures(path)] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('"""What it is."""', "relative opening"),
        ('"""Holds what is left."""', "relative word"),
        ('"""Return all, one behind the other."""', "stop phrase"),
        ('"""Return a sum of very many numbers that are all of one and the same type."""', "summary of 16 words"),
        ("def moved(): ...", "participle as a name of a function"),
        ("def _within(): ...", "function that says neither action nor result"),
        ("MOST = 3", "constant that does not say its content"),
        ("def test_a_b_c_d_e_f_g_h_i(): ...", "test name of 9 words"),
        ("nursery = 1", "stop word in a name"),
    ],
)
def test_departures_are_found(text: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.tests.language.ROOT", tmp_path)
    (tmp_path / "sample.py").write_text(text)
    assert rule in {each.rule for each in departures(tmp_path / "sample.py")}
