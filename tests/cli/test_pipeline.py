"""The whole way through the command line: passes, kernels, plan, device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from cuts.cli.main import main
from cuts.runtime.files import load_plan, save_plan
from cuts.tests.cli.conftest import MODEL, Cuts
from cuts.tests.needs import needs_opencl, needs_toolchain

NASTY = 'x;}__global__ void f(){ */ #include "/etc/passwd" \\u0041 %s {0}'


@needs_opencl
def test_a_model_becomes_kernels_that_run(cuts: Cuts) -> None:
    value = cuts("compile", "graph.json", "-o", "p", "--verify", "--time", "--json").json
    assert value["verify"]["ok"] is True
    assert value["kernels"] >= 1
    assert all(seconds > 0 for seconds in value["times"])
    steps = cuts("verify", "p", "--steps")
    assert steps.code == 0
    assert "computed what the float64 reference did" in steps.err
    assert cuts("explain", "p", "act").code == 0


@needs_opencl
def test_a_wrong_kernel_is_named(cuts: Cuts, tmp_path: Path) -> None:
    cuts("compile", "graph.json", "-o", "p")
    plan = load_plan(tmp_path / "p")
    wrong = tuple(evolve(kernel, source=kernel.source.replace("a < b", "a > b")) for kernel in plan.kernels)
    assert wrong != plan.kernels
    save_plan(evolve(plan, kernels=wrong), tmp_path / "p")
    result = cuts("verify", "p")
    assert result.code == 5
    assert "wrong numbers: 'y': error" in result.err
    assert f"first at step 0, kernel {wrong[0].name}, nodes" in result.err


def test_passes_are_printed_and_dumped(cuts: Cuts, tmp_path: Path) -> None:
    result = cuts("compile", "graph.json", "--print-after", "all", "--dump", "d", "-o", "p")
    printed = [line.removeprefix("; after ") for line in result.err.splitlines() if line.startswith("; after ")]
    dumped = [path.stem.partition("-")[2] for path in sorted((tmp_path / "d").glob("*.txt"))]
    assert printed == dumped
    assert printed[-1] == "emit"
    assert len(list((tmp_path / "d" / "kernels").iterdir())) == len(load_plan(tmp_path / "p").kernels)


def test_stopping_prints_the_program_and_writes_no_plan(cuts: Cuts, tmp_path: Path) -> None:
    result = cuts("compile", "graph.json", "--stop-after", "partition")
    assert (result.code, result.err) == (0, "")
    assert "group" in result.out
    assert not (tmp_path / "graph.plan").exists()


@pytest.mark.parametrize("flag", ["--stop-after", "--print-after"])
def test_unknown_passes_list_the_passes(cuts: Cuts, flag: str) -> None:
    result = cuts("compile", "graph.json", flag, "fusing")
    assert result.code == 2
    assert ", schedule, reconsider, launches, updates, lower, extract, select, emit" in result.err
    assert cuts("compile", "graph.json", "--target", "reference", flag, "emit").code == 2


def test_a_budget_that_ends_keeps_the_plan(cuts: Cuts, tmp_path: Path) -> None:
    result = cuts("compile", "graph.json", "--budget", "1e-6", "-o", "p", "--json")
    assert result.code == 6
    assert result.json["complete"] is False
    assert "best found so far" in result.err
    assert load_plan(tmp_path / "p").steps


@pytest.mark.parametrize("target", ["opencl", "cuda:sm_90"])
def test_no_user_text_reaches_kernel_source(
    cuts: Cuts, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuts.backends.compilers.toolchains", lambda: ())
    text = json.dumps(MODEL)
    for name in ("tiny", "x", "w", "h", "y", "mm", "act"):
        text = text.replace(json.dumps(name), json.dumps(f"{name} {NASTY}"))
    (tmp_path / "graph.json").write_text(text)
    assert cuts("compile", "graph.json", "--target", target, "-o", "p").code == 0
    for kernel in load_plan(tmp_path / "p").kernels:
        assert "passwd" not in kernel.source
        assert "include" not in kernel.source
    if target == "opencl":
        assert cuts("verify", "p").code == 0


@needs_toolchain
def test_cuda_sources_come_with_cubins(cuts: Cuts, tmp_path: Path) -> None:
    result = cuts("compile", "graph.json", "--target", "cuda:sm_90", "-o", "p", "--json")
    assert result.code == 0
    assert all(resource["registers"] > 0 and resource["spill_bytes"] == 0 for resource in result.json["resources"])
    assert all(code is not None and code.startswith(b"\x7fELF") for code in load_plan(tmp_path / "p").binaries)


def test_without_a_toolchain_there_are_sources(cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.backends.compilers.toolchains", lambda: ())
    result = cuts("compile", "graph.json", "--target", "cuda:sm_90", "-o", "p")
    assert result.code == 0
    assert "sources only" in result.err
    plan = load_plan(tmp_path / "p")
    assert plan.binaries == (None,) * len(plan.kernels)
    assert all("__global__" in kernel.source for kernel in plan.kernels)


def test_interrupting_leaves_no_plan(cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuts.runtime.files.plan_writer._replace", interrupt)
    assert main(["compile", "graph.json", "-o", "p"]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json"]


def test_verbose_says_where_the_time_went(cuts: Cuts) -> None:
    result = cuts("compile", "graph.json", "-o", "p", "-v")
    assert result.code == 0
    assert all(f" {heading} " in result.err for heading in ("stage", "seconds", "share", "all else"))
    assert "share" not in cuts("compile", "graph.json", "-o", "p").err
