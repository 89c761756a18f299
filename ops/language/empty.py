"""Programs over no elements.

A dim may be 0. A statement over an empty range, or into a tensor without elements, writes nothing and is removed; a
reduction over nothing is its identity (the sum is 0, the product 1, the greatest element the least value there is), a
position in nothing an error; a read outside of an empty tensor is its fill value. The remaining statements have no
empty range and read no empty tensor, so the passes need no special cases.

    y[i] = sum over (r < 0) of x[i, r]    ->    y[i] = 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from ...ir import COMBINERS, Call, Const, Expr, GraphError, Read, Statement, TensorType, dtype_of, rebuild, walk


def remove_empty_statements(
    statements: Sequence[Statement], tensors: Mapping[str, TensorType], op: str
) -> list[Statement]:
    """Remove empty statements, empty ranges and reads of empty tensors."""
    if all(t.size for t in tensors.values()) and all(v.extent for s in statements for v in (*s.axes, *s.reduce)):
        return list(statements)
    writing = (s for s in statements if all(axis.extent for axis in s.axes) and tensors[s.target].size)
    return [_fill_empty(s, tensors, op) for s in writing]


def _fill_empty(statement: Statement, tensors: Mapping[str, TensorType], op: str) -> Statement:
    _check_divisions(statement, op)
    if all(var.extent for var in statement.reduce):
        body = rebuild(statement.body, lambda node: _outside(node, tensors))
        return statement if body is statement.body else evolve(statement, body=body)
    assert statement.combine is not None, "what is reduced has a combiner"
    combiner = COMBINERS[statement.combine]
    if combiner.position:
        which = "greatest" if combiner.fn == "max" else "least"
        message = f"op '{op}': expected elements, found none: no element is the {which} of an empty axis"
        raise GraphError(message, statement.span, "skip the empty tensor")
    dtype = dtype_of(statement.body, tensors)
    return evolve(statement, body=Const(combiner.identity(dtype), dtype), reduce=(), combine=None)


def _check_divisions(statement: Statement, op: str) -> None:
    """Raise where a mean over no integers divides by zero, which integers cannot."""
    for node in walk(statement.body):
        if (
            not isinstance(node, Call)
            or node.fn not in ("div", "fmod", "floormod")
            or not isinstance(node.args[1], Const)
        ):
            continue
        if node.args[1].value == 0 and not node.args[1].dtype.is_float:
            raise GraphError(
                f"op '{op}': an integer is divided by zero", statement.span, "convert the operand to a float type"
            )


def _outside(node: Expr, tensors: Mapping[str, TensorType]) -> Expr:
    """Return the filling of a read of an empty tensor: every guard of it fails."""
    if not isinstance(node, Read) or tensors[node.tensor].size:
        return node
    dtype = tensors[node.tensor].dtype
    return Const(node.fill if dtype.is_float else dtype.numpy.type(node.fill).item(), dtype)
