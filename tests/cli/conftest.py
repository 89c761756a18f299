"""Fixtures of the command line's tests.

They are a model, a plan, and a caller of `cuts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from cuts.cli.main import main

MODEL: dict[str, Any] = {
    "format": "cuts.graph",
    "version": 1,
    "name": "tiny",
    "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 4]}],
    "constants": [{"name": "w", "dtype": "f32", "shape": [4, 3], "data": list(range(12))}],
    "nodes": [
        {"name": "mm", "op": "matmul", "inputs": ["x", "w"], "outputs": ["h"]},
        {"name": "act", "op": "relu", "inputs": ["h"], "outputs": ["y"]},
    ],
    "outputs": ["y"],
}


@frozen
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON value."""
        return json.loads(self.out)


Cuts = Callable[..., Result]


@pytest.fixture
def cuts(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cuts:
    """Return a runner of commands in an empty folder with `graph.json`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUTS_DEBUG", raising=False)
    (tmp_path / "graph.json").write_text(json.dumps(MODEL))

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
