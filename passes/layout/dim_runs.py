"""Runs: dims that concatenate several dims of another tensor.

An example are the tiles of all images that one product multiplies:

    tiles[a, b, c, 16*n + 4*p + q] = v[a, b, c, n, p, q]         m[a, b, k, n, p, q] = products[a, b, k, 16*n + 4*p + q]

Only the copies that make and read such a dim depend on the order of its elements, so its outermost part may be its
innermost one as well. Then the tensors that it is made from may lie with their images innermost, and the copies stay
views:

    tiles[a, b, c, 32*p + 8*q + n] = v[a, b, c, p, q, n]         m[a, b, k, p, q, n] = products[a, b, k, 32*p + 8*q + n]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from ...ir import Expr, Index, Read, Statement, Var, as_index, distinct, reads, rebuild, variables
from ..fusion import Order, Programs, copy_source, reorder
from .accesses import InstructionCosts, StatementAccesses
from .components import Dim, merge_overlapping

#: An access: the tensor, and its indices.
Indices = tuple[str, tuple[Index, ...]]


@frozen
class Run:
    """Dims that are the same run of other dims, numbered equally.

    `outer` is the extent of their outermost part, `made` are the dims of other tensors that this part is.
    """

    dims: frozenset[Dim]
    outer: int
    made: frozenset[Dim]

    def rotate(self, index: Index) -> Index:
        """Return an index of the run after its outermost part becomes innermost."""
        axis, factor = _outermost(index)
        return self.outer * (index - factor * as_index(axis)) + axis

    def lies_well(
        self,
        touching: Mapping[str, Collection[StatementAccesses]],
        costs: InstructionCosts,
        orders: Mapping[str, Order],
    ) -> bool:
        """Return whether accesses along its rotated innermost part move neighbours.

        `touching` are the statements that access each tensor. All operands of such a statement have to lie along it.
        """
        tensors = {tensor for tensor, _ in (*self.dims, *self.made)}
        for line in {line: None for tensor in tensors for line in touching.get(tensor, ())}:
            addresses = [(access.tensor in tensors, costs.address(access, orders)) for access in line.accesses]
            own = [atom for mine, index in addresses if mine for atom, step in index.terms if step == 1]
            axes = {atom for atom in own if isinstance(atom, Var) and atom.extent == self.outer}
            if any(abs(address.coefficient(axis)) > 1 for axis in axes for _, address in addresses):
                return False
        return True


def find_runs(programs: Programs, fixed: Collection[str]) -> Iterator[Run]:
    """Yield the runs whose elements may be numbered in another order.

    Their tensors are not fixed; only copies between a run and its parts, and statements that run along it, touch them.
    """
    statements = [s for unit in programs.units if unit.repeat is None for s in unit.statements]
    blocked = {*fixed, *(t for unit in programs.units if unit.repeat is not None for t in unit.tensors)}
    same: list[Sequence[Dim]] = []
    found: dict[Dim, list[tuple[Statement, Index]]] = {}
    for statement in statements:
        along: dict[Var, list[Dim]] = {}
        for tensor, indices in _accesses(statement):
            for d, index in enumerate(indices):
                found.setdefault((tensor, d), []).append((statement, index))
                if (axis := _lone_variable(index)) is not None:
                    along.setdefault(axis, []).append((tensor, d))
        same += along.values()
    for dims in map(frozenset, merge_overlapping([*same, *((dim,) for dim in found)])):
        if blocked.isdisjoint(tensor for tensor, _ in dims):
            run = _run(dims, programs, [use for dim in dims for use in found[dim]])
            if run is not None and blocked.isdisjoint(tensor for tensor, _ in run.made):
                yield run


def rotate_runs(programs: Programs, runs: Sequence[Run]) -> Programs:
    """Return programs with the outermost part of some runs innermost.

    The dims that a run is made of follow.
    """
    home = {dim: run for run in runs for dim in run.dims}
    touched = {tensor for tensor, _ in home}
    units = tuple(
        unit
        if touched.isdisjoint(unit.tensors)
        else evolve(unit, statements=tuple(_rotate_statement(s, home) for s in unit.statements))
        for unit in programs.units
    )
    orders: dict[str, Order] = {}
    for tensor, dim in sorted(dim for run in runs for dim in run.made):
        rank = len(programs.types[tensor].shape)
        orders[tensor] = (*(d for d in range(rank) if d != dim), dim)
    return reorder(evolve(programs, units=units), orders)


def _accesses(statement: Statement) -> Iterator[Indices]:
    yield statement.target, statement.write
    for read in reads(statement.body):
        yield read.tensor, read.indices


def _lone_variable(index: Index) -> Var | None:
    """Return the variable that an index is."""
    found = [atom for atom, factor in index.terms if factor == 1]
    return found[0] if len(index.terms) == 1 == len(found) and not index.const and isinstance(found[0], Var) else None


def _is_sum(index: Index) -> bool:
    return bool(index.terms) and not index.const and all(isinstance(a, Var) and f > 0 for a, f in index.terms)


def _outermost(index: Index) -> tuple[Var, int]:
    """Return the axis that moves an index furthest, and how far; it is a sum of multiples of axes."""
    return max(((a, f) for a, f in index.terms if isinstance(a, Var)), key=lambda pair: pair[1])


def _run(dims: frozenset[Dim], programs: Programs, uses: Sequence[tuple[Statement, Index]]) -> Run | None:
    """Return the run that some dims are, None where a statement needs the order of its elements."""
    extents = {programs.types[tensor].shape[d] for tensor, d in dims}
    parts: set[int] = set()
    made: set[Dim] = set()
    spread = [(statement, index) for statement, index in uses if _lone_variable(index) is None]
    if not spread:
        return None
    for statement, index in spread:
        if copy_source(statement) is None or not _is_sum(index):
            return None
        axis, factor = _outermost(index)
        if extents != {factor * axis.extent} or factor < 2 or axis.extent < 2:
            return None
        others = [(t, d, i) for t, indices in _accesses(statement) for d, i in enumerate(indices) if (t, d) not in dims]
        places = [(t, d) for t, d, i in others if _lone_variable(i) == axis]
        if len(places) != 1 or any(axis in variables(i) for t, d, i in others if (t, d) not in places):
            return None
        parts.add(axis.extent)
        made.add(places[0])
    if len(parts) > 1 or any(_has_other_use(s, own, dims) for s, i in uses if (own := _lone_variable(i)) is not None):
        return None
    return Run(dims, parts.pop(), frozenset(made))


def _has_other_use(statement: Statement, axis: Var, dims: Collection[Dim]) -> bool:
    """Return whether a statement uses an axis for more than to run along some dims."""
    if any(axis in variables(i) for t, each in _accesses(statement) for d, i in enumerate(each) if (t, d) not in dims):
        return True
    return any(axis in variables(i) for node in distinct(statement.body) for i in _other_indices(node))


def _other_indices(node: Expr) -> Sequence[Index]:
    """Return the indices of a node outside of its accesses: operands of its arithmetic and its guards."""
    return [guard.index for guard in node.guards] if isinstance(node, Read) else node.own_indices


def _rotate_statement(statement: Statement, home: Mapping[Dim, Run]) -> Statement:
    def rotate_access(tensor: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        def one(d: int, index: Index) -> Index:
            run = home.get((tensor, d))
            return index if run is None or _lone_variable(index) is not None else run.rotate(index)

        return tuple(one(d, index) for d, index in enumerate(indices))

    def read(node: Expr) -> Expr:
        return evolve(node, indices=rotate_access(node.tensor, node.indices)) if isinstance(node, Read) else node

    if copy_source(statement) is None:
        return statement
    return evolve(statement, write=rotate_access(statement.target, statement.write), body=rebuild(statement.body, read))
