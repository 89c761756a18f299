"""Tutorials: their blocks run, and their listings are current.

Blocks of a document run in order, in one folder and one namespace. A comment before a block says how it is taken:

    <!-- not run: REASON -->          a block that needs a GPU, a download or much time
    <!-- needs: MODULE, ... -->       a block that runs where these modules are installed
    <!-- file: NAME -->               a block that is written to a file, in any language
    <!-- output -->                   a block that equals the output of the command before it
    <!-- output without: REGEX -->    the same, without the lines in which the expression is found

Other blocks run if their language is `sh` or `python`. `--update-golden` writes the listings anew.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from cuts.cli.main import main
from cuts.tests.latency.small_models import small_models
from cuts.tests.needs import needs_opencl

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
#: Other documents whose examples run.
EXAMPLES = [ROOT / "docs" / "reference" / "python_api.md"]
FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@frozen
class Block:
    """A fenced block of a document, with its mark and place."""

    mark: str
    language: str
    text: str
    start: int

    def without_head(self, head: str) -> str | None:
        """Return the rest of a mark that begins with these words."""
        return self.mark.removeprefix(head).strip() if self.mark.startswith(head) else None

    @property
    def runs(self) -> bool:
        """True for a program."""
        return (
            self.language in ("sh", "python")
            and self.without_head("not run:") is None
            and self.without_head("file:") is None
        )

    @property
    def commands(self) -> Iterator[list[str]]:
        """The command lines of a block of a shell, split into words."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    for match in FENCE.finditer(text):
        yield Block(match["mark"] or "", match["language"], match["text"], match.start("text"))


def run_command(words: list[str]) -> None:
    """Run a command line of `cuts` in this process."""
    assert words[0] == "cuts", f"mark the block as not run: {shlex.join(words)}"
    assert main(words[1:]) == 0, shlex.join(words)


def write_onnx(path: Path) -> None:
    """Write a small convolutional network with the input `x`."""
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 10)}
    arrays = [onnx.numpy_helper.from_array(rng.normal(0, 0.2, s).astype("f4"), n) for n, s in weights.items()]
    make, pads = onnx.helper.make_node, {"pads": [1, 1, 1, 1]}
    nodes = [
        make("Conv", ["x", "w1"], ["a"], **pads), make("Relu", ["a"], ["b"]),
        make("Conv", ["b", "w2"], ["c"], **pads), make("Add", ["b", "c"], ["d"]),
        make("GlobalAveragePool", ["d"], ["e"]), make("Flatten", ["e"], ["f"]), make("MatMul", ["f", "w3"], ["y"]),
    ]  # fmt: skip
    image = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3, "height", "width"])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 10])
    graph = onnx.helper.make_graph(nodes, "network", [image], [result], arrays)
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with examples and a model, without a CUDA compiler."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_onnx(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cuts.backends.compilers.toolchains", lambda: ())
    return tmp_path


def run_blocks(path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a document's blocks in order; return its text with current listings."""
    text = path.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    printed, listings = "", list[tuple[Block, str]]()
    for block in blocks(text):
        if (name := block.without_head("file:")) is not None:
            (folder / name).write_text(block.text, encoding="utf-8")
        if block.without_head("output") is not None:
            dropped = block.without_head("output without:")
            kept = (line for line in printed.strip().splitlines() if not (dropped and re.search(dropped, line)))
            listings.append((block, "\n".join(kept) + "\n"))
        needed = (block.without_head("needs:") or "").replace(",", " ").split()
        if not block.runs or not all(map(find_spec, needed)):
            continue
        capsys.readouterr()
        if block.language == "python":
            line = text.count("\n", 0, block.start)
            exec(compile("\n" * line + block.text, str(path), "exec"), namespace)
        else:
            for words in block.commands:
                run_command(words)
        printed = capsys.readouterr().out
    for block, listing in reversed(listings):
        text = text[: block.start] + listing + text[block.start + len(block.text) :]
    return text


@needs_opencl
@pytest.mark.long
@pytest.mark.parametrize("path", [*TUTORIALS, *EXAMPLES], ids=lambda path: path.stem)
def test_a_tutorial_runs(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    with small_models():
        found = run_blocks(path, folder, capsys)
    if pytestconfig.getoption("--update-golden"):
        path.write_text(found, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == found, "run with --update-golden, then read the listings"


def test_a_tutorial_shows_a_declaration_as_it_is() -> None:
    text = (ROOT / "docs" / "tutorials" / "write_an_operation.md").read_text(encoding="utf-8")
    assert (ROOT / "examples" / "rms.cuts").read_text(encoding="utf-8") in [block.text for block in blocks(text)]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_blocks_that_run(path: Path) -> None:
    found = [*blocks(path.read_text(encoding="utf-8"))]
    assert sum(block.runs for block in found) >= 3
