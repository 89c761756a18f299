"""ONNX's own node tests, on the reference and on generated kernels.

Cases out of scope are listed with reasons in `golden/test_what_is_out_of_scope.txt`. Kernels run a case of every
operation, built together; then, where `CUTS_CONFORMANCE_SECONDS` are given, more cases until the time is over.
`CUTS_HYPOTHESIS_PROFILE=nightly` runs all of them and, with `--update-golden`, records the outcome, which other runs
report beside theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

from cuts.frontends.onnx.backend_representation import ReferenceBackend  # onnx is optional
from cuts.tests.amounts import NIGHTLY
from cuts.tests.frontends.conformance import (
    arrays_of,
    case_of,
    cases,
    complaint,
    in_scope,
    interleave,
    run_case,
    run_together,
    scope,
)
from cuts.tests.frontends.sized_models import open_axes, sized_fault
from cuts.tests.needs import needs_opencl
from cuts.tests.tiers import part_of_the_day

pytestmark = pytest.mark.long

LEAST_IN_SCOPE = 1200
#: Parts of the cases on kernels, each of other operations: the complete tier takes one.
PARTS = 1 if NIGHTLY else 6
#: Parts of the cases with a size that varies, each of a second.
SIZED_PARTS = 512
WHOLE_SWEEP = Path(__file__).with_name("golden") / "whole_conformance_sweep.txt"


def test_what_is_out_of_scope(golden: Callable[[str], None]) -> None:
    golden("".join(f"{name}: {why}\n" for name, why in scope().items() if why))
    assert sum(not why for why in scope().values()) >= LEAST_IN_SCOPE


def test_reference_passes_every_case_in_scope(announce: Callable[[str], None]) -> None:
    chosen = list(in_scope())
    wrong = [text for text in (complaint(case, ReferenceBackend.prepare(case.model)) for case in chosen) if text]
    announce(
        f"ONNX conformance, reference: {len(chosen) - len(wrong)} passed of {len(chosen)} in scope "
        f"({len(cases())} node tests)"
    )
    assert wrong == []


@pytest.mark.parametrize("part", range(SIZED_PARTS))
def test_sizes_that_vary(part: int) -> None:
    """A run takes one part of the cases, another one each day."""
    names = [case.name for case in in_scope()][part_of_the_day(part, SIZED_PARTS) :: SIZED_PARTS]
    found = {
        (name, *axes): sized_fault(case_of(name), axes)
        for name in names
        for axes in open_axes(arrays_of(case_of(name)))
    }
    assert not {each: fault for each, fault in found.items() if fault}


@needs_opencl
@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_compute_what_the_cases_expect(
    part: int, announce: Callable[[str], None], pytestconfig: pytest.Config
) -> None:
    seconds = float("inf") if NIGHTLY else float(os.environ.get("CUTS_CONFORMANCE_SECONDS", 0)) / PARTS
    names = interleave([case.name for case in in_scope()])
    operations = len({case.model.graph.node[0].op_type for case in in_scope()})
    found: list[str | None] = [*run_together(names[part:operations:PARTS])]
    if seconds:
        deadline = time.time() + seconds
        with ProcessPoolExecutor(min(2, os.cpu_count() or 1), get_context("spawn")) as pool:
            found += pool.map(run_case, names[operations + part :: PARTS], repeat("opencl"), repeat(deadline))
    ran = [text for text in found if text is not None]
    wrong = [text for text in ran if text]
    passed = (
        f"{len(ran) - len(wrong)} passed of {len(names)} in scope ({len(cases())} node tests, onnx {onnx.__version__})"
    )
    if NIGHTLY and pytestconfig.getoption("--update-golden"):
        WHOLE_SWEEP.write_text(f"{passed}\n", encoding="utf-8")
    if len(ran) < len(names):
        whole = WHOLE_SWEEP.read_text(encoding="utf-8").strip()
        passed = f"{len(ran) - len(wrong)} passed of {len(ran)} that ran, in part {part}; all of them gave {whole}"
    announce(f"ONNX conformance, opencl: {passed}")
    assert wrong == []
