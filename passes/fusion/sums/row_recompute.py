"""Row recompute: row operations computed again for each product that reads them.

The products are of one row each:

    r = sum_k x[k] ** 2;  h[k] = x[k] * rsqrt(r);   q[n] = sum_k h[k] * a[n, k];   v[n] = sum_k h[k] * b[n, k]
      ->   r = ...;  h[k] = ...;  q[n] = sum_k h[k] * a[n, k];      s = ...;  g[k] = ...;  v[n] = sum_k g[k] * b[n, k]

Each copy then passes its row to its product in shared memory. The row operation takes all units whose results only
it, and the products, need.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    rows = _Rows.of(programs)
    taken = set[str]()
    for place in range(len(programs.units) - 1, -1, -1):
        unit = programs.units[place]
        if unit.name in taken or rows.pinned.intersection(unit.writes):
            continue
        copies, products = rows.readers_of(unit)
        if len(products) < 2:
            continue
        units = rows.units_of({place, *copies})
        if any(s.combine is not None for u in units for s in u.statements) and not rows.meet(products):
            taken |= {u.name for u in units}
            yield RowFamily(units, tuple(programs.units[n] for n in products))


@frozen
class _Rows:
    """Units by place, with the places that read and write each tensor."""

    programs: Programs
    readers: Mapping[str, Sequence[int]]
    writers: Mapping[str, Sequence[int]]
    pinned: frozenset[str]

    @classmethod
    def of(cls, programs: Programs) -> _Rows:
        """Return the rows of programs."""
        readers: dict[str, list[int]] = {}
        writers: dict[str, list[int]] = {}
        for place, unit in enumerate(programs.units):
            for found, tensors in ((readers, unit.reads), (writers, unit.writes)):
                for tensor in dict.fromkeys(tensors):
                    found.setdefault(tensor, []).append(place)
        return cls(programs, readers, writers, DefUse.of_programs(programs).pinned)

    def readers_of(self, unit: Unit) -> tuple[list[int], list[int]]:
        """Return the copies of a unit's result, and their products.

        There are no products where other units read them, too."""
        copies, found, reached, pending = list[int](), list[int](), set[str](), [*unit.writes]
        if len(pending) != 1:
            return copies, found
        while pending:
            reached.add(tensor := pending.pop())
            for place in self.readers.get(tensor, ()):
                reader = self.programs.units[place]
                if reader.repeat is None and all(map(copy_source, reader.statements)):
                    copies.append(place)
                    pending += reader.writes
                else:
                    found.append(place)
        products = sorted({*found})
        plain = all(self._multiplies_row(self.programs.units[place], frozenset(reached)) for place in products)
        return copies, products if plain else []

    def _multiplies_row(self, unit: Unit, reached: frozenset[str]) -> bool:
        own = [s for s in unit.statements if not reached.isdisjoint(s.tensors_read)]
        return unit.repeat is None and all(_is_row_product(s, self.programs) for s in own)

    def meet(self, products: Sequence[int]) -> bool:
        """Return whether elementwise units combine results of several products.

        One kernel has all of these.
        """
        units = self.programs.units
        reached = {t: {place} for place in products for t in units[place].writes}
        pending = sorted({n for t in reached for n in self.readers.get(t, ())})
        seen = {*pending}
        while pending:
            unit = units[place := heapq.heappop(pending)]
            if unit.repeat is not None or not all(s.is_pointwise for s in unit.statements):
                continue
            found = set[int]().union(*(reached.get(t, ()) for t in unit.reads))
            if len(found) > 1:
                return True
            reached.update(dict.fromkeys(unit.writes, found))
            for later in {n for t in unit.writes for n in self.readers.get(t, ()) if n > place} - seen:
                seen.add(later)
                heapq.heappush(pending, later)
        return False

    def units_of(self, last: Collection[int]) -> tuple[Unit, ...]:
        """Return the `last` units of a row with their own producers."""
        found, pending = set[int](), [-place for place in last]
        heapq.heapify(pending)
        while pending:
            place = -heapq.heappop(pending)
            unit = self.programs.units[place]
            if place in found or not (place in last or self._is_needed_within(unit, found)):
                continue
            found.add(place)
            for writer in (n for t in unit.reads for n in self.writers.get(t, ()) if n < place):
                heapq.heappush(pending, -writer)
        return tuple(self.programs.units[place] for place in sorted(found))

    def _is_needed_within(self, unit: Unit, places: Collection[int]) -> bool:
        plain = unit.repeat is None and all(map(is_plain, unit.statements)) and self.pinned.isdisjoint(unit.writes)
        return plain and all(self.readers.get(t) and {*self.readers[t]} <= {*places} for t in unit.writes)


def _is_row_product(statement: Statement, programs: Programs) -> bool:
    """Return whether a sum reads a whole row for each of many results."""
    sizes = [programs.types[t].size for t in statement.tensors_read]
    terms, results = (prod(v.extent for v in each) for each in (statement.reduce, statement.axes))
    return statement.combine == "sum" and sorted(sizes) == [terms, terms * results] and results > 1


def copy_rows(programs: Programs) -> Programs:
    """Return programs with a row operation for each product.

    The first product keeps the given one.
    """
    families = list(row_families(programs))
    index = DefUse.of_programs(programs)
    for family in families:
        for product in family.products[1:]:
            _copy_row(index, family.units, product.name)
    return rewritten(programs, index) if families else programs


def _copy_row(index: DefUse, units: Sequence[Unit], product: str) -> None:
    """Copy a row operation for a product."""
    own = [s for u in units for s in u.statements]
    names = {s.target: index.add_tensor(f"{s.target}.again", index.types[s.target]) for s in own}
    current = next(u for u in index.units if u.name == product)
    apply(index, {s: [rename_statement(s, names)] for s in current.statements})
    place = next(n for n, u in enumerate(index.units) if u.name == product)
    for offset, unit in enumerate(units):
        index.insert(place + offset, unit, "again", [rename_statement(s, names) for s in unit.statements])
