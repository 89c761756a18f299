"""Contraction recompute: contractions are computed again for each group of readers.

Scores of attention are as many numbers as pairs of positions, made of two rows of a few numbers each. Stored, they are
written once and read by each consumer; recomputed, they pass from product to product in shared memory:

    s = q k;    w = exp(s - m) / t;    g = x v;    d = w * (g - h);    a = d k;    b = d' q;    c = w' x
      ->   s.1 = q k;   g.1 = x v;   d.1 = exp(s.1 - m) / t * (g.1 - h);               a = d.1 k
           s.2 = q k;   g.2 = x v;   w.2 = exp(s.2 - m) / t;   d.2 = w.2 * (g.2 - h);   b = d.2' q;   c = w.2' x

Readers that reduce the same side of the tile share the recomputed products, if their results have equal shapes. Or one
recomputation serves all of them, and d and w are stored: then at least s and g are not. Stored in any case are sums
over rows of one product's results (m and t), made where these are first multiplied, and sums over several products'
(h), which become sums over rows of the operands of those (`interchange_sums`). Where any other statement reads a tensor
that would be recomputed, that is stored anyway, and everything stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Literal

from attrs import evolve, field, frozen

from ....ir import Read, Reduction, Statement, Var, is_contraction, rebuild, rename_statement, variables
from ....ops.language import unused_name
from ...statements import DefUse, Edit, NewUnit, Programs, apply, is_plain, rewritten
from ..legality import Policy
from .check_units import find_ungroupable
from .sum_interchange import interchange_sums, same_sum

_LOG = logging.getLogger("cuts.passes")
#: Least ratio of the sizes of recomputed tensors and of stored sums over rows.
MIN_SIZE_RATIO = 16
#: Most terms of a recomputed product, and most statements between it and its readers.
MAX_TERMS, MAX_STATEMENTS = 256, 16


@frozen
class TileReader:
    """A product that reads recomputed tensors.

    `along` has the contractions that its operand is computed from, each with the dims of its results that the reader
    sums over, `definitions` all statements that compute the operand.
    """

    statement: Statement
    along: Mapping[str, frozenset[int]] = field(hash=False)
    definitions: tuple[Statement, ...]

    @property
    def products(self) -> frozenset[str]:
        """The contractions that the operand is computed from."""
        return frozenset(self.along)

    def is_similar(self, other: TileReader) -> bool:
        """Return whether another reader may share the recomputed products of this one."""
        extents = ([v.extent for v in r.statement.axes] for r in (self, other))
        common = self.products & other.products
        return bool(common) and all(self.along[p] == other.along[p] for p in common) and next(extents) == next(extents)


@frozen
class Family:
    """Contractions with the readers for which they are recomputed.

    The products `consumers` read elementwise results of them; `sums` are stored sums over rows.
    """

    consumers: tuple[TileReader, ...]
    sums: tuple[TileReader, ...]

    @property
    def products(self) -> frozenset[str]:
        """The results of products that are recomputed."""
        return frozenset(p for reader in self.consumers for p in reader.products)

    @property
    def recomputed(self) -> frozenset[str]:
        """The tensors that need not be stored."""
        return frozenset(s.target for reader in (*self.consumers, *self.sums) for s in reader.definitions)


#: Choice for a family: its products are stored, recomputed once, or recomputed for the readers of each side.
RecomputeChoice = Literal["keep", "once", "each"]


def recompute_contractions(
    programs: Programs, way: Callable[[Family], RecomputeChoice] = lambda family: "each"
) -> Programs:
    """Return programs in which products of some families are recomputed for readers."""
    found = programs
    for family in _families(DefUse.of_programs(programs)):
        if (chosen := way(family)) == "keep":
            continue
        new = _recompute(found, family, chosen == "each")
        if (unit := find_ungroupable(found, new)) is None:
            found = new
        else:
            _LOG.info("cuts: products %s are not computed again: %s", ", ".join(sorted(family.products)), unit.text)
    return found


# ---- matching


def _families(index: DefUse) -> list[Family]:
    """Return the families of an index."""
    every = [s for u in index.units for s in u.statements]
    failed = set[tuple[str, int]]()
    consumers = [r for s in every if _multiplies(s) and (r := _reader(s, index, failed)) is not None]
    found: dict[int, list[TileReader]] = {}
    home: dict[str, int] = {}
    for number, reader in enumerate(consumers):
        similar = sorted({home[product] for product in reader.products if product in home})
        found[number] = [*(r for n in similar for r in found.pop(n)), reader]
        home.update((product, number) for r in found[number] for product in r.products)
    complete = (_family(readers, every, index) for readers in found.values() if len(readers) > 1)
    return [family for family in complete if family is not None]


def _reader(statement: Statement, index: DefUse, failed: set[tuple[str, int]]) -> TileReader | None:
    """Return the reader if an operand of the statement is computed elementwise from contractions of few terms."""
    for read in statement.reads:
        summed = any(variables(i) & {*statement.reduce} for i in read.indices)
        made = _definitions(read.tensor, index, failed) if summed and not read.guards else None
        along = _summed_dims([read], statement.reduce, made) if made else {}
        if made and along and len(along) <= Policy().together:
            return TileReader(statement, along, tuple(made))
    return None


def _summed_dims(found: Iterable[Read], reduce: Iterable[Var], made: Iterable[Statement]) -> dict[str, frozenset[int]]:
    """Return the dims of contractions' results that some reads sum over, through the statements `made` of them.

    Transposed and reshaped copies have other dims than the results that they show.
    """
    definitions = {s.target: s for s in made}
    along: dict[str, frozenset[int]] = {}
    pending = [(read, frozenset(reduce)) for read in found]
    while pending:
        read, moving = pending.pop()
        dims = frozenset(d for d, i in enumerate(read.indices) if variables(i) & moving)
        if (maker := definitions.get(read.tensor)) is None:
            continue
        if maker.combine is not None:
            along[read.tensor] = along.get(read.tensor, frozenset()) | dims
            continue
        axes = frozenset(v for d in dims for v in variables(maker.write[d]) if isinstance(v, Var))
        pending += [(r, axes) for r in maker.reads if r.tensor in definitions]
    return along


def _definitions(tensor: str, index: DefUse, failed: set[tuple[str, int]]) -> list[Statement] | None:
    """Return the statements that compute a tensor from products elementwise, in order; None where others do.

    Tensors that others compute, for a size of the reader's operand, join those that `failed`: the readers of a residual
    stream follow it once.
    """
    size, found, full = index.types[tensor].size, dict[str, Statement](), False

    def visit(name: str) -> bool:
        nonlocal full
        if name in found:
            return True
        full = full or len(found) > MAX_STATEMENTS
        if full or (name, size) in failed:
            return False
        maker = index.single_definition(name)
        known = maker is not None and is_plain(maker) and name not in index.pinned and follow(maker)
        if known and maker is not None:
            found[name] = maker
        elif not full:
            failed.add((name, size))
        return known

    def follow(maker: Statement) -> bool:
        if maker.combine is not None:
            return _is_light(maker, index)
        return all(visit(r.tensor) for r in maker.reads if _is_wide(r, size, index))

    return [*found.values()] if visit(tensor) else None


def _is_wide(read: Read, size: int, index: DefUse) -> bool:
    """Return whether a large tensor that is read is computed within the programs."""
    return index.types[read.tensor].size * MIN_SIZE_RATIO > size and read.tensor in index.definitions


def _is_light(product: Statement, index: DefUse) -> bool:
    """Return whether a product of few terms has at least as many results as operands."""
    size = index.types[product.target].size
    few = prod(v.extent for v in product.reduce) <= MAX_TERMS
    return few and _multiplies(product) and all(index.types[t].size <= size for t in product.tensors_read)


def _family(consumers: Sequence[TileReader], every: Iterable[Statement], index: DefUse) -> Family | None:
    """Return a family, None where another statement needs the recomputed tensors."""
    made = {s.target: s for reader in consumers for s in reader.definitions}
    inside = {*made.values(), *(reader.statement for reader in consumers)}
    others = [s for s in every if s not in inside and not made.keys().isdisjoint(s.tensors_read)]
    sums = [found for s in others if (found := _row_sum(s, made, index)) is not None]
    return Family(tuple(consumers), tuple(sums)) if len(sums) == len(others) else None


def _row_sum(statement: Statement, made: Mapping[str, Statement], index: DefUse) -> TileReader | None:
    """Return a sum over rows of recomputed tensors, None where a statement is something else."""
    found, size = [r for r in statement.reads if r.tensor in made], index.types[statement.target].size
    small = all(size * MIN_SIZE_RATIO <= index.types[r.tensor].size for r in found)
    if statement.combine is None or not is_plain(statement) or not small:
        return None
    places = {frozenset(d for d, i in enumerate(r.indices) if variables(i) & {*statement.reduce}) for r in found}
    whole = {s.target: s for r in found for s in _definitions(r.tensor, index, set()) or ()}
    along = _summed_dims(found, statement.reduce, whole.values())
    return TileReader(statement, along, tuple(whole.values())) if len(places) == 1 else None


# ---- rewriting


def _recompute(programs: Programs, family: Family, each: bool) -> Programs:
    """Return programs with a family's products recomputed for readers of `each` side or for all."""
    index = DefUse.of_programs(programs)
    if any(index.unit_of(r.statement) is None for r in (*family.consumers, *family.sums)):
        return programs  # another family's readers, computed anew
    several = [s for s in family.sums if len(s.products) > 1]
    alone = [s for s in family.sums if len(s.products) == 1]
    first = [r for r in family.consumers if any(s.products == r.products and s.along == r.along for s in alone)]
    divided = [(s, found) for s in several if (found := _interchanged_sum(s, family.consumers, index)) is not None]
    weighted = [new for _, (new, _) in divided if new is not None]
    if len(divided) < len(several) or (alone and not first and not weighted):
        return programs
    for total, (new, replaced) in divided:
        apply(index, _sum_edit(total.statement, new, replaced, index))
    groups: list[list[TileReader]] = []
    for reader in (r for r in family.consumers if r not in first):
        similar = next((g for g in groups if not each or g[0].is_similar(reader)), None)
        groups.append([reader]) if similar is None else similar.append(reader)
    for group in groups:
        _recompute_for(group, each, index)
    index.remove_unused({*family.recomputed, *(s.statement.target for s in family.sums)})
    return rewritten(programs, index, in_order=True) if index.put_in_order() else programs


