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

from attrs import evolve, frozen

from ....ir import Read, Reduction, Statement, is_contraction, rebuild, rename_statement, variables
from ....ops.language import unused_name
from ..legality import Policy
from ..programs import Programs, Unit
from .check_units import find_ungroupable
from .rewriter import DefUseRewriter
from .sum_interchange import interchange_sums, same_sum

_LOG = logging.getLogger("cuts.passes")
#: Least ratio of the sizes of recomputed tensors and of stored sums over rows.
MIN_SIZE_RATIO = 16
#: Most terms of a recomputed product, and most statements between it and its readers.
MAX_TERMS, MAX_STATEMENTS = 256, 16


@frozen
class TileReader:
    """A product that reads recomputed tensors.

    `products` are the contractions that its operand is computed from, `along` the reduced dims of the operand, `made`
    all statements that compute it.
    """

    statement: Statement
    products: frozenset[str]
    along: frozenset[int]
    definitions: tuple[Statement, ...]

    def is_similar(self, other: TileReader) -> bool:
        """Return whether another reader may share the recomputed products of this one."""
        extents = ([v.extent for v in r.statement.axes] for r in (self, other))
        return self.along == other.along and next(extents) == next(extents)


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
    writer = _RecomputeRewriter(programs)
    for family in writer.families():
        if (chosen := way(family)) != "keep":
            writer.compute_again_if_grouped(family, chosen == "each")
    return writer.result


