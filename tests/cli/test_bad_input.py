"""Bad input of commands.

Expected are the exit code, one clear line for each error, no traceback, and no partial files.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.runtime.files import save_plan
from cuts.search.analysis import progress
from cuts.tests.cli.conftest import MODEL, Cuts
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import example_plan

COMPILE = ["compile", "graph.json", "--target", "reference", "-o", "p"]

USAGE: dict[str, tuple[list[str], int, str]] = {
    "unknown command": (["optimise"], 2, "invalid choice"),
    "unknown flag": ([*COMPILE, "--fast"], 2, "--fast"),
    "no model": (["compile"], 2, "MODEL"),
    "missing file": (["compile", "none.json"], 3, "none.json"),
    "missing onnx file": (["compile", "none.onnx"], 3, "none.onnx"),
    "a folder": (["compile", "."], 3, "."),
    "unknown target": ([*COMPILE, "--target", "cuda:sm_1"], 2, "targets are: opencl"),
    "target without a dialect": ([*COMPILE, "--target", "rtx4090"], 2, "did you mean 'cuda:rtx4090'?"),
    "misspelt target": ([*COMPILE, "--target", "cuda:h10"], 2, "did you mean 'cuda:h100'?"),
    "absent device": ([*COMPILE, "--target", "metal"], 2, "targets are: opencl"),
    "unknown mode": ([*COMPILE, "--mode", "fast"], 2, "no-fusion"),
    "bad shape": ([*COMPILE, "--shape", "x=2x-3"], 2, "expected NAME=1x3x224x224"),
    "dim without a range": ([*COMPILE, "--shape", "x=2xq"], 2, "--dynamic q=1..64"),
    "shape of nothing": ([*COMPILE, "--shape", "z=2x4"], 2, "inputs are: 'x'"),
    "shape that does not fit": ([*COMPILE, "--shape", "x=2x5"], 3, "matmul"),
    "bad budget": ([*COMPILE, "--budget", "-1"], 2, "number above 0"),
    "missing spec": ([*COMPILE, "--spec", "none.cuts"], 2, "none.cuts"),
    "output is a file": (["compile", "graph.json", "--target", "reference", "-o", "graph.json"], 3, "no folder"),
    "output is no plan": (["compile", "graph.json", "--target", "reference", "-o", "."], 3, "no plan"),
    "missing plan": (["run", "none"], 3, "no plan"),
    "a plan's document": (["run", "good/plan.json"], 3, "cuts.graph"),
    "missing arrays": (["run", "good", "--input", "none.npz"], 2, "none.npz"),
    "foreign arrays": (["run", "good", "--input", "graph.json"], 2, "cannot read arrays"),
    "unknown group": (["explain", "good", "99"], 2, "expected a number below 3"),
    "misspelt node": (["explain", "good", "ad"], 2, "did you mean"),
    "unknown op": (["ops", "matmull"], 3, "did you mean 'matmul'"),
    "recording of nothing": (
        ["tune", "graph.json", "--replay", "graph.json", "-o", "p", "--quiet"],
        2,
        "it is no tuning database",
    ),
    "shape of less than nothing": ([*COMPILE, "--shape", "x=-1x4"], 2, "expected NAME=1x3x224x224"),
    "cache verb": (["cache", "burn"], 2, "invalid choice"),
}


def assert_clean(err: str, folder: Path) -> None:
    """Check the layout of errors and that only complete plans exist.

    Each error is a line of its own, with its quotation below.
    """
    assert err
    assert all(re.match(r"cuts: error: |[^:]+:\d+:\d+: note: | +\d* \| ", line) for line in err.strip().splitlines()), (
        err
    )
    assert sorted(path.name for path in folder.iterdir()) == ["good", "graph.json"]


@pytest.mark.parametrize("name", USAGE)
def test_usage(name: str, cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)  # as on a machine that takes seconds for everything
    arguments, code, message = USAGE[name]
    save_plan(example_plan(), tmp_path / "good")
    result = cuts(*arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert_clean(result.err, tmp_path)


def node(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """Return a change of the model's second node."""
    return lambda model: model["nodes"][1].update(changes)