def _interchanged_sum(
    total: TileReader, consumers: Sequence[TileReader], index: DefUse
) -> tuple[Statement | None, Statement] | None:
    """Return a sum over rows of several products as one over rows of their operands, with the statement of the
    weighted sums that it needs, if no reader computes these already.
    """
    for product in (s for s in total.definitions if s.target in total.products):
        name = unused_name(f"{total.statement.target}.weighted", index.types)
        found = interchange_sums(total.statement, product, name)
        if found is not None:
            known = same_sum(found.weighted, [r.statement for r in consumers])
            return (found.weighted, found.total) if known is None else (None, _replace_reads(found.total, name, known))
    return None


def _sum_edit(old: Statement, weighted: Statement | None, new: Statement, index: DefUse) -> Edit:
    """Return the replacement of a sum, with the weighted sums that it reads ahead of it."""
    if weighted is None:
        return {old: [new]}
    kind, rows = index.types[old.target], (v.extent for v in new.reduce)
    index.types[weighted.target] = evolve(kind, shape=(*kind.shape, *rows))
    return {old: [NewUnit("weighted", (weighted,)), new]}


def _recompute_for(group: Sequence[TileReader], joined: bool, index: DefUse) -> None:
    """Recompute the operands of some readers ahead of them; the readers are one unit if they are `joined`."""
    made, readers = {s.target: s for reader in group for s in reader.definitions}, [r.statement for r in group]
    connected = ((n, u, _connected_statements(u.statements, readers)) for n, u in enumerate(index.units))
    found = [each for each in connected if each[2]]
    if not found:
        return  # the readers belong to products of another group, connected with theirs
    names = {t: index.add_tensor(f"{t}.again", index.types[t]) for t in made}
    needed = {t for s in made.values() for t in s.tensors_read} - made.keys()
    ready = max((n for n, u in enumerate(index.units) if any(s.target in needed for s in u.statements)), default=-1)
    (place, first, _), *_ = found
    consumers = [(first, [s for _, _, taken in found for s in taken])] if joined else [each[1:] for each in found]
    apply(index, {s: () for _, taken in consumers for s in taken})
    new = [(first, "tiles", list(made.values())), *((unit, "products", taken) for unit, taken in consumers)]
    for n, (unit, suffix, statements) in enumerate(new, max(place, ready + 1)):
        index.insert(n, unit, suffix, [rename_statement(s, names) for s in statements])


def _replace_reads(statement: Statement, tensor: str, there: Read) -> Statement:
    """Return a statement that reads `there` for a tensor."""
    new = rebuild(statement.body, lambda node: there if isinstance(node, Read) and node.tensor == tensor else node)
    return evolve(statement, body=new)


def _multiplies(statement: Statement) -> bool:
    """Return whether a statement is a contraction."""
    plain = statement.combine == "sum" and statement.into is None and statement.step is None
    return plain and is_contraction(Reduction(statement.target, statement.reduce, "sum", statement.body))


def _connected_statements(statements: Sequence[Statement], some: Sequence[Statement]) -> list[Statement]:
    """Return the statements of a unit that are connected with some of them, in order."""
    found = [s for s in statements if s in some]
    while True:
        targets, read = {s.target for s in found}, {t for s in found for t in s.tensors_read}
        more = [s for s in statements if s not in found and (targets & {*s.tensors_read} or s.target in read)]
        if not more:
            return [s for s in statements if s in found]
        found += more
