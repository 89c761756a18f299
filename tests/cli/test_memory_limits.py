"""Refusal of models beyond the memory, without drawn inputs or allocations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cuts.tests.cli.conftest import Cuts
from cuts.tests.needs import needs_opencl


def huge(tmp_path: Path, elements: int) -> None:
    """Write a model whose input has so many elements."""
    model = {
        "format": "cuts.graph", "version": 1, "name": "huge", "outputs": ["y"], "constants": [],
        "inputs": [{"name": "x", "dtype": "f32", "shape": [elements]}],
        "nodes": [{"name": "act", "op": "relu", "inputs": ["x"], "outputs": ["y"]}],
    }  # fmt: skip
    (tmp_path / "huge.json").write_text(json.dumps(model))


@pytest.mark.parametrize(
    "command", [["run", "huge.json"], ["verify", "huge.json"], ["compile", "huge.json", "--verify"]]
)
@pytest.mark.parametrize("target", ["reference", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_a_model_beyond_memory_is_refused_without_inputs(
    cuts: Cuts, tmp_path: Path, command: list[str], target: str
) -> None:
    huge(tmp_path, 1 << 40)
    start = time.monotonic()
    result = cuts(*command, "--target", target)
    assert result.code in (3, 4)
    assert "random inputs" not in result.err
    assert result.err.startswith("cuts: error: ")
    assert time.monotonic() - start < 20


LIMITED_SCRIPT = """
import resource, sys
from cuts.cli import main
import pyopencl
from cuts.backends import find_target, open_device
open_device(find_target("opencl"))
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), used + (2 << 30)))
sys.exit(main(sys.argv[1:]))
"""


@needs_opencl
def test_a_memory_limit_refuses_a_large_result(tmp_path: Path) -> None:
    arguments = ["run", "one_hot.json"]
    model = {
        "format": "cuts.graph", "version": 1, "name": "hot", "outputs": ["y"], "constants": [],
        "inputs": [{"name": "i", "dtype": "i64", "shape": [1]}],
        "nodes": [
            {"name": "h", "op": "one_hot", "inputs": ["i"], "outputs": ["y"], "attributes": {"depth": 10**9}}
        ],
    }  # fmt: skip
    (tmp_path / "one_hot.json").write_text(json.dumps(model))
    path = os.pathsep.join(p for p in sys.path if p)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED_SCRIPT, *arguments],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode == 4, result.stderr
    # A device of a small machine refuses one allocation of so many bytes before the host lacks them all.
    assert re.search("the plan needs (one allocation of )?4,0", result.stderr), result.stderr
