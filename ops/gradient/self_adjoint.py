"""Self-adjoint forms: gradients that are the operation itself on other operands.

The gradient of a convolution's image is a convolution of the gradient of its result, by filters whose channels have
changed places and whose taps run backwards:

    dx[n, c, h] = sum[k, r] w[k, c, r] * dy[n, k, h - r + 1]
      ->   t[c, k, r] = w[k, c, 2 - r];   dx = op(dy, t)

The properties of the operation then hold for its gradient, above all its algorithms. The proposal has the operation's
own attributes, and is accepted only if its statement is the derived one: a wrong proposal costs only time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ...ir import (
    CutsError,
    Index,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    factors,
    substitute,
    substitute_expr,
    variables,
)
from ..language import Instance, OpDecl


@frozen
class SelfAdjointForm:
    """Gradient as the operation itself on permuted operands.

    `turned` is the program that permutes operand `other`, `proposed` the operation on its result; the gradient of the
    operation's result replaces operand `given`.
    """

    permutation: Program
    operation: Instance
    given: str
    other: str


@frozen
class _Product:
    """Statement that sums up products of two elements: of the `data`, and of the `other` tensor."""

    statement: Statement
    data: Read
    other: Read

    def roles(self) -> list[tuple[object, ...]]:
        """Return the role of each dim of the other tensor.

        A role is the position of the dim's variable in the result and in the data, the position of a dim of one
        element, and empty for an index that is more than a variable, forwards or backwards.
        """
        found: list[tuple[object, ...]] = []
        for place, index in enumerate(self.other.indices):
            var = _mirrored_variable(index)
            if var is not None:
                found.append((_dims(self.statement.write, var), _dims(self.data.indices, var)))
            else:
                found.append(() if index != as_index(0) else (place,))
        return found


def self_adjoint_form(
    op: OpDecl, instance: Instance, operand: str, gradient: Program, given: str
) -> SelfAdjointForm | None:
    """Return an operand's gradient as the operation itself, None elsewhere.

    `gradient` is its program, whose input `given` is the gradient of the operation's only result.
    """
    others = [t for t in gradient.inputs if t != given]
    if len(gradient.statements) != 1 or len(others) != 1 or len(instance.outputs) != 1:
        return None
    (other,) = others
    wanted = _product(gradient.statements[0], given, other)
    known = next((p for s in instance.program.statements if (p := _product(s, operand, other))), None)
    if wanted is None or known is None:
        return None
    wanted = _forwards(wanted)
    order = _order(known.roles(), wanted.roles())
    if order is None:
        return None
    turned = _permute(wanted, order, gradient.tensors[other])
    types = {operand: gradient.tensors[given], other: turned.tensors[turned.outputs[0]]}
    try:
        proposed = op.instantiate([types.get(name or "") for name in instance.inputs], _attributes(instance))
    except CutsError:
        return None
    return (
        SelfAdjointForm(turned, proposed, operand, other) if _is_same(wanted, order, proposed, operand, other) else None
    )


def _attributes(instance: Instance) -> Mapping[str, Any]:
    return {name: value for name, value in instance.attributes.items() if value is not None}


def _product(statement: Statement, data: str, other: str) -> _Product | None:
    """Return a statement as a sum of products of two tensors' elements."""
    parts = factors(statement.body)
    if statement.combine != "sum" or statement.step is not None or statement.into is not None or len(parts) != 2:
        return None
    found = {part.tensor: part for part in parts if isinstance(part, Read)}
    if set(found) != {data, other} or found[other].guards:
        return None
    return _Product(statement, found[data], found[other])


def _mirrored_variable(index: Index) -> Var | None:
    """Return the variable of an index `v` or `n - 1 - v`, whose extent is n."""
    if len(index.terms) != 1 or not isinstance(index.terms[0][0], Var):
        return None
    var, factor = index.terms[0]
    assert isinstance(var, Var)
    return var if (factor, index.const) in ((1, 0), (-1, var.extent - 1)) else None


def _dims(indices: Sequence[Index], var: Var) -> tuple[int, ...]:
    return tuple(d for d, index in enumerate(indices) if var in variables(index))


def _forwards(product: _Product) -> _Product:
    """Return the product with reduced variables that run backwards through the data reversed."""
    backwards = {
        v
        for v in product.statement.reduce
        for index in product.data.indices
        for primary, factor in index.terms
        if primary == v and factor < 0
    }
    turns = {v: as_index(v) * -1 + (v.extent - 1) for v in backwards}
    body = substitute_expr(product.statement.body, turns)
    found = _product(evolve(product.statement, body=body), product.data.tensor, product.other.tensor)
    assert found is not None
    return found


def _order(known: Sequence[tuple[object, ...]], wanted: Sequence[tuple[object, ...]]) -> tuple[int, ...] | None:
    """Return the permutation that matches dims of the wanted product's other tensor with the known one's."""
    if () in known or () in wanted or len(set(wanted)) != len(wanted) or set(known) != set(wanted):
        return None
    return tuple(wanted.index(role) for role in known)


def _permute(wanted: _Product, order: Sequence[int], type_: TensorType) -> Program:
    """Return the program that writes the other tensor with its dims in the order of the known product's."""
    places = [_mirrored_variable(wanted.other.indices[d]) for d in order]
    name = f"{wanted.other.tensor}_turned"
    made = TensorType(type_.dtype, tuple(type_.shape[d] for d in order))
    write = tuple(as_index(0) if var is None else as_index(var) for var in places)
    axes = tuple(var for var in places if var is not None)
    copy = Statement(name, axes, write, wanted.other, span=wanted.statement.span)
    return Program({wanted.other.tensor: type_, name: made}, (wanted.other.tensor,), (name,), (copy,), {})


def _is_same(wanted: _Product, order: Sequence[int], proposed: Instance, operand: str, other: str) -> bool:
    """Return whether the proposed operation means the wanted product."""
    statements = proposed.program.statements
    found = _product(statements[0], operand, other) if len(statements) == 1 else None
    if found is None:
        return False
    renamed: dict[Var, Index | Var | int] = {}
    pairs = [*zip(found.statement.write, wanted.statement.write, strict=True)]
    pairs += [(index, wanted.other.indices[d]) for index, d in zip(found.other.indices, order, strict=True)]
    for mine, its in pairs:
        var, value = _mirrored_variable(mine), _mirrored_variable(its)
        if var is None or value is None:
            if mine != its:
                return False
        elif var.extent != value.extent or renamed.setdefault(var, as_index(value)) != as_index(value):
            return False
    if {*found.statement.axes, *found.statement.reduce} != set(renamed):
        return False
    indices = tuple(substitute(index, renamed) for index in found.data.indices)
    guards = {evolve(g, index=substitute(g.index, renamed)) for g in found.data.guards}
    return indices == wanted.data.indices and guards == set(wanted.data.guards) and found.data.fill == wanted.data.fill
