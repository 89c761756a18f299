"""Padded rows: which tensors have them, and unchanged results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts import build, load
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.passes.inspection.verify import verify_programs
from cuts.passes.layout.pitches import padded_type

from ..fusion.build import graph, op
from ..needs import needs_opencl
from .test_choose_layouts import half, laid_out, opencl

#: Columns of rows that begin anywhere, and the elements from one row to the next.
COLUMNS, PITCH = 803, 808


def test_a_pitch_is_part_of_strides_and_bytes() -> None:
    type_ = TensorType(DType.F16, (2, 5, 3), 8)
    assert (type_.strides, type_.size, type_.nbytes) == ((40, 8, 1), 30, 160)
    assert type_ != TensorType(DType.F16, (2, 5, 3))
    assert str(type_) == "f16[2, 5, 3] pitch 8"


@pytest.mark.parametrize("shape", [(4, 800), (4, 401), (1, 803), (803,), ()])
def test_some_rows_keep_their_length(shape: tuple[int, ...]) -> None:
    assert padded_type(half(*shape)) is None


def scores(rows: int = 40, columns: int = COLUMNS, lead: int = 2, kind: DType = DType.F16) -> Graph:
    """Two products of one computed tensor, along rows and columns."""
    lines = (
        op("a", "softmax", "x", axis=-1), op("b", "mul", "a", "s"),
        op("c", "reshape", "b", shape=(lead * rows, columns)), op("t", "transpose", "c", perm=(1, 0)),
        op("y", "matmul", "c", "w"), op("z", "matmul", "t", "v"),
    )  # fmt: skip
    inputs = {"x": (lead, rows, columns), "s": (lead, rows, 1), "w": (columns, 64), "v": (lead * rows, 48)}
    return evolve(graph({n: TensorType(kind, s) for n, s in inputs.items()}, *lines, out="y"), outputs=("y", "z"))


def test_factors_and_their_views_have_padded_rows() -> None:
    programs = laid_out(scores())
    verify_programs(programs)
    assert {t: programs.types[t].pitch for t in "bct"} == dict.fromkeys("bct", PITCH)
    assert not any(programs.types[t].pitch for t in "xwvyz")


def test_results_and_their_sources_are_dense() -> None:
    programs = laid_out(evolve(scores(), outputs=("y", "z", "c")))
    assert not any(type_.pitch for type_ in programs.types.values())


@needs_opencl
@pytest.mark.parametrize(("policy", "pitch"), [("fp16", PITCH), ("bf16", PITCH), ("tf32", 808)])
def test_plans_with_padded_rows_equal_the_reference(policy: Any, pitch: int, tmp_path: Any) -> None:
    plan = build(scores(kind=DType.F32), opencl(policy), precision=policy)
    padded = [t for t, s in plan.plan.storages.items() if pitch in s.strides]
    assert padded, "some tensor has padded rows"
    given = plan.random_inputs()
    assert all(result.ok for result in plan.verify(given))
    plan.save(tmp_path / "it.plan")
    opened = load(tmp_path / "it.plan")
    for name, value in plan.run(given).items():
        np.testing.assert_array_equal(opened.run(given)[name], value)
