"""The command line's version, verbosity, JSON errors, inapplicable options and single operations."""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

import cuts as package
import pytest
from cuts.cli import compilation
from cuts.cli.main import COMMANDS, make_parser
from cuts.cli.outline import outline
from cuts.cli.output import progress as compile_progress
from cuts.ir import UsageError
from cuts.runtime.files import save_plan
from cuts.search import Monitor
from cuts.tests.cli.conftest import MODEL, Cuts
from cuts.tests.needs import opencl_reason
from cuts.tests.runtime.handmade import example_plan

REFERENCE = ["--target", "reference"]


def test_the_version_is_printed(cuts: Cuts) -> None:
    with pytest.raises(SystemExit) as end:
        cuts("--version")
    assert end.value.code in (0, None)


def test_the_version_is_that_of_the_package(cuts: Cuts, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cuts("--version")
    assert capsys.readouterr().out == f"cuts {package.__version__}\n"


@pytest.mark.parametrize("command", [[], ["compile"], ["run"]])
def test_help_ends_with_the_exit_codes(cuts: Cuts, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit):
        cuts(*command, "--help")
    shown = capsys.readouterr().out
    for code in ("0 ", "2 ", "3 ", "4 ", "5 ", "6 ", "130"):
        assert f"\n  {code}" in shown


def test_quiet_says_nothing_but_results(cuts: Cuts) -> None:
    loud, quiet = (
        cuts("compile", "graph.json", *REFERENCE, "--verify", "-o", "p", *more) for more in ([], ["--quiet"])
    )
    assert "random inputs" in loud.err
    assert (quiet.code, quiet.err) == (0, "")
    assert "plan p written" in quiet.out
    assert cuts("run", "none", "-q").err.startswith("cuts: error: ")


def test_errors_are_json_too(cuts: Cuts) -> None:
    missing = cuts("compile", "none.json", "--json")
    assert missing.code == missing.json["exit_code"] == 3
    assert missing.json["errors"][0]["kind"] == "GraphError"
    assert "none.json" in missing.json["errors"][0]["message"]
    assert "none.json" in missing.err
    usage = cuts("compile", "graph.json", "--mode", "fast", "--json")
    assert (usage.code, usage.json["errors"][0]["kind"]) == (2, "UsageError")
    assert "hint" in usage.json["errors"][0]


def test_json_errors_have_positions_in_declarations(cuts: Cuts, tmp_path: Path) -> None:
    (tmp_path / "my.cuts").write_text('op bad : unary "x" { y = nothing }\n')
    (error,) = cuts("compile", "graph.json", *REFERENCE, "--spec", "my.cuts", "--json").json["errors"]
    assert (error["where"]["file"], error["where"]["line"]) == ("my.cuts", 1)


#: Options that cannot apply -> why.
IDLE = {
    "target of a plan": (["run", "good", "--target", "cuda"], "--target does nothing here: good is a plan"),
    "spec of a plan": (["run", "good", "--spec", "my.cuts"], "--spec does nothing here"),
    "shape of a plan": (["verify", "good", "--shape", "x=2x2"], "--shape does nothing here"),
    "mode of a plan": (["verify", "good", "--mode", "fusion"], "--mode does nothing here"),
    "debug of a plan": (["run", "good", "--debug"], "--debug does nothing here"),
    "warm-up of nothing": (["run", "graph.json", *REFERENCE, "--warmup", "3"], "--warmup does nothing here"),
    "a plan that is not written": (["compile", "graph.json", "--stop-after", "emit", "-o", "p"], "--output does noth"),
    "a plan that is not verified": (["compile", "graph.json", "--stop-after", "emit", "--verify"], "--verify does not"),
    "inputs of nothing": (["compile", "graph.json", *REFERENCE, "--input", "x.npz"], "--input does nothing here"),
    "times of nothing": (["compile", "graph.json", *REFERENCE, "--time"], "--time does nothing here"),
    "attributes of a model": (["compile", "graph.json", "--attr", "axis=1"], "--attr does nothing here"),
    "a model and an operation": (["compile", "graph.json", "--op", "relu"], "expected a MODEL, or an operation"),
    "the manual of one": (["ops", "relu", "--markdown"], "--markdown prints the manual of all"),
    "the manual as JSON": (["ops", "--markdown", "--json"], "--json does nothing here"),
    "loud and quiet": (["ops", "-v", "-q"], "not allowed with"),
}


@pytest.mark.parametrize("name", IDLE)
def test_an_inapplicable_option_is_a_usage_error(name: str, cuts: Cuts, tmp_path: Path) -> None:
    arguments, message = IDLE[name]
    save_plan(example_plan(), tmp_path / "good")
    result = cuts(*arguments)
    assert result.code == 2
    assert message in result.err


def test_a_stopped_compilation_is_json_too(cuts: Cuts) -> None:
    stopped = cuts("compile", "graph.json", "--stop-after", "partition", "--json")
    assert stopped.code == 0
    assert stopped.json["stopped_after"] == "partition"
    assert "group {" in stopped.json["programs"][0]


def test_an_operation_is_described_as_json(cuts: Cuts) -> None:
    value = cuts("ops", "layer_norm", "--json").json
    assert [operand["name"] for operand in value["operands"]][:1] == ["x"]
    assert value["operands"][0]["dims"]
    assert {a["name"] for a in value["attributes"]} >= {"axis"} or value["attributes"]
    assert value["operations_per_element"]
    assert set(value["gradient"]) == {"stated", "derived", "none"}


def test_every_operation_is_described_as_json(cuts: Cuts) -> None:
    for op in cuts("ops", "--json").json["ops"]:
        assert cuts("ops", op["name"], "--json").json["name"] == op["name"]


def test_one_operation_is_compiled_without_a_graph(cuts: Cuts, tmp_path: Path) -> None:
    made = cuts("compile", "--op", "matmul", "--shape", "a=4x8", "--shape", "b=8x3", *REFERENCE, "--verify")
    assert (made.code, "plan matmul.plan written" in made.out) == (0, True)
    softmax = ["--op", "softmax", "--shape", "x=4x8", "--attr", "axis=0", *REFERENCE, "-o", "s", "--json"]
    assert cuts("compile", *softmax).json["name"] == "softmax"
    resized = ["--op", "resize_linear", "--shape", "x=1x2x4x4", "--attr", "sizes=[1, 2, 8, 8]", *REFERENCE, "-o", "r"]
    assert cuts("compile", *resized).code == 0
    assert "[1, 2, 8, 8]" in cuts("run", "r").out
    joined = ["--op", "concat", "--shape", "x=2x3", "--shape", "x=2x5", "--attr", "axis=1", *REFERENCE, "-o", "c"]
    found = cuts("compile", *joined)
    assert found.code == 0, found.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--op", "matmul", "--shape", "a=4x8"], 2, "needs a shape of 'b'; operands are given as in --shape a=2x3"),
        (["--op", "relu", "--shape", "z=4"], 2, "has no operand 'z'"),
        (["--op", "relu", "--shape", "x=4", "--shape", "x=5"], 2, "takes one operand 'x'"),
        (["--op", "matmul", "--shape", "a=4x8", "--shape", "b=7x3"], 3, "matmul"),
        (["--op", "reluu", "--shape", "x=4"], 3, "did you mean 'relu'"),
        (["--op", "softmax", "--shape", "x=4x8", "--attr", "axis"], 2, "expected NAME=VALUE"),
        (["--op", "softmax", "--shape", "x=4x8", "--attr", "axis=null"], 2, "attribute 'axis': expected a number, a"),
        (["--op", "softmax", "--shape", "x=4x8", "--attr", "axis=[1, [2]]"], 2, "expected a list of integers, of"),
        (["--op", "softmax", "--shape", "x=4x8", "--attr", 'axis={"a": 1}'], 2, "found {'a': 1}"),
    ],
)
def test_operations_that_do_not_fit_are_refused(cuts: Cuts, arguments: list[str], code: int, message: str) -> None:
    result = cuts("compile", *arguments, *REFERENCE)
    assert (result.code, message in result.err) == (code, True), result.err


