"""The README's example is what the compiler prints today; `--update-golden` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import compile_model
from cuts.compile.loading import load_spec
from cuts.frontends.graph_json import load_graph
from cuts.ir.compiled import CompileOptions

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
#: What the tests compile for: the command that README shows names it.
TARGET = "cuda:sm_90"


def printed(stage: str) -> str:
    """Return what `cuts compile examples/rms.json --spec examples/rms.cuts --stop-after STAGE` prints."""
    spec = load_spec([EXAMPLES / "rms.cuts"])
    texts: list[str] = []
    options = CompileOptions(stop_after=stage, callback=lambda _, text: texts.append(text))
    compile_model(load_graph(EXAMPLES / "rms.json", spec.instances.infer), spec, find_target(TARGET), options)
    return texts[0].strip() + "\n"


def declaration() -> str:
    return (EXAMPLES / "rms.cuts").read_text(encoding="utf-8")


def group() -> str:
    return re.sub(r"^  tensor .*\n", "", printed("partition"), flags=re.MULTILINE)


def kernel() -> str:
    return re.sub(r"\A# kernel 0\n", "", printed("emit"))


#: The words before a block, and what the block shows.
BLOCKS = {
    "All of `examples/rms.cuts`; there is no Python to it:\n\n```\n": declaration,
    "--stop-after partition   # or lower, extract, emit\n```\n```\n": group,
    "the plan has its cubin too):\n\n```cuda\n": kernel,
}


@pytest.mark.parametrize("before", BLOCKS, ids=["declaration", "group", "kernel"])
def test_a_block_is_what_the_compiler_prints(before: str, pytestconfig: pytest.Config) -> None:
    path = ROOT / "README.md"
    head, found, rest = path.read_text(encoding="utf-8").partition(before)
    assert found, f"README.md has no block after {before!r}"
    block, _, tail = rest.partition("```\n")
    expected = BLOCKS[before]()
    if pytestconfig.getoption("--update-golden"):
        path.write_text(f"{head}{before}{expected}```\n{tail}", encoding="utf-8")
    else:
        assert block == expected, "run with --update-golden, then read what it wrote"


def test_the_command_names_the_target_of_these_tests() -> None:
    assert f"--target {TARGET} --stop-after partition" in (ROOT / "README.md").read_text(encoding="utf-8")
