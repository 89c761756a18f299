"""Values of expressions of constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....ir import (
    Array,
    Const,
    DType,
    Expr,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_variables,
    reads,
    rebuild,
)
from ....ops import evaluate


def constant_value(
    value: Expr, axes: Sequence[Var], dtype: DType, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> Array:
    """Return an expression's exact values over axes."""
    used = tuple(dict.fromkeys(r.tensor for r in reads(value)))
    tensors = {**{t: types[t] for t in used}, "value": TensorType(dtype, tuple(a.extent for a in axes))}
    statement = Statement("value", tuple(axes), tuple(map(as_index, axes)), value)
    program = Program(tensors, used, ("value",), (statement,))
    return evaluate(program, {t: constants[t] for t in used})["value"]


def is_value_at_zeros(
    value: Expr, source: Statement, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> bool:
    """Return whether a statement has a constant value where it reads zeros."""
    inner = rebuild(source.body, lambda e: Const(0.0, DType.F32) if isinstance(e, Read) and expr_variables(e) else e)
    if any(expr_variables(e) or {r.tensor for r in reads(e)} - {*constants} for e in (inner, value)):
        return False
    found, same = (constant_value(e, (), types[source.target].dtype, types, constants) for e in (inner, value))
    return bool(found == same)