GRAPHS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown op": (node(op="reluu"), "relu"),
    "op full of code": (node(op='x;}__global__ void */ #include "/etc/passwd"'), "expected the name of an operation"),
    "unknown attribute": (node(attributes={"fast": 1}), "fast"),
    "unknown value": (node(inputs=["nothing"]), "nothing"),
    "cycle": (lambda m: m["nodes"][0].update(inputs=["y", "w"]), "cycle"),
    "wrong shapes": (lambda m: m["inputs"][0].update(shape=[2, 5]), "matmul"),
    "two definitions": (node(outputs=["h"]), "defined 2 times"),
    "missing output": (lambda m: m.update(outputs=["z"]), "nothing defines"),
    "no outputs": (lambda m: m.update(outputs=[]), "no outputs"),
    "wrong number of elements": (lambda m: m["constants"][0].update(data=[1]), "expected a flat list of 12"),
    "missing weights": (lambda m: (m["constants"][0].pop("data"), m.update(weights="w.safetensors")), "w.safetensors"),
    "weights outside": (
        lambda m: (m["constants"][0].pop("data"), m.update(weights="../w.safetensors")),
        "../w.safetensors",
    ),
    "unknown field": (lambda m: m.update(nodez=[]), "nodez"),
    "newer version": (lambda m: m.update(version=9), "version"),
    "foreign format": (lambda m: m.update(format="onnx"), "format"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, cuts: Cuts, tmp_path: Path) -> None:
    change, message = GRAPHS[name]
    model = copy.deepcopy(MODEL)
    change(model)
    (tmp_path / "graph.json").write_text(json.dumps(model))
    save_plan(example_plan(), tmp_path / "good")
    result = cuts(*COMPILE)
    assert (result.code, result.out) == (3, "")
    assert message in result.err
    assert_clean(result.err, tmp_path)


def test_a_result_without_elements_is_worth_a_warning(cuts: Cuts, tmp_path: Path) -> None:
    model = {
        "format": "cuts.graph", "version": 1, "name": "small", "outputs": ["y"],
        "inputs": [
            {"name": "x", "dtype": "f32", "shape": [1, 1, 2, 2]},
            {"name": "w", "dtype": "f32", "shape": [1, 1, 3, 3]},
        ],
        "nodes": [{"name": "c", "op": "conv", "inputs": ["x", "w"], "outputs": ["y"]}],
    }  # fmt: skip
    (tmp_path / "graph.json").write_text(json.dumps(model, indent=1))
    result = cuts(*COMPILE)
    assert result.code == 0
    assert result.err.splitlines()[0] == (
        "cuts: warning: graph.json:33:10: node 'c' (conv): its result 'y' has no elements: f32[1, 1, 0, 0]; "
        "its operands are too small for it: 'x': f32[1, 1, 2, 2], 'w': f32[1, 1, 3, 3]"
    )


TEXTS = {
    "empty": b"",
    "not JSON": b"{",
    "binary": b"\x00\xff\xfe",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "a number": b"1",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str, cuts: Cuts, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(TEXTS[name])
    result = cuts(*COMPILE)
    assert (result.code, result.out) == (3, "")
    assert "graph.json" in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "p").exists()


def test_a_spec_with_errors_points_into_it(cuts: Cuts, tmp_path: Path) -> None:
    (tmp_path / "my.cuts").write_text("op broken\n  out res: T[m, q\n")
    result = cuts(*COMPILE, "--spec", "my.cuts")
    assert (result.code, result.out) == (3, "")
    assert "my.cuts:" in result.err
    assert "^" in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "p").exists()


@needs_opencl
def test_debug_mode_names_an_index_out_of_range(cuts: Cuts, tmp_path: Path) -> None:
    model = {
        "format": "cuts.graph", "version": 1, "name": "lookup", "outputs": ["y"],
        "inputs": [{"name": "table", "dtype": "f32", "shape": [5, 3]}, {"name": "ids", "dtype": "i64", "shape": [2]}],
        "nodes": [{"name": "look up", "op": "gather", "inputs": ["table", "ids"], "outputs": ["y"]}],
    }  # fmt: skip
    (tmp_path / "graph.json").write_text(json.dumps(model))
    np.savez(tmp_path / "ids.npz", ids=np.array([1, 8]))
    assert cuts("compile", "graph.json", "--debug", "-o", "p").code == 0
    for arguments in (["p"], ["graph.json", "--debug"]):
        result = cuts("run", *arguments, "--input", "ids.npz")
        assert (result.code, result.out) == (3, "")
        assert result.err.splitlines()[-1] == (
            "cuts: error: node 'look up' (gather): operand 'indices' (value 'ids'): expected indices from -5 to 4, "
            "found 8 at [1]; "
            "correct the integers that the model is given"
        )
    assert cuts("run", "graph.json", "--input", "ids.npz").code == 0


def test_a_traceback_is_shown_on_request(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_DEBUG", "1")
    result = cuts("run", "none")
    assert result.code == 3
    assert "Traceback" in result.err


def test_interruption_is_130(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuts.compile.dynamic.load_at_sizes", interrupt)
    result = cuts(*COMPILE)
    assert (result.code, result.err) == (130, "cuts: interrupted\n")
