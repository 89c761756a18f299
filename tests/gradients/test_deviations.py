"""Gradients of norms, whose deviations from a mean add up to zero."""

from __future__ import annotations

import pytest
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.gradient.adjoint import adjoint


def _sums(op: str, shapes: list[tuple[int, ...]], operands: tuple[str, ...]) -> list[set[str]]:
    """Return the tensors that each sum of a gradient reads."""
    attributes = {"num_groups": 2} if op == "group_norm" else {}
    instance = Registry.builtin()[op].instantiate([TensorType(DType.F32, s) for s in shapes], attributes)
    program = adjoint(instance.program, operands, ("y",)).program
    return [set(s.tensors_read) for s in program.statements if s.combine == "sum"]


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("batch_norm_training", [(2, 3, 4), (3,), (3,), (3,), (3,)]),
        ("instance_norm", [(2, 3, 4), (3,), (3,)]),
        ("layer_norm", [(2, 3, 4), (4,), (4,)]),
        ("group_norm", [(2, 6, 4), (6,), (6,)]),
    ],
)
def test_variance_passes_no_gradient_to_the_mean(op: str, shapes: list[tuple[int, ...]]) -> None:
    """Only dy, and dy times the deviation, are summed.

    Mean and variance aside, no sum reads x alone.
    """
    found = _sums(op, shapes, ("x",))
    assert [read for read in found if "d_y" in read and "x" not in read]
    assert sum("x" in read for read in found) == 3


def test_shift_and_mean_share_a_sum() -> None:
    found = _sums("batch_norm_training", [(2, 3, 4), (3,), (3,), (3,), (3,)], ("x", "bias"))
    assert found.count({"d_y"}) >= 1
