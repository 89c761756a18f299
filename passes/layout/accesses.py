"""Memory accesses of statements, seen through views, and their instructions.

An instruction moves neighbours in memory: 16 bytes where the address is 1 times a variable plus multiples of 16 bytes,
one element where it is anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod

from attrs import field, frozen

from ...ir import (
    WIDEST_BYTES,
    Index,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_variables,
    factors,
    is_affine,
    linearise,
    reads,
    solve,
    substitute,
    variables,
)
from ..fusion import Order, Programs, Unit, copy_source, permute, unpermute

#: Extra instructions of a factor that lies along its own axes and not along the reduced ones: fragments
#: of numbers of 2 bytes are transposed as a warp loads them, others are loaded number by number, bytes packed so.
TRANSPOSED_COSTS, SCALAR_COST = {2: 0.005, 1: 3.0}, 0.1
#: Extra instructions for each further run of a factor's own axes: addresses take divisions.
RUN_COST = 0.05
#: Bytes of a sector of memory. Elements of a contraction that lie along none of its rows, columns and reduced axes are
#: in a sector each, where others share those of neighbouring lanes.
SECTOR_BYTES = 32
#: Accesses that touch less than one part in `MINOR_ACCESS_RATIO` of the largest access of a statement follow its order.
MINOR_ACCESS_RATIO = 8


@frozen
class Access:
    """`count` accesses to the elements `indices` of a tensor.

    `own` are the axes along which a factor lies that the other factor does not have; all axes of the statement where
    the tensor is no factor.
    """

    tensor: str
    indices: tuple[Index, ...]
    count: int
    own: tuple[Var, ...]


@frozen(eq=False)
class StatementAccesses:
    """A statement with its accesses, the write last.

    In a `product` every access may run along an axis of its own.
    """

    statement: Statement
    accesses: tuple[Access, ...]
    product: bool


@frozen
class Aliases:
    """Copies that are views.

    Each has the tensor that it shows and the element of that tensor for its element at `dims`.
    """

    types: Mapping[str, TensorType]
    shown: Mapping[str, tuple[str, tuple[Index, ...]]]

    def element(self, tensor: str, indices: Sequence[Index]) -> tuple[str, tuple[Index, ...]]:
        """Return the element of underlying memory for an element of a view."""
        *_, found = (tensor, tuple(indices)), *self.chain(tensor, indices)
        return found

    def chain(self, tensor: str, indices: Sequence[Index]) -> Iterator[tuple[str, tuple[Index, ...]]]:
        """Yield the tensors that a view shows, and its element in each."""
        while tensor in self.shown:
            dims = dims_of(self.types[tensor])
            tensor, inner = self.shown[tensor]
            indices = _substitute_all(inner, dims, tuple(indices))
            yield tensor, indices


@lru_cache(maxsize=1 << 12)
def _substitute_all(inner: tuple[Index, ...], dims: tuple[Var, ...], indices: tuple[Index, ...]) -> tuple[Index, ...]:
    values = dict(zip(dims, indices, strict=True))
    return tuple(substitute(i, values) for i in inner)


@lru_cache(maxsize=1 << 12)
def dims_of(type_: TensorType) -> tuple[Var, ...]:
    """Return variables for the dims of a tensor."""
    return tuple(Var(f"d{n}", extent) for n, extent in enumerate(type_.shape))


def find_aliases(programs: Programs) -> Aliases:
    """Return the copies that views may stand for."""
    types, shown = programs.types, {}
    for unit in programs.units:
        shows = unit.repeat is None and not unit.hoisted and len(unit.statements) == 1
        if shows and unit.writes[0] not in programs.graph.outputs:
            (statement,) = unit.statements
            read = copy_source(statement)
            inner = _inverse(statement, read, types[statement.target], types[read.tensor]) if read is not None else None
            if read is not None and inner is not None:
                shown[statement.target] = read.tensor, inner
    return Aliases(types, shown)


def _inverse(statement: Statement, read: Read, type_: TensorType, source: TensorType) -> tuple[Index, ...] | None:
    """Return the read of a copy for an element of its result, by the types of the result and of its source; None where
    no strides over the shape of the result show it.
    """
    return _inverse_of(statement.axes, statement.write, read.indices, type_, source)


@lru_cache(maxsize=1 << 10)
def _inverse_of(
    axes: tuple[Var, ...],
    write: tuple[Index, ...],
    indices: tuple[Index, ...],
    type_: TensorType,
    source: TensorType,
) -> tuple[Index, ...] | None:
    found = solve([(w, as_index(d)) for w, d in zip(write, dims_of(type_), strict=True)], axes)
    if found is None or found.guards or found.free:
        return None
    inner = tuple(substitute(i, found.values) for i in indices)
    return inner if is_affine(linearise(inner, source.strides)) else None


def lines_of(unit: Unit, aliases: Aliases, products: Collection[int]) -> Iterator[StatementAccesses]:
    """Yield the statements of a unit with their accesses.

    `products` are the positions of contractions that matrix instructions compute.
    """
    for number, statement in enumerate(unit.statements):
        product = number in products
        every = (*statement.axes, *statement.reduce)
        parts = factors(statement.body) if product else (statement.body,)
        shared = frozenset.intersection(*(expr_variables(p) for p in parts)) if product else frozenset()
        found = []
        for part in parts:
            axes = expr_variables(part) - shared if product else ()
            own = tuple(a for a in statement.axes if a in axes) if product else every
            found += [_access(r.tensor, r.indices, own, aliases, product) for r in reads(part)]
        single = tuple(a for a in statement.axes if a not in shared) if product else every
        found.append(_access(statement.target, statement.write, single, aliases, False))
        yield StatementAccesses(statement, tuple(found), product)


def _access(tensor: str, indices: Sequence[Index], own: tuple[Var, ...], aliases: Aliases, again: bool) -> Access:
    """Return an access; a factor is fetched `again` for each tap, all else once."""
    root, inner = aliases.element(tensor, indices)
    steps = _steps_of(inner)
    return Access(root, inner, steps if again else min(steps, aliases.types[root].size), own)


@lru_cache(maxsize=1 << 12)
def _steps_of(indices: tuple[Index, ...]) -> int:
    """Return the number of values of all variables of indices."""
    return prod(v.extent for v in frozenset().union(*map(variables, indices), frozenset()))


@frozen
class InstructionCosts:
    """Counts instructions of statements for given orders of dims.

    Tensors without an order keep their dims as they are.
    """

    types: Mapping[str, TensorType]
    addresses: dict[tuple[TensorType, tuple[Index, ...], Order | None], Index] = field(factory=dict)
    known: dict[tuple[int, tuple[Order | None, ...]], float] = field(factory=dict)
    forms: dict[StatementAccesses, int] = field(factory=dict)
    numbers: dict[Hashable, int] = field(factory=dict)

    def address(self, access: Access, orders: Mapping[str, Order]) -> Index:
        """Return the address of an element, in elements."""
        key = self.types[access.tensor], access.indices, orders.get(access.tensor)
        if key not in self.addresses:
            self.addresses[key] = linearise(access.indices, steps(key[0], key[2]))
        return self.addresses[key]

    def least(self, access: Access) -> float:
        """Return the instructions of an access if each one moves 16 bytes."""
        return access.count * self.types[access.tensor].dtype.size / WIDEST_BYTES

    def of(self, line: StatementAccesses, orders: Mapping[str, Order]) -> float:
        """Return the instructions of a statement.

        Equal statements, but for names, are counted once for the same orders.
        """
        key = self._form(line), tuple(orders.get(a.tensor) for a in line.accesses)
        if key not in self.known:
            self.known[key] = self._count(line, orders)
        return self.known[key]

    def _form(self, line: StatementAccesses) -> int:
        """Return the number of the facts of a statement that decide its instructions."""
        if line not in self.forms:
            accesses = tuple((self.types[a.tensor], a.indices, a.count, a.own) for a in line.accesses)
            own = line.statement
            facts = own.axes, own.reduce, line.product, accesses
            self.forms[line] = self.numbers.setdefault(facts, len(self.numbers))
        return self.forms[line]

    def _count(self, line: StatementAccesses, orders: Mapping[str, Order]) -> float:
        found = [(a, self.address(a, orders)) for a in line.accesses]
        if not line.product:
            most = max(a.count for a in line.accesses)
            found = [(a, address) for a, address in found if a.count * MINOR_ACCESS_RATIO > most]
            every = (*line.statement.axes, *line.statement.reduce)
            return min((sum(self._instructions_along(v, *one) for one in found) for v in every), default=0.0)
        *fetched, (stored, target) = found
        total = min((self._instructions_along(v, stored, target) for v in stored.own), default=float(stored.count))
        total *= self._sectors(stored.tensor, stored.own, target)
        return total + sum(self._fetch_cost(a, address, line.statement.reduce) for a, address in fetched)

    def _fetch_cost(self, access: Access, address: Index, reduce: Sequence[Var]) -> float:
        """Return the instructions that fetch a factor: along a reduced axis, or along its own axis with the nearest
        neighbours, as its rows or columns come in that order.
        """
        rows = [a for a in by_step(access.own, address) if a.extent > 1]
        counts = [self._instructions_along(v, access, address) for v in reduce]
        across = TRANSPOSED_COSTS.get(self.types[access.tensor].dtype.size, SCALAR_COST)
        counts += [self._instructions_along(v, access, address) * (1 + across) for v in rows[-1:]]
        found = min(counts, default=float(access.count)) * (1 + RUN_COST * (_runs(rows, address) - 1))
        return found * self._sectors(access.tensor, (*access.own, *reduce), address)

    def _sectors(self, tensor: str, axes: Iterable[Var], address: Index) -> float:
        """Return the cost of an element beside one whose neighbours along an axis are neighbours in memory."""
        moving = [abs(address.coefficient(a)) for a in axes if a.extent > 1]
        near = 1 in moving or not moving or not is_affine(address)
        return 1.0 if near else SECTOR_BYTES / self.types[tensor].dtype.size

    def _instructions_along(self, var: Var, access: Access, address: Index) -> float:
        """Return the instructions of an access if each one moves elements along one variable."""
        type_ = self.types[access.tensor]
        return access.count / elements_per_instruction(address, var, type_.dtype.size, bool(type_.pitch))


def steps(type_: TensorType, order: Order | None) -> tuple[int, ...]:
    """Return the stride of each dim for an order of dims."""
    if order is None:
        return type_.strides
    return unpermute(TensorType(type_.dtype, permute(type_.shape, order)).strides, order)


def elements_per_instruction(address: Index, var: Var, nbytes: int, padded: bool = False) -> int:
    """Return the neighbours along a variable that one instruction moves.

    Elements have `nbytes` bytes each. A box of a tensor map ends anywhere in a row that is `padded`.
    """
    others = [(atom, factor) for atom, factor in address.terms if atom != var]
    if address.coefficient(var) != 1 or any(var in variables(Index(0, ((a, 1),))) for a, _ in others):
        return 1
    extent = 0 if padded else var.extent
    return gcd(WIDEST_BYTES // nbytes, address.const, extent, *(factor for _, factor in others))


def _runs(axes: Iterable[Var], address: Index) -> int:
    """Return the number of runs that axes form in memory, each continuing the one before it."""
    moving = sorted(((address.coefficient(a), a.extent) for a in axes if a.extent > 1), reverse=True)
    joined = sum(outer == inner * extent for (outer, _), (inner, extent) in pairwise(moving))
    return max(1, len(moving) - joined)


def by_step(axes: Sequence[Var], address: Index) -> tuple[Var, ...]:
    """Return axes by stride, the nearest neighbours last.

    The order stays where an axis does not move the address linearly.
    """
    moves = {a: abs(address.coefficient(a)) for a in axes if a.extent > 1}
    if not is_affine(address) or 0 in moves.values():
        return tuple(axes)
    return tuple(sorted(axes, key=lambda a: -moves.get(a, 1 << 62)))