def test_device_tells_aliases_from_targets(cuts: Cuts) -> None:
    value = cuts("device", "--json").json
    assert value["aliases"]["cuda:h200"] == "cuda:sm_90"
    assert value["aliases"]["cuda:h100"] == "NVIDIA H100 (sm_90)"
    assert value["aliases"]["opencl:cpu"] == "opencl"
    assert not set(value["aliases"]) & set(value["targets"])
    assert re.search(r"^  cuda:h200 +cuda:sm_90$", cuts("device").out, re.MULTILINE)


def test_an_output_without_elements_is_shown(cuts: Cuts, tmp_path: Path) -> None:
    model = json.loads(json.dumps(MODEL))
    model["inputs"][0]["shape"] = [0, 4]
    (tmp_path / "graph.json").write_text(json.dumps(model))
    result = cuts("run", "graph.json", *REFERENCE)
    assert result.code == 0, result.err
    assert "float32[0, 3]" in result.out


def test_progress_is_said_after_a_while_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr("cuts.cli.output.console.note", said.append)
    progress = compile_progress.CompileProgress()
    with progress.show():
        pass
    assert not said
    monkeypatch.setattr(compile_progress, "PATIENCE", 0.01)
    progress.report_pass("partition")
    with progress.show():
        time.sleep(0.2)
    assert said == ["compiling: 0 s, 'partition' is done"]


