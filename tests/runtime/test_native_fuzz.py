"""Mutations of packed plans, opened and run in C under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.native import compile_c, library_sources, pack_sequence
from cuts.ir import DType, TensorMap
from cuts.runtime import Plan, make_concurrent
from cuts.runtime.native import write_packed
from cuts.tests.amounts import NIGHTLY
from cuts.tests.backends.test_launch_sequence import KERNELS, PLAN
from cuts.tests.needs import needs_c_compiler

from .handmade import COLUMNS, ROWS, example_plan
from .test_native_cuda import C_FOLDER, cuda_example, state_plan

pytestmark = needs_c_compiler()
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
#: Files of a run; by night a million.
FILE_COUNT = 1_000_000 if NIGHTLY else 10_000


def mapped_example() -> Plan:
    """Return the example with a tensor map."""
    plan = cuda_example()
    box = TensorMap("m", "a", DType.F32, (COLUMNS, ROWS), (4 * COLUMNS,), (COLUMNS, 2))
    first, *others = plan.kernels[0].arguments
    kernel = evolve(plan.kernels[0], arguments=(evolve(first, map=box), *others))
    return evolve(plan, kernels=(kernel, plan.kernels[1]))


def test_no_mutation_of_a_plan_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [cuda_example(), mapped_example(), make_concurrent(cuda_example()), state_plan(), example_plan()]
    paths = [tmp_path / f"{number}.cutsplan" for number in range(len(plans) + 2)]
    (tmp_path / f"{len(plans)}.cutsplan").write_bytes(pack_sequence(PLAN, KERNELS, (False, True), "sm_90"))
    for plan, path in zip(plans, paths, strict=False):
        assert plan is not None
        write_packed(plan, path)
    monkeypatch.setattr("cuts.runtime.native.runner_layout.MIN_SWAPPED_BYTES", 1)
    write_packed(state_plan(), paths[-1])  # its state takes turns between two blocks
    fuzzer, driver = tmp_path / "fuzz_plans", tmp_path / "libfakecuda.so"
    compile_c(fuzzer, [C_FOLDER / "fuzz_plans.c", *library_sources()], SANITIZERS)
    compile_c(driver, [C_FOLDER / "fake_cuda.c"], ["-shared", *SANITIZERS])
    seed = int(np.random.default_rng().integers(1 << 30)) if NIGHTLY else 1
    command = [fuzzer, str(FILE_COUNT), str(seed), driver, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-4000:]}"
    found = dict(line.split() for line in done.stdout.splitlines())
    assert {"CUTS_OK", "CUTS_ERROR_FORMAT", "CUTS_ERROR_VERSION"} <= set(found)
    assert int(found["runs"]) > FILE_COUNT / 100
