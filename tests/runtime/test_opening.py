"""Modules that opening and running a plan import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import cuts
import pytest
from cuts import compile as facade
from cuts.ir import DType, Graph, Node, PlanError, TensorType
from cuts.ir.lazy_exports import typed_imports
from cuts.tests.needs import needs_opencl

ROOT = Path(__file__).parents[2]
#: Packages of the compiler, and of others that only it or a report needs.
COMPILER = (
    "cuts.passes", "cuts.search", "cuts.ops", "cuts.numerics", "cuts.frontends", "cuts.backends.source",
    "cuts.runtime.report", "lark", "jinja2", "onnx", "torch", "rich", "sklearn",
)  # fmt: skip
PROGRAM = f"""
import sys
import numpy
import cuts
plan = cuts.load(sys.argv[1])
found = {{name for name in {COMPILER} if name in sys.modules}}
y = plan.run({{"x": numpy.ones((2, 4), "f4")}})["y"]
print(*sorted(found | {{name for name in {COMPILER} if name in sys.modules}}), y.shape)
"""
#: Packages that `cuts run` may import: it has a table of weights' formats, and prints tables.
COMMAND_PACKAGES = ("cuts.frontends", "rich")
COMMAND = f"""
import sys
from cuts.cli import main
code = main(["run", sys.argv[1], "--iters", "1", "--json"])
print(code, *(name for name in {COMPILER} if name in sys.modules and name not in {COMMAND_PACKAGES}), file=sys.stderr)
"""
TYPE = TensorType(DType.F32, (2, 4))
GRAPH = Graph("relu", ("x",), ("y",), {"x": TYPE, "y": TYPE}, (Node("relu_y", "relu", ("x",), ("y",)),))


@needs_opencl
def test_a_plan_runs_without_the_compiler(tmp_path: Path) -> None:
    cuts.build(GRAPH, target="opencl").save(tmp_path / "plan")
    done = run_program(PROGRAM, tmp_path)
    assert (done.stdout.strip(), done.returncode) == ("(2, 4)", 0), done.stderr
    assert run_program(COMMAND, tmp_path).stderr.splitlines()[-1].strip() == "0"


def run_program(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text, str(folder / "plan")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_a_missing_folder_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"gone is no plan: there is no such file or folder"):
        cuts.load(tmp_path / "gone")


def test_lazy_names_are_no_modules() -> None:
    """A submodule of the same name, imported first, would hide a name."""
    homes = typed_imports(Path(facade.__file__).read_text(encoding="utf-8"))
    for home in {*cuts._HOMES, *(f".compile{home}" for home in homes.values())}:
        import_module(home, "cuts")
    assert callable(cuts.build)
    assert not [name for name in homes if isinstance(getattr(facade, name), ModuleType)]


def test_lazy_names_are_those_for_type_checkers() -> None:
    found = {name: home for home, names in cuts._HOMES.items() for name in names}
    assert typed_imports(Path(cuts.__file__).read_text(encoding="utf-8")) == found
    assert all(getattr(cuts, name) is not None for name in found)
