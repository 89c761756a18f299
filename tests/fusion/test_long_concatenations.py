"""Concatenations of many parts, read by bisection.

Their depth is the logarithm of their length.
"""

from __future__ import annotations

from cuts.ir import DType, Expr, FusedGroup, TensorType
from cuts.ops import Registry
from cuts.passes.fusion.normalise import normalise


def depth(expr: Expr) -> int:
    return 1 + max(map(depth, expr.children), default=0)


def test_a_long_concatenation_is_not_deep():
    parts = [TensorType(DType.F32, (1, 3))] * 600
    program = Registry.builtin()["concat"].instantiate(parts, {"axis": 0}).program
    found = normalise(program.statements, program.tensors, program.outputs, program.constants)
    assert isinstance(found, FusedGroup)
    assert depth(found.segments[0].outputs[0].body) <= 12
