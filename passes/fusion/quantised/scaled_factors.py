"""Factors of products that are dequantised bytes."""

from __future__ import annotations

from attrs import frozen

from ....ir import Const, DType, Expr, Read, Statement, Var, as_index, expr_variables, factors, rebuild
from ...statements import DefUse, is_plain
from .narrow_products import widened_byte


@frozen
class ScaledFactor:
    """Dequantised factor of a product.

    `read` reads the value that `made` defines; that widens `byte`, less its zero point.
    """

    read: Read
    made: Statement
    byte: Read
    zero: Expr | None


def find_scaled_factor(part: Expr, total: Statement, index: DefUse) -> ScaledFactor | None:
    """Return a dequantised factor that nothing else reads."""
    made = index.single_definition(part.tensor) if isinstance(part, Read) and part.fill == 0 else None
    if made is None or not isinstance(part, Read) or not is_plain_map(made):
        return None
    found = [each for f in factors(made.body) if (each := widened_byte(f, index.types)) is not None]
    if len(found) != 1 or index.types[found[0].byte.tensor].dtype.is_float:
        return None
    byte = found[0].byte
    fixed = fixed_axes(made, byte)
    moved = {v for axis, place in zip(made.axes, part.indices, strict=True) if axis in fixed for v, _ in place.terms}
    if byte.guards or byte.indices != made.write or moved & {*total.reduce}:
        return None
    return ScaledFactor(part, made, byte, found[0].zero) if index.is_only_read_by(part.tensor, [total]) else None


def fixed_axes(made: Statement, byte: Read) -> frozenset[Var]:
    """Return the axes that move a scale or a zero point."""
    zero = Const(0, DType.I32)
    return expr_variables(rebuild(made.body, lambda node: zero if node == byte else node))


def is_plain_map(statement: Statement) -> bool:
    """Return whether a statement computes each element from its own index."""
    own = statement.write == tuple(map(as_index, statement.axes))
    return own and statement.is_pointwise and is_plain(statement)
