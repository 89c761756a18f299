"""Programs in C, C++ and Rust compute the bits of Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import cuts
import numpy as np
import pytest
from cuts.backends.native import SOURCE_FOLDER, build_library
from cuts.cli import main
from cuts.compile import CompiledPlan, load
from cuts.tests.needs import needs_c_compiler, needs_opencl

from .native_runner import opencl_options

pytestmark = [pytest.mark.as_users_build, needs_c_compiler()]
EXAMPLES = Path(__file__).parents[2] / "examples"
#: Suffix of a program, its compiler and options.
COMPILERS: Mapping[str, Sequence[str]] = {
    "c": ("cc", "-std=c11", "-Wall", "-Wextra", "-Werror"),
    "cpp": ("c++", "-std=c++17", "-Wall", "-Wextra", "-Werror"),
    "rs": ("rustc", "-O", "-D", "warnings"),
}


@pytest.fixture(scope="module")
def plan() -> CompiledPlan:
    return cuts.build(str(EXAMPLES / "perceptron.json"), "opencl")


def compile_program(suffix: str, folder: Path) -> Path:
    """Compile an example beside the library and return its path."""
    compiler, *options = COMPILERS[suffix]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    build_library(folder)
    source, program = EXAMPLES / "native" / f"run_plan.{suffix}", folder / "run_plan"
    if suffix == "rs":
        options += [str(source), "-L", str(folder), "-l", "cuts_run", "-o", str(program)]
    else:
        options += [f"-I{SOURCE_FOLDER}", str(source), f"-L{folder}", "-lcuts_run", "-o", str(program)]
    subprocess.run([compiler, *options], check=True, capture_output=True)
    return program


@needs_opencl
@pytest.mark.parametrize("suffix", COMPILERS)
def test_a_program_computes_the_same_bits(suffix: str, plan: CompiledPlan, tmp_path: Path) -> None:
    inputs = plan.random_inputs(seed=4)
    expected = plan.run(inputs)
    program = compile_program(suffix, tmp_path)
    plan.save(tmp_path / "model.plan")
    path = tmp_path / "model.cutsplan"
    assert main(["export", str(tmp_path / "model.plan"), "-o", str(path)]) == 0
    for name, value in inputs.items():
        (tmp_path / f"{name}.bin").write_bytes(np.ascontiguousarray(value).tobytes())
    library = opencl_options().library
    command = [program, path, tmp_path, *([library.decode()] if library else [])]
    # A packaged PoCL lies beside the library that lists it, and is found by its bare name.
    folders = [str(tmp_path), *([str(Path(library.decode()).parent)] if library else [])]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    for name, value in expected.items():
        assert (tmp_path / f"{name}.bin").read_bytes() == value.tobytes(), name
    done = subprocess.run([program, tmp_path / "none", tmp_path], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "No such file or directory" in done.stderr


@needs_opencl
def test_export_prints_its_files(
    plan: CompiledPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan.save("model.plan")
    assert main(["export", "model.plan"]) == 0
    assert capsys.readouterr().out == "model.cutsplan\n"
    assert main(["export", "model.plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"plan": "model.plan", "form": "file", "files": ["model.cutsplan"]}
    assert main(["export", "model.plan", "-o", "none/model.cutsplan"]) == 3
    assert "cannot write plan none/model.cutsplan: No such file or directory" in capsys.readouterr().err


@needs_opencl
def test_a_plan_for_ranges_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "rows.plan")
    words = ["--shape", "x=rowsx2", "--dynamic", "rows=1..8", "--target", "opencl", "-o", path]
    assert main(["compile", str(EXAMPLES / "perceptron.json"), *words]) == 0
    assert main(["export", path]) == 2
    assert "is a plan for ranges of sizes, which needs Python" in capsys.readouterr().err


@needs_opencl
def test_exported_sources_build_a_library(plan: CompiledPlan, tmp_path: Path) -> None:
    plan.save(tmp_path / "model.plan")
    folder = tmp_path / "model-c"
    assert main(["export", str(tmp_path / "model.plan"), "--as", "c", "-o", str(folder)]) == 0
    assert (folder / "model.cutsplan").is_file()
    command = "cc -std=c11 -D_GNU_SOURCE -O2 -fPIC -fvisibility=hidden -fno-strict-aliasing -shared *.c -ldl -pthread"
    subprocess.run(f"{command} -o libcuts_run.so", shell=True, check=True, cwd=folder)
    assert (folder / "libcuts_run.so").stat().st_size <= 500_000


@needs_opencl
def test_exported_binaries_run_without_a_compiler(
    plan: CompiledPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.save(tmp_path / "model.plan")
    folder = tmp_path / "model-binaries.plan"
    assert main(["export", str(tmp_path / "model.plan"), "--as", "folder", "-o", str(folder)]) == 0
    assert (folder / "kernels/0000.bin").is_file()
    inputs = plan.random_inputs()
    wanted = plan.run(inputs)
    monkeypatch.setattr("cuts.backends.opencl.device.OpenCLDevice._program", lambda *_: pytest.fail("compiled"))
    for name, found in load(folder).run(inputs).items():
        np.testing.assert_array_equal(found, wanted[name])
