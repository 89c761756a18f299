"""Output, files and exit codes of the commands."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from cuts.cli.main import module_arguments
from cuts.runtime.files import load_plan, save_plan
from cuts.store import EntryStore, Key
from cuts.tests.cli.conftest import MODEL, Cuts
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import example_plan, expected_outputs, random_x

REFERENCE = ["--target", "reference"]


def test_compile_writes_a_plan_and_says_so(cuts: Cuts, tmp_path: Path) -> None:
    result = cuts("compile", "graph.json", *REFERENCE, "--verify")
    assert result.code == 0
    assert "plan graph.plan written" in result.out
    assert "random inputs (seed 0): x" in result.err
    assert load_plan(tmp_path / "graph.plan").name == "tiny"


def test_compile_prints_one_json_object(cuts: Cuts) -> None:
    value = cuts("compile", "graph.json", *REFERENCE, "-o", "p", "--verify", "--json").json
    assert (value["plan"], value["name"], value["complete"]) == ("p", "tiny", True)
    assert value["verify"]["ok"] is True


def test_compile_reads_standard_input(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(MODEL)))
    assert "plan model.plan written" in cuts("compile", "-", *REFERENCE).out


def test_shapes_are_fixed_and_derived_again(cuts: Cuts, tmp_path: Path) -> None:
    assert cuts("compile", "graph.json", *REFERENCE, "--shape", "x=7x4", "-o", "p").code == 0
    assert load_plan(tmp_path / "p").types["y"].shape == (7, 3)


def test_user_declarations_travel_with_the_plan(cuts: Cuts, tmp_path: Path) -> None:
    (tmp_path / "my.cuts").write_text('op my_relu : unary "zero below zero" { y = x if x > 0 else 0 }\n')
    model = json.loads(json.dumps(MODEL))
    model["nodes"][1]["op"] = "my_relu"
    (tmp_path / "graph.json").write_text(json.dumps(model))
    assert cuts("compile", "graph.json", *REFERENCE, "--spec", "my.cuts", "-o", "p").code == 0
    (tmp_path / "my.cuts").unlink()
    assert cuts("verify", "p").code == 0
    assert cuts("compile", "graph.json", *REFERENCE, "-o", "q").code == 3


def test_run_takes_and_writes_arrays(cuts: Cuts, tmp_path: Path) -> None:
    cuts("compile", "graph.json", *REFERENCE, "-o", "p")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(tmp_path / "x.npz", x=x)
    result = cuts("run", "p", "--input", "x.npz", "--output", "y.npz", "--json")
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], np.maximum(x @ weights, 0))
    assert result.json["outputs"]["y"]["shape"] == [2, 3]
    assert result.err == ""


def test_missing_inputs_are_random_with_a_printed_seed(cuts: Cuts) -> None:
    cuts("compile", "graph.json", *REFERENCE, "-o", "p")
    first, again, other = (cuts("run", "p", "--seed", seed) for seed in ("7", "7", "8"))
    assert first.err == "random inputs (seed 7): x\n"
    assert first.out == again.out != other.out


@needs_opencl
def test_run_prints_percentiles(cuts: Cuts, tmp_path: Path) -> None:
    save_plan(example_plan(), tmp_path / "p")
    seconds = cuts("run", "p", "--iters", "5", "--json").json["seconds"]
    assert set(seconds) == {"wall", "copy in", "compute", "copy out"}
    assert 0 < seconds["wall"]["min"] <= seconds["wall"]["median"] <= seconds["wall"]["p99"]


@needs_opencl
def test_run_of_a_device_plan(cuts: Cuts, tmp_path: Path) -> None:
    save_plan(example_plan(), tmp_path / "p")
    x = random_x()
    np.save(tmp_path / "x.npy", x)
    assert cuts("run", "p", "--input", "x.npy", "--output", "y.npz").code == 0
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], expected_outputs(x)["y"], rtol=1e-6)


def test_verify_is_5_for_wrong_numbers(cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts("compile", "graph.json", *REFERENCE, "-o", "p")
    assert cuts("verify", "p").code == 0
    monkeypatch.setattr(
        "cuts.compile.driver.CompiledPlan.run", lambda self, inputs: {"y": np.zeros((2, 3), np.float32)}
    )
    monkeypatch.setattr("cuts.runtime.first_wrong_step", lambda *_: "step 0, kernel k")
    monkeypatch.setattr("cuts.compile.driver.CompiledPlan.session", None)
    result = cuts("verify", "p", "--json")
    assert result.code == 5
    assert result.json["checks"][0]["ok"] is False
    assert "wrong numbers: 'y': error" in result.err
    assert "first at step 0, kernel k" in result.err


def test_explain_shows_groups_and_sources(cuts: Cuts, tmp_path: Path) -> None:
    save_plan(example_plan(), tmp_path / "p")
    overview = cuts("explain", "p").out
    assert "k_add" in overview
    assert "register" in overview
    assert "3 groups, 2 distinct kernels" in overview
    by_number, by_node = cuts("explain", "p", "0").out, cuts("explain", "p", "add").out
    assert by_number == by_node
    assert "__kernel void k_add" in by_number
    assert cuts("explain", "p", "1", "--json").json["kernel"] == "k_double"


def test_names_with_markup_are_printed_unchanged(cuts: Cuts, tmp_path: Path) -> None:
    plan = example_plan()
    groups = ({**plan.groups[0], "nodes": ["[red]no[/red]\x1b[31m"]}, *plan.groups[1:])
    save_plan(evolve(plan, groups=groups), tmp_path / "p")
    assert "[red]no[/red]\\x1b[31m" in cuts("explain", "p").out


def test_report_is_one_safe_file(cuts: Cuts, tmp_path: Path) -> None:
    model = json.loads(json.dumps(MODEL).replace('"tiny"', '"<script>alert(1)</script>"'))
    (tmp_path / "graph.json").write_text(json.dumps(model))
    assert cuts("compile", "graph.json", *REFERENCE, "-o", "p", "--report", "r.html").code == 0
    page = (tmp_path / "r.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<script") == 1 and "http" not in page


def test_device_lists_targets_and_compilers(cuts: Cuts) -> None:
    value = cuts("device", "--json").json
    assert "cuda:sm_90" in value["targets"]
    assert {d["dialect"] for d in value["devices"]} == {"opencl", "cuda"}
    assert re.search(r"^NUM_SM +132$", cuts("device", "--target", "cuda:h200").out, re.MULTILINE)


def test_ops_shows_an_entry_of_the_manual(cuts: Cuts) -> None:
    names = [op["name"] for op in cuts("ops", "--json").json["ops"]]
    assert {"relu", "matmul"} <= set(names)
    shown = cuts("ops", "matmul").out
    assert "in a: T[...s], b: T[...t]" in shown
    assert "Cost: 2 * K per element of `y`." in shown
    assert cuts("ops", "--markdown").out.startswith("# Operations\n")


def test_cache_shows_and_clears(cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    assert cuts("cache", "info", "--json").json["entries"] == 0
    EntryStore.open().put(Key("cubin", {"source": "k"}), {"code": b"x"})
    assert cuts("cache", "info", "--json").json["kinds"]["cubin"]["entries"] == 1
    assert cuts("cache", "clear", "--json").json == {"removed": 1, "trials": 0}


def test_the_module_is_the_compile_command() -> None:
    assert module_arguments(["graph.json", "-o", "p"]) == ["compile", "graph.json", "-o", "p"]
    assert module_arguments(["run", "p"]) == ["run", "p"]
    assert module_arguments([]) == ["compile"]


def test_python_m_cuts_compile(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(MODEL))
    command = [sys.executable, "-m", "cuts.compile", "graph.json", "--target", "reference"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "graph.plan" / "plan.json").is_file()


def test_pruning_by_performance_upper_limit(cuts: Cuts) -> None:
    product = ("--op", "matmul", "--shape", "a=512x512", "--shape", "b=512x512", "--target", "cuda:h200")
    plain, pruned = (
        cuts("compile", *product, "--stop-after", "schedule", *more).out
        for more in ([], ["--pruning", "pul", "--top", "0.1%"])
    )
    assert "tile" in pruned
    assert plain != pruned
    assert "does nothing here: it is the share" in cuts("compile", "graph.json", "--top", "2").err


@needs_opencl
def test_explain_shows_both_performance_upper_limits(cuts: Cuts) -> None:
    assert cuts("compile", "graph.json", "-o", "p").code == 0
    limits = cuts("explain", "p", "0", "--json").json["performance upper limit"]
    assert set(limits) == {"pul", "pul-printed"}
    assert all(0 <= value <= 1 for value in limits.values())
