"""Layouts of factors of contractions without matrix instructions.

    y[m, n] = sum x[m, k] * w[k, n] over k      ->      x in the order (k, m)

A factor is read fastest along its own axis. Registers accumulate an outer product: of x a few neighbouring m, of w a
few neighbouring n for each k. Where x lies along k, its fetch transposes each tile word by word, which takes a
twentieth longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf, prod
from typing import TypeAlias

from attrs import field, frozen

from ...ir import CostCoefficients, Index, Statement, Target, Var, expr_variables, factors, reads, variables
from ..fusion import Order, Programs
from .accesses import Access, InstructionCosts, StatementAccesses
from .components import Component, Dim

#: Statements by unit and position.
Place: TypeAlias = tuple[str, int]

#: Extra cost of an access without neighbours in memory: a sector for each number.
SCATTERED_ACCESS_COST = 8
#: Least saving of another order of a component, as part of the time of its products.
MIN_SAVING = 0.02
#: Fewest results for each SM with which products occupy all SMs.
MIN_RESULTS_PER_SM = 64 * 64


def number_products(programs: Programs) -> Iterator[Place]:
    """Yield the contractions of two factors, each with axes of its own."""
    for unit in programs.units:
        for n, statement in enumerate(unit.statements if unit.repeat is None else ()):
            if _own_extent(statement):
                yield unit.name, n


def _own_extent(statement: Statement) -> int:
    """Return how many results each product of matrices in a statement has, 0 where it is none."""
    parts = factors(statement.body)
    if statement.combine != "sum" or len(parts) != 2 or not all(any(reads(part)) for part in parts):
        return 0
    left, right = (expr_variables(part) for part in parts)
    own = [axis for axis in statement.axes if (axis in left) != (axis in right)]
    outer = any(axis in left for axis in own) and any(axis in right for axis in own)
    return prod(axis.extent for axis in own) if outer and not (left & right).isdisjoint(statement.reduce) else 0


def shared_dims(lines: Iterable[StatementAccesses], given: Collection[str]) -> frozenset[Dim]:
    """Return the batch dims of products.

    Their neighbours share nothing: no thread multiplies one number of one product by many of
    another. `given` are constants.
    """
    found: set[Dim] = set()
    for line in lines:
        accesses = [a for a in line.accesses[:-1] if a.tensor not in given]
        if len(accesses) == 2 and _own_extent(line.statement):
            left, right = (expr_variables(part) for part in factors(line.statement.body))
            shared = left & right & frozenset(line.statement.axes)
            dims = ((a.tensor, d, frozenset(variables(i))) for a in accesses for d, i in enumerate(a.indices))
            found |= {(tensor, d) for tensor, d, moving in dims if shared & moving}
    return frozenset(found)


@frozen
class NumberCosts(InstructionCosts):
    """Instructions where threads multiply numbers."""

    costs: CostCoefficients = field(kw_only=True)

    def _count(self, line: StatementAccesses, orders: Mapping[str, Order]) -> float:
        if not line.product:
            rows = self._rows(line, orders) if line.statement.reduce else 1.0
            return rows * super()._count(line, orders)
        *fetched, (stored, target) = [(a, self.address(a, orders)) for a in line.accesses]
        total = min((self._instructions_along(v, stored, target) for v in stored.own), default=float(stored.count))
        depth = self.costs.along_depth / self.costs.multiplications * multiplications(line)
        return total + sum(self._factor(a, address, line.statement.reduce, depth) for a, address in fetched)

    def _instructions_along(self, var: Var, access: Access, address: Index) -> float:
        steps = any(var in variables(Index(0, (term,))) for term in address.terms)
        is_scattered = steps and address.coefficient(var) != 1
        return (
            float(SCATTERED_ACCESS_COST * access.count)
            if is_scattered
            else super()._instructions_along(var, access, address)
        )

    def _rows(self, line: StatementAccesses, orders: Mapping[str, Order]) -> float:
        """Return the factor by which a sum takes longer for the layout of its rows."""
        largest = max(line.accesses[:-1], key=lambda a: a.count, default=None)
        held = largest is None or any(self.address(largest, orders).coefficient(r) == 1 for r in line.statement.reduce)
        return 1.0 if held else self.costs.across_rows  # no lanes hold rows across memory

    def _factor(self, access: Access, address: Index, reduce: Iterable[Var], depth: float) -> float:
        """Return the instructions that fetch a factor, along an axis of its own or along the depth."""
        own = min((self._instructions_along(v, access, address) for v in access.own), default=inf)
        return min(own, min((self._instructions_along(v, access, address) for v in reduce), default=inf) + depth)


def is_between(part: Component, given: Collection[str], target: Target) -> bool:
    """Return whether a component lies between large products.

    The products keep all SMs busy with arithmetic, each with one factor of those `given`, which may lie in any order.
    """
    products = [line for line in part.lines if line.product]
    large = all(is_large(line.statement, target) for line in products)
    return bool(products) and large and all(any(a.tensor in given for a in line.accesses[:-1]) for line in products)


def is_large(product: Statement, target: Target) -> bool:
    """Return whether a product of matrices has results for all SMs."""
    return _own_extent(product) >= target.NUM_SM * MIN_RESULTS_PER_SM


def multiplications(line: StatementAccesses) -> int:
    """Return how many numbers a product multiplies."""
    return prod(v.extent for v in (*line.statement.axes, *line.statement.reduce))


def worth(part: Component, costs: CostCoefficients) -> float:
    """Return the instructions that another order of a component has to save."""
    return MIN_SAVING / costs.multiplications * sum(multiplications(line) for line in part.lines if line.product)
