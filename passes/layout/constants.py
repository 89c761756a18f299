"""Orders the dims of constants as units read them.

The reduced dims of those that matrix instructions multiply lie in the order in which the reduced axes run.

    acc[.., k] += x[..] * w[k, c, r, s] over (r, s, c)      ->      a constant stored as [k, r, s, c]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from attrs import evolve

from ...ir import Read, Statement, TensorType, Var, factors, rename_statement, stored_factor
from ..fusion import Order, Programs, Unit, permute, reorder_unit


def order_constants(programs: Programs, products: Iterable[tuple[str, int]]) -> Programs:
    """Return programs whose products read constants in reduction order."""
    units, constants = {unit.name: unit for unit in programs.units}, programs.graph.constants
    wanted = {name: dict(_orders(units[name], product, constants)) for name, product in products}
    return store_constants(programs, wanted)


def store_constants(programs: Programs, wanted: Mapping[str, Mapping[str, Order]]) -> Programs:
    """Return programs with constants stored in another order for some units.

    `wanted` has these units by name; for other units the constants stay as they are.
    """
    graph = programs.graph
    copies = dict.fromkeys((t, order) for orders in wanted.values() for t, order in orders.items() if _moves(order))
    if not copies:
        return programs
    names = {(t, order): f"{t} in order {', '.join(map(str, order))}" for t, order in copies}
    arrays = {name: np.ascontiguousarray(np.transpose(graph.constants[t], o)) for (t, o), name in names.items()}
    types = {names[t, o]: TensorType(programs.types[t].dtype, permute(programs.types[t].shape, o)) for t, o in copies}

    def stored_constant(unit: Unit) -> Unit:
        if unit.repeat is not None:
            inner = tuple(map(stored_constant, unit.repeat.units))
            fresh = dict.fromkeys(t for u in inner for t in u.reads if t in arrays)
            return evolve(unit, reads=(*unit.reads, *fresh), repeat=evolve(unit.repeat, units=inner))
        orders = {t: order for t, order in wanted.get(unit.name, {}).items() if _moves(order)}
        own = {t: names[t, order] for t, order in orders.items()}
        return _rename_tensors(reorder_unit(unit, programs, orders), own) if own else unit

    graph = evolve(graph, constants={**graph.constants, **arrays}, types={**graph.types, **types})
    return evolve(
        programs, graph=graph, units=tuple(map(stored_constant, programs.units)), types={**programs.types, **types}
    )


def _moves(order: Order) -> bool:
    return order != tuple(range(len(order)))


def _orders(unit: Unit, product: int, constants: Collection[str]) -> Iterator[tuple[str, Order]]:
    """Yield the constants that a product reads, each with its new order."""
    statement = unit.statements[product]
    for part in map(stored_factor, factors(statement.body)):
        if isinstance(part, Read) and part.tensor in constants and _reads(unit, part.tensor) == 1:
            yield part.tensor, _order(part, statement)


def _reads(unit: Unit, tensor: str) -> int:
    return sum(read.tensor == tensor for statement in unit.statements for read in statement.reads)


def _order(read: Read, statement: Statement) -> Order:
    """Put the dims that one reduced axis indexes in the order of these; the others stay in place."""
    place = {axis: n for n, axis in enumerate(statement.reduce)}
    moving = [d for d, index in enumerate(read.indices) if _axis(index.terms) in place]
    sorted_ = iter(sorted(moving, key=lambda d: place[_axis(read.indices[d].terms)]))  # type: ignore[index]
    return tuple(next(sorted_) if d in moving else d for d in range(len(read.indices)))


def _axis(terms: tuple[tuple[object, int], ...]) -> Var | None:
    return terms[0][0] if len(terms) == 1 and isinstance(terms[0][0], Var) and terms[0][1] == 1 else None


def _rename_tensors(unit: Unit, names: dict[str, str]) -> Unit:
    statements = tuple(rename_statement(s, names) for s in unit.statements)
    return evolve(unit, statements=statements, reads=tuple(names.get(t, t) for t in unit.reads))
