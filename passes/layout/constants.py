"""Constants that atoms multiply: their reduced dims lie in the order in which the reduced axes run.

acc[.., k] += x[..] * w[k, c, r, s] over (r, s, c)      ->      a constant stored as [k, r, s, c]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
from attrs import evolve

from ...ir import Array, Read, Statement, TensorType, Var, factors, narrow
from ..fusion import Order, Programs, Unit, rename_statement, reorder


def order_constants(programs: Programs, products: Iterable[tuple[str, int]]) -> Programs:
    """Return programs whose products read constants in the order of their reduced axes."""
    graph, wanted = programs.graph, dict(products)
    arrays: dict[str, Array] = {}
    orders: dict[str, Order] = {}
    types: dict[str, TensorType] = {}
    units = []
    for unit in programs.units:
        names: dict[str, str] = {}
        for tensor, order in _orders(unit, wanted[unit.name], graph.constants) if unit.name in wanted else ():
            names[tensor] = new = f"{tensor} with dims {', '.join(map(str, order))}"
            if new not in arrays:
                arrays[new] = np.ascontiguousarray(np.transpose(graph.constants[tensor], order))
                orders[new], types[new] = order, programs.types[tensor]
        units.append(_renamed(unit, names) if names else unit)
    if not arrays:
        return programs
    before = evolve(programs, units=tuple(units), types={**programs.types, **types})
    stored = reorder(before, orders)
    own = {new: stored.types[new] for new in arrays}
    graph = evolve(graph, constants={**graph.constants, **arrays}, types={**graph.types, **own})
    return evolve(stored, graph=graph, orders=programs.orders)


def _orders(unit: Unit, product: int, constants: Collection[str]) -> Iterator[tuple[str, Order]]:
    """Yield the constants that a product reads, each with the order that it shall lie in where that is another one."""
    statement = unit.statements[product]
    for part in map(narrow, factors(statement.body)):
        if isinstance(part, Read) and part.tensor in constants and _reads(unit, part.tensor) == 1:
            order = _order(part, statement)
            if order != tuple(range(len(order))):
                yield part.tensor, order


def _reads(unit: Unit, tensor: str) -> int:
    return sum(read.tensor == tensor for statement in unit.statements for read in statement.reads)


def _order(read: Read, statement: Statement) -> Order:
    """Put the dims that one reduced axis indexes in the order of these; the others stay where they are."""
    place = {axis: n for n, axis in enumerate(statement.reduce)}
    moving = [d for d, index in enumerate(read.indices) if _axis(index.terms) in place]
    sorted_ = iter(sorted(moving, key=lambda d: place[_axis(read.indices[d].terms)]))  # type: ignore[index]
    return tuple(next(sorted_) if d in moving else d for d in range(len(read.indices)))


def _axis(terms: tuple[tuple[object, int], ...]) -> Var | None:
    return terms[0][0] if len(terms) == 1 and isinstance(terms[0][0], Var) and terms[0][1] == 1 else None


def _renamed(unit: Unit, names: dict[str, str]) -> Unit:
    statements = tuple(rename_statement(s, names) for s in unit.statements)
    return evolve(unit, statements=statements, reads=tuple(names.get(t, t) for t in unit.reads))
