"""Memory-based index function (DeepCuts section 6.2): address tables for flattened axes.

A flattened reduced axis (C*R*S of an implicit GEMM) is decomposed by divisions and moduli wherever an address or a
guard uses it. The terms that depend on nothing else are functions of one integer, so the host makes a table of their
sum, and the kernel adds one loaded number instead:  `A(p) + (k // 9) * HW + (k // 3 % 3) * W + k % 3`  ->  `A(p) +
table[k]`.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen

from ....ir import (
    Index,
    IndexLike,
    Indirect,
    Value,
    Var,
    evaluate,
    indirects,
    substitute,
    variables,
    with_indices,
    with_operands,
)


@frozen
class FlattenedAxis:
    """Flattened axis under its own name.

    `var` stands for `value`; tables cover `[0, length)`.
    """

    var: Var
    value: Index
    length: int


@define
class AddressTables:
    """Address tables of a kernel by generated name; equal tables are one."""

    values: dict[str, tuple[int, ...]] = field(factory=dict)

    def name_of(self, values: tuple[int, ...]) -> str:
        """Return the name of a table, adding it where it is new."""
        for name, known in self.values.items():
            if known == values:
                return name
        name = f"table{len(self.values)}"
        self.values[name] = values
        return name


def use_address_tables(node: Value, flats: Mapping[Var, FlattenedAxis], tables: AddressTables) -> Value:
    """Return a value whose addresses and guards read address tables.

    A table replaces all terms that depend on one flattened axis alone; the axis itself does not remain.
    """
    if not flats:
        return node
    over = with_operands(node, lambda operand: use_address_tables(operand, flats, tables))
    return with_indices(over, lambda index: _replace_axes(index, flats, tables))


def _replace_axes(index: Index, flats: Mapping[Var, FlattenedAxis], tables: AddressTables) -> Index:
    for flat in flats.values():
        index = _replace_terms(index, flat, tables)
    plain: dict[Var, IndexLike] = {f.var: f.value for f in flats.values()}
    return substitute(index, plain)


def _replace_terms(index: Index, flat: FlattenedAxis, tables: AddressTables) -> Index:
    """Replace the terms that depend on one flattened axis alone, unless they are a multiple of it."""
    alone = tuple(
        (a, f)
        for a, f in index.terms
        if variables(Index(0, ((a, 1),))) == {flat.var} and not indirects(Index(0, ((a, 1),)))
    )
    if all(isinstance(a, Var) for a, _ in alone):
        return index
    part = Index(0, alone)
    values = tuple(evaluate(part, {flat.var: n}) for n in range(flat.length))
    lowest = min(values)
    name = tables.name_of(tuple(v - lowest for v in values))
    lookup = Indirect(name, (flat.value,), max(values) - lowest + 1, wraps=False)
    return index - part + lowest + Index(0, ((lookup, 1),))