def test_without_a_command_the_help_is_printed(cuts: Cuts) -> None:
    result = cuts()
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("usage: cuts") and all(name in result.out for name in COMMANDS)


def test_facts_are_aligned_and_whole(cuts: Cuts) -> None:
    for command in (("device",), ("device", "--target", "cuda:h200"), ("cache", "info")):
        lines = cuts(*command).out.splitlines()
        assert not any(re.search(r"\w=\S|\.\.\.$", line) for line in lines), lines
        ends = {re.match(r"\S+ +", line).end() for line in lines if re.match(r"\S+ +", line)}  # type: ignore[union-attr]
        assert len(ends) == 1, lines
    assert list(outline({"path": None, "bytes": 2048, "kinds": {"pocl": 3, "cubin": 4}, "names": ["a", "b"]})) == [
        "path   -", "bytes  2 KB", "kinds", "  pocl   3", "  cubin  4", "names  a", "       b",
    ]  # fmt: skip


def test_options_of_a_search_come_in_groups() -> None:
    commands = next(a for a in make_parser("tune")._actions if isinstance(a, argparse._SubParsersAction))
    groups = {g.title: [a.dest for a in g._group_actions] for g in commands.choices["tune"]._action_groups}
    assert {"compilation", "search", "learned order", "devices and workers", "results"} <= groups.keys()
    assert max(map(len, groups.values())) <= 12
    assert "strategy" in groups["search"] and "workers" in groups["devices and workers"]


def test_progress_ends_before_results_are_printed(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    class Announced(Monitor):
        def close(self) -> None:
            print("progress ended")

    monkeypatch.setattr(compilation, "make_monitor", lambda quiet: Announced(lambda line: None))
    if opencl_reason():
        pytest.skip(opencl_reason())
    result = cuts("tune", "graph.json", "--trials", "1")
    assert result.code == 0 and result.out.startswith("progress ended"), result.out


@pytest.mark.parametrize("given", [[], ["--strategy", "random"], ["--trials", "3"], ["--unaided"]])
def test_options_of_the_search_search_anew(cuts: Cuts, monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    def open_session(*arguments: object, further: bool, anew: bool, **others: object) -> None:
        raise UsageError(f"further {further}, anew {anew}")

    monkeypatch.setattr(compilation, "tuning_session", open_session)
    assert f"further {bool(given)}, anew {bool(given)}" in cuts("tune", "graph.json", *given).err
    frozen = cuts("tune", "graph.json", "--frozen", *given).err
    assert ("does nothing here: with --frozen nothing is searched" in frozen) == bool(given)


def test_a_report_has_the_rate_of_each_launch(cuts: Cuts, tmp_path: Path) -> None:
    if opencl_reason():
        pytest.skip(opencl_reason())
    assert cuts("compile", "graph.json", "--time", "--report", "page.html").code == 0
    text = (tmp_path / "page.html").read_text()
    assert text.count("GFLOP/s") >= 2 and ">None<" not in text
