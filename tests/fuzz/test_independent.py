"""Graphs of another project's generator, a sample of `bench/independent.py`."""

from __future__ import annotations

import pytest

pytest.importorskip("nnsmith", reason="NNSmith is not installed")
pytest.importorskip("torch")

from ..needs import needs_opencl
from .independent import Generator

pytestmark = pytest.mark.filterwarnings("ignore")  # of NNSmith and its solver


@needs_opencl
def test_graphs_of_another_generator_compute_what_pytorch_does() -> None:
    generator = Generator()
    reports = {number: generator.check("opencl", number) for number in range(6)}
    assert {n: r.text for n, r in reports.items() if r.kind not in ("", "skipped", "refused", "ill-posed")} == {}
    assert any(not r.kind for r in reports.values())