class _RecomputeRewriter(DefUseRewriter):
    """Rewrites families."""

    # ---- matching

    def families(self) -> list[Family]:
        """Return the families of the original programs."""
        every = [s for u in self.programs.units if u.repeat is None for s in u.statements]
        consumers = [r for s in every if _multiplies(s) and (r := self._reader(s)) is not None]
        found: list[list[TileReader]] = []
        for reader in consumers:
            similar = [f for f in found if any(reader.products & other.products for other in f)]
            found = [f for f in found if f not in similar] + [[r for f in similar for r in f] + [reader]]
        complete = (self._family(readers, every) for readers in found if len(readers) > 1)
        return [family for family in complete if family is not None]

    def _reader(self, statement: Statement) -> TileReader | None:
        """Return the reader if an operand of the statement is computed elementwise from contractions of few terms."""
        for read in statement.reads:
            along = frozenset(d for d, i in enumerate(read.indices) if variables(i) & {*statement.reduce})
            made = self._definitions(read.tensor) if along and not read.guards else None
            products = frozenset(s.target for s in made or () if s.combine is not None)
            if made and products and len(products) <= Policy().together:
                order = {s.target: n for n, s in enumerate(made)}
                return TileReader(statement, products, along, tuple(sorted(made, key=lambda s: order[s.target])))
        return None

    def _definitions(self, tensor: str) -> list[Statement] | None:
        """Return the statements that compute a tensor from products elementwise, in order; None where others do."""
        size, found = self.types[tensor].size, dict[str, Statement]()

        def visit(name: str) -> bool:
            if name in found:
                return True
            makers = self.definitions.get(name, [])
            plain = len(makers) == 1 and makers[0].into is None and makers[0].step is None and makers[0].along is None
            if not plain or len(found) > MAX_STATEMENTS or name in self.programs.graph.outputs:
                return False
            (maker,) = makers
            if maker.combine is not None:
                if not self._is_light(maker):
                    return False
            elif not all(visit(r.tensor) for r in maker.reads if self._is_wide(r, size)):
                return False
            found[name] = maker
            return True

        return [*found.values()] if visit(tensor) else None

    def _is_wide(self, read: Read, size: int) -> bool:
        """Return whether a large tensor that is read is computed within the programs."""
        return self.types[read.tensor].size * MIN_SIZE_RATIO > size and read.tensor in self.definitions

    def _is_light(self, product: Statement) -> bool:
        """Return whether a product of few terms has at least as many results as operands."""
        size = self.types[product.target].size
        few = prod(v.extent for v in product.reduce) <= MAX_TERMS
        return few and _multiplies(product) and all(self.types[t].size <= size for t in product.tensors_read)

    def _family(self, consumers: Sequence[TileReader], every: Iterable[Statement]) -> Family | None:
        """Return a family, None where another statement needs the recomputed tensors."""
        made = {s.target: s for reader in consumers for s in reader.definitions}
        inside = {*made.values(), *(reader.statement for reader in consumers)}
        sums: list[TileReader] = []
        for statement in every:
            if statement in inside or not any(t in made for t in statement.tensors_read):
                continue
            found = self._row_sum(statement, made)
            if found is None:
                return None
            sums.append(found)
        units = [u for u in self.units if any(s in inside for s in u.statements)]
        return Family(tuple(consumers), tuple(sums)) if all(u.repeat is None for u in units) else None

    def _row_sum(self, statement: Statement, made: dict[str, Statement]) -> TileReader | None:
        """Return a sum over rows of recomputed tensors, None where a statement is something else."""
        found = [r for r in statement.reads if r.tensor in made]
        small = all(self.types[statement.target].size * MIN_SIZE_RATIO <= self.types[r.tensor].size for r in found)
        if statement.combine is None or statement.into or statement.step or statement.along or not small:
            return None
        along = {frozenset(d for d, i in enumerate(r.indices) if variables(i) & {*statement.reduce}) for r in found}
        parts = [self._definitions(r.tensor) for r in found]
        whole = {s.target: s for part in parts for s in part or ()}
        products = frozenset(s.target for s in whole.values() if s.combine is not None)
        return TileReader(statement, products, along.pop(), tuple(whole.values())) if len(along) == 1 else None

    # ---- rewriting

    def compute_again_if_grouped(self, family: Family, each: bool) -> None:
        """Recompute a family's products, unless a new unit has no normal form."""
        before, types, units, found = self.result, dict(self.types), list(self.units), self.has_changed
        self.compute_again(family, each)
        if (unit := find_ungroupable(before, self.result)) is not None:
            self.types, self.units, self.has_changed = types, units, found
            _LOG.info("cuts: products %s are not computed again: %s", ", ".join(sorted(family.products)), unit.text)

    def compute_again(self, family: Family, each: bool) -> None:
        """Recompute a family's products for readers of `each` side or for all."""
        several = [s for s in family.sums if len(s.products) > 1]
        alone = [s for s in family.sums if len(s.products) == 1]
        first = [r for r in family.consumers if any(s.products == r.products and s.along == r.along for s in alone)]
        divided = [(s, found) for s in several if (found := self._interchanged_sum(s, family.consumers)) is not None]
        weighted = [new for _, (new, _) in divided if new is not None]
        if len(divided) < len(several) or (alone and not first and not weighted):
            return
        for total, (new, replaced) in divided:
            self._replace_sum(total.statement, new, replaced)
        groups: list[list[TileReader]] = []
        for reader in (r for r in family.consumers if r not in first):
            similar = next((g for g in groups if not each or g[0].is_similar(reader)), None)
            groups.append([reader]) if similar is None else similar.append(reader)
        for group in groups:
            self._recompute_for(group, each)
        self.has_changed = True
        self._remove_unused(family)

    def _interchanged_sum(
        self, total: TileReader, consumers: Sequence[TileReader]
    ) -> tuple[Statement | None, Statement] | None:
        """Return a sum over rows of several products as one over rows of their operands, with the statement of the
        weighted sums that it needs, if no reader computes these already.
        """
        for product in (s for s in total.definitions if s.target in total.products):
            found = interchange_sums(
                total.statement, product, unused_name(f"{total.statement.target}.weighted", self.types)
            )
            if found is None:
                continue
            known = same_sum(found.weighted, [r.statement for r in consumers])
            if known is None:
                return found.weighted, found.total
            return None, _replace_reads(found.total, found.weighted.target, known)
        return None

    def _replace_sum(self, old: Statement, weighted: Statement | None, new: Statement) -> None:
        """Replace a sum, and write the weighted sums that it reads ahead of it."""
        place, unit = next((n, u) for n, u in enumerate(self.units) if old in u.statements)
        changed = evolve(unit, statements=tuple(new if s == old else s for s in unit.statements))
        front: list[Unit] = []
        if weighted is not None:
            kind, rows = self.types[old.target], (v.extent for v in new.reduce)
            self.types[weighted.target] = evolve(kind, shape=(*kind.shape, *rows))
            front = [
                evolve(unit, name=self._unit_name(f"{unit.name}.weighted"), statements=(weighted,), reads=(), writes=())
            ]
        self.units[place : place + 1] = [*front, changed]

    def _recompute_for(self, group: Sequence[TileReader], joined: bool) -> None:
        """Recompute the operands of some readers ahead of them; the readers are one unit if they are `joined`."""
        made = {s.target: s for reader in group for s in reader.definitions}
        names = {t: self.add_tensor(f"{t}.again", self.types[t]) for t in made}
        place = min(n for n, u in enumerate(self.units) if any(r.statement in u.statements for r in group))
        ready = max((n for n, u in enumerate(self.units) if self._makes(u, made)), default=-1)
        front = self._new_unit(self.units[place], "tiles", made.values(), names)
        consumers: list[tuple[Unit, list[Statement]]] = []
        for n, each in enumerate(self.units):
            if taken := _connected_statements(each.statements, [r.statement for r in group]):
                self.units[n] = evolve(each, statements=tuple(s for s in each.statements if s not in taken))
                consumers = (
                    [(consumers[0][0], [*consumers[0][1], *taken])]
                    if joined and consumers
                    else [*consumers, (each, taken)]
                )
        at = max(place, ready + 1)
        self.units.insert(at, front)
        for n, (unit, taken) in enumerate(consumers):
            self.units.insert(at + 1 + n, self._new_unit(unit, "products", taken, names))

    def _makes(self, unit: Unit, made: dict[str, Statement]) -> bool:
        """Return whether a unit writes an operand of the recomputed statements."""
        needed = {t for s in made.values() for t in s.tensors_read} - {*made}
        return any(s.target in needed for s in unit.statements)

    def _new_unit(self, unit: Unit, kind: str, statements: Iterable[Statement], names: Mapping[str, str]) -> Unit:
        """Return a unit like another one, of statements over other tensors."""
        renamed = tuple(rename_statement(s, names) for s in statements)
        return evolve(unit, name=self._unit_name(f"{unit.name}.{kind}"), statements=renamed, reads=(), writes=())

    def _unit_name(self, name: str) -> str:
        return unused_name(name, {u.name for u in self.units})

    def _remove_unused(self, family: Family) -> None:
        """Remove statements without readers, and update the reads and writes of units."""
        outputs = {*self.programs.graph.outputs}
        unused = {*family.recomputed, *(s.statement.target for s in family.sums)} - outputs
        while True:
            read = self._read()
            left = [self._without(u, unused - read.keys()) for u in self.units]
            if left == self.units:
                break
            self.units = left
        known = {u.name: u for u in self.programs.units}
        self.units = [
            self._with_uses(u, known.get(u.name), read, outputs) for u in self.units if u.statements or u.repeat
        ]

    def _read(self) -> dict[str, set[str]]:
        """Return the names of the units that read each tensor."""
        found: dict[str, set[str]] = {}
        for unit in self.units:
            for tensor in (
                (*unit.reads, *unit.writes) if unit.repeat else (t for s in unit.statements for t in s.tensors_read)
            ):
                found.setdefault(tensor, set()).add(unit.name)
        return found

    def _without(self, unit: Unit, unused: set[str]) -> Unit:
        left = tuple(s for s in unit.statements if s.target not in unused)
        return unit if len(left) == len(unit.statements) else evolve(unit, statements=left)

    def _with_uses(self, unit: Unit, before: Unit | None, read: dict[str, set[str]], outputs: set[str]) -> Unit:
        """Return a unit with its reads and writes, the same if its statements and their readers are."""
        needed = tuple(
            t
            for t in dict.fromkeys(s.target for s in unit.statements)
            if t in outputs or read.get(t, set()) - {unit.name}
        )
        same = before is not None and before.statements == unit.statements and {*needed} <= {*unit.writes}
        return unit if same or unit.repeat else self.update_uses(evolve(unit, writes=needed))


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
