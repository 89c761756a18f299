"""Row recompute: row operations computed again for each product that reads them.

The products are of one row each:

    r = sum_k x[k] ** 2;  h[k] = x[k] * rsqrt(r);   q[n] = sum_k h[k] * a[n, k];   v[n] = sum_k h[k] * b[n, k]
      ->   r = ...;  h[k] = ...;  q[n] = sum_k h[k] * a[n, k];      s = ...;  g[k] = ...;  v[n] = sum_k g[k] * b[n, k]

Each copy then passes its row to its product in shared memory. The row operation takes all units whose results only
it, and the products, need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attrs import frozen

from ....ir import Statement, rename_statement
from ...statements import DefUse, Programs, Unit, apply, is_plain, rewritten
from ..cut_units import copy_source


@frozen
class RowFamily:
    """Units of a row operation, and the products of its row.

    Copies of the row are among its units.
    """

    units: tuple[Unit, ...]
    products: tuple[Unit, ...]


def row_families(programs: Programs) -> Iterator[RowFamily]:
    """Yield the row operations that several products of one row read."""
    readers: dict[str, set[str]] = {}
    for unit in programs.units:
        for tensor in unit.reads:
            readers.setdefault(tensor, set()).add(unit.name)
    pinned = DefUse.of_programs(programs).pinned
    taken = set[str]()
    for place in range(len(programs.units) - 1, -1, -1):
        copies, products = _readers_of(programs, place)
        if (
            programs.units[place].name in taken
            or len(products) < 2
            or pinned.intersection(programs.units[place].writes)
        ):
            continue
        units = _row_units(programs, {programs.units[place].name, *(u.name for u in copies)}, readers, pinned)
        if any(s.combine is not None for u in units for s in u.statements) and not _meet(programs, products):
            taken |= {u.name for u in units}
            yield RowFamily(tuple(units), tuple(products))


def _readers_of(programs: Programs, place: int) -> tuple[list[Unit], list[Unit]]:
    """Return the copies of a unit's result, and the products of one row that read them; none where others do, too."""
    reached, copies, found = {*programs.units[place].writes}, list[Unit](), list[Unit]()
    for unit in programs.units[place + 1 :] if len(reached) == 1 else ():
        read = reached.intersection(unit.reads)
        if not read:
            continue
        if unit.repeat is None and all(map(copy_source, unit.statements)):
            reached |= {*unit.writes}
            copies.append(unit)
        elif unit.repeat is None and all(
            _is_row_product(s, programs) for s in unit.statements if read & {*s.tensors_read}
        ):
            found.append(unit)
        else:
            return copies, []
    return copies, found


def _meet(programs: Programs, products: Sequence[Unit]) -> bool:
    """Return whether elementwise units combine results of several products, so that one kernel has all of them."""
    reached = {t: {u.name} for u in products for t in u.writes}
    for unit in programs.units:
        if unit.repeat is None and all(s.is_pointwise for s in unit.statements):
            found = set[str]().union(*(reached.get(t, ()) for t in unit.reads))
            if len(found) > 1:
                return True
            reached.update(dict.fromkeys(unit.writes, found) if found else {})
    return False


def _is_row_product(statement: Statement, programs: Programs) -> bool:
    """Return whether a sum reads a whole row for each of many results."""
    sizes = [programs.types[t].size for t in statement.tensors_read]
    terms, results = (prod(v.extent for v in each) for each in (statement.reduce, statement.axes))
    return statement.combine == "sum" and sorted(sizes) == [terms, terms * results] and results > 1


def _row_units(programs: Programs, last: set[str], readers: dict[str, set[str]], pinned: frozenset[str]) -> list[Unit]:
    """Return the units of a row in order: the `last` ones, and those whose results only these need."""
    found = list[Unit]()
    for unit in reversed(programs.units):
        plain = unit.repeat is None and all(map(is_plain, unit.statements)) and not pinned.intersection(unit.writes)
        inside = {u.name for u in found}
        if unit.name in last or (plain and all(readers.get(t) and readers[t] <= inside for t in unit.writes)):
            found.append(unit)
    return found[::-1]


def copy_rows(programs: Programs) -> Programs:
    """Return programs with a row operation for each product."""
    for family in list(row_families(programs)):
        programs = _copy_family(programs, family)
    return programs


def _copy_family(programs: Programs, family: RowFamily) -> Programs:
    """Return programs with copies of a row operation for all products but the first."""
    index = DefUse.of_programs(programs)
    for product in family.products[1:]:
        own = [s for u in family.units for s in u.statements]
        names = {s.target: index.add_tensor(f"{s.target}.again", index.types[s.target]) for s in own}
        current = next(u for u in index.units if u.name == product.name)
        apply(index, {s: [rename_statement(s, names)] for s in current.statements})
        place = next(n for n, u in enumerate(index.units) if u.name == product.name)
        for offset, unit in enumerate(family.units):
            index.insert(place + offset, unit, "again", [rename_statement(s, names) for s in unit.statements])
    return rewritten(programs, index)
