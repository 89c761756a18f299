"""Alignment: axes of a group's statements as functions of the parallel axes.

Starting from one statement, the root, the access maps of reads are solved along each edge, in both directions: a
consumer's axes follow from its reads, a producer's from the reads of it. Statements that no edge reaches are searched
for through inlined statements. Free axes of a consumer become *row* axes, which the lanes of an instance share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import permutations, product
from math import prod
from typing import TypeAlias

from attrs import evolve, field, frozen

from ...ir import (
    COMBINERS,
    Expr,
    Index,
    Indirect,
    Read,
    Reduction,
    Segment,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_indirects,
    indirects,
    is_bijection,
    linearise,
    reads,
    rebuild,
    solve,
    substitute,
    substitute_expr,
    variables,
)
from ...ops.language import unused_name
from ..statements import FusionError
from .held_rows import place_column

#: Producer and consumer, by position, and the element of the producer that an instance of the consumer reads.
Edge: TypeAlias = tuple[int, int, tuple[Index, ...]]
#: Most axes of a row whose orders are compared, and most bytes of neighbours that one thread scatters.
MAX_ORDERED_AXES, MAX_HELD_BYTES = 4, 32


@frozen
class Places:
    """Parallel axes and the placement of statements.

    `of` has for each statement, by position, its axes in terms of them and of row variables. `reductions` finds the
    statement and the values of a reduced tensor. Row variables of equal extents are shared.
    """

    axes: tuple[Var, ...]
    of: tuple[Mapping[Var, Index], ...]
    reductions: Mapping[str, tuple[Statement, Mapping[Var, Index]]]
    spaces: dict[tuple[int, ...], tuple[Var, ...]] = field(factory=dict)

    def row_vars(self, axes: Sequence[Var]) -> tuple[Var, ...]:
        """Return the variables of the row space with the extents of `axes`."""
        extents = tuple(a.extent for a in axes)
        if extents not in self.spaces:
            first = sum(len(s) for s in self.spaces.values())
            self.spaces[extents] = tuple(Var(f"r{first + n}", e) for n, e in enumerate(extents))
        return self.spaces[extents]

    def rows(self, axes: Sequence[Var]) -> dict[Var, Index]:
        """Map reduced or free axes to the variables of their row space."""
        return {a: as_index(v) for a, v in zip(axes, self.row_vars(axes), strict=True)}


def check_counts(statements: Sequence[Statement], live: Sequence[str]) -> None:
    """Raise `FusionError` where element counts exclude a common instance space.

    There are as many instances as a reduction has results, and an output has one element for each, or a row. This early
    check rejects a third of the merges that a partition considers, without solving access maps. Statements along a row
    and their places are not checked: they are rewritten later.
    """
    wanted, needed = set(live), list[Statement]()
    for statement in reversed(statements):
        if statement.target in wanted:
            needed.append(statement)
            wanted.update(statement.tensors_read)
    rewritten = any(s.along is not None or (s.combine and COMBINERS[s.combine].position) for s in needed)
    if rewritten or len({s.target for s in needed}) < len(needed):
        return
    counts = [prod(axis.extent for axis in s.axes) for s in needed]
    sums = [n for n, s in enumerate(needed) if s.combine and any(r.extent > 1 for r in s.reduce)]
    outputs = [n for n, s in enumerate(needed) if s.target in live]
    instances = counts[sums[0]] if sums else max((counts[n] for n in outputs), default=1)
    separate = [n for n in sums if counts[n] != instances] or [
        n for n in outputs if not _is_shared(counts[n], instances)
    ]
    if separate:
        raise _unmatched_elements(needed[separate[0]])


def _is_shared(elements: int, instances: int) -> bool:
    """Return whether each instance may have equally many elements: an output without elements has no instances."""
    return elements % instances == 0 and elements > 0 if instances else elements == 0


def _unmatched_elements(statement: Statement) -> FusionError:
    return FusionError(f"the elements of {statement.target} cannot be matched with the instances of the group")


def align(statements: Sequence[Statement], live: Sequence[str], columns: Collection[str] = ()) -> Places:
    """Return the placement of each statement.

    Statements that are only inlined elsewhere may have no place. Those that write `columns` have the terms of column
    sums.
    """
    wanted = [n for n, s in enumerate(statements) if s.combine or s.target in live]
    reductions = [n for n in wanted if statements[n].combine]
    root = reductions[-1] if reductions else max(wanted, key=lambda n: (prod(a.extent for a in statements[n].axes), -n))
    axes, start = _root_axes(statements[root])
    known: dict[int, Mapping[Var, Index]] = {root: start}
    search = _Search(statements, axes, known, tuple(_edges(statements)))
    search.propagate([root])
    if not known.keys() >= set(wanted):
        search = evolve(search, edges=(*search.edges, *_inlined_edges(statements, wanted)))
        search.propagate(list(known))
    for number in wanted:
        if number not in known:
            find = place_column if statements[number].target in columns else _by_reads
            values = find(number, statements, known, axes)
            known[number] = _by_shape(statements[number], axes) if values is None else values
            search.propagate([number])
    of = tuple(known.get(n, {}) for n in range(len(statements)))
    return Places(axes, of, {statements[n].target: (statements[n], of[n]) for n in reductions})


def _root_axes(statement: Statement) -> tuple[tuple[Var, ...], Mapping[Var, Index]]:
    kept = [a for a in statement.axes if a.extent > 1]
    axes = tuple(Var(f"i{n}", a.extent) for n, a in enumerate(kept)) or (Var("i0", 1),)
    values = {a: as_index(0) for a in statement.axes}
    values.update({old: as_index(new) for old, new in zip(kept, axes, strict=False)})
    return axes, values


def _by_reads(
    number: int, statements: Sequence[Statement], known: Mapping[int, Mapping[Var, Index]], axes: Sequence[Var]
) -> Mapping[Var, Index] | None:
    """Return the axes of a reduction that no edge connects to the others but that reads a tensor of one of them, so
    that an instance of both reads the same elements; else None.
    """
    own = statements[number]
    kept, onto = [a for a in own.axes if a.extent > 1], [p for p in axes if p.extent > 1]
    for other, values in known.items() if own.combine else ():
        for read, theirs in product(own.reads, statements[other].reads):
            if read.tensor != theirs.tensor or not statements[other].combine:
                continue
            right = [substitute(index, values) for index in theirs.indices]
            solution = solve(list(zip(read.indices, right, strict=True)), (*own.axes, *own.reduce))
            if solution is None or solution.guards or solution.free:
                continue
            found = {a: solution.values[a] for a in own.axes}
            if is_bijection(found, kept, onto):
                return found
    return None


def _by_shape(statement: Statement, axes: Sequence[Var]) -> Mapping[Var, Index]:
    """Pair axes of equal extents, in order, for a statement that no edge connects to the others.

    A tensor may be stored in another order of its dims than the others, and axes run in memory order.
    """
    own = sorted((a for a in statement.axes if a.extent > 1), key=lambda axis: axis.extent)
    group = sorted((p for p in axes if p.extent > 1), key=lambda axis: axis.extent)
    if [a.extent for a in own] != [p.extent for p in group]:
        raise _unmatched_elements(statement)
    return {**{a: as_index(0) for a in statement.axes}, **{a: as_index(p) for a, p in zip(own, group, strict=True)}}


def _edges(statements: Sequence[Statement]) -> Iterator[Edge]:
    """Yield the reads of tensors that exactly one other statement writes."""
    producers: dict[str, list[int]] = {}
    for number, statement in enumerate(statements):
        producers.setdefault(statement.target, []).append(number)
    for consumer, statement in enumerate(statements):
        looked_up = (*expr_indirects(statement.body), *(i for w in statement.write for i in indirects(w)))
        found_reads: Iterable[Read | Indirect] = (*statement.reads, *dict.fromkeys(looked_up))
        for read in found_reads:
            if len(found := producers.get(read.tensor, [])) == 1:
                # For a value along a row only the instance matters: its place in the row comes last.
                yield found[0], consumer, read.indices[: len(statements[found[0]].write)]


def _inlined_edges(statements: Sequence[Statement], wanted: Collection[int]) -> Iterator[Edge]:
    """Yield the reads of `wanted` statements after the pointwise statements in between are inlined."""
    reads: list[dict[Edge, None]] = [{} for _ in statements]
    for producer, consumer, indices in _edges(statements):
        first = statements[producer]
        if producer in wanted:
            reads[consumer][producer, consumer, indices] = None
        if first.combine or not reads[producer]:
            continue
        solution = solve(list(zip(first.write, indices, strict=True)), first.axes)
        if solution is None or solution.guards or solution.free:
            continue
        for further, _, inner in reads[producer]:
            reads[consumer][further, consumer, tuple(substitute(i, solution.values) for i in inner)] = None
    for found in reads:
        yield from found


@frozen
class _Search:
    """Breadth-first search over the edges between statements."""

    statements: Sequence[Statement]
    axes: tuple[Var, ...]
    known: dict[int, Mapping[Var, Index]]
    edges: tuple[Edge, ...]
    fresh: list[Var] = field(factory=list)

    def propagate(self, queue: list[int]) -> None:
        """Place all statements that the placed ones of a queue lead to."""
        while queue:
            here = queue.pop(0)
            for producer, consumer, indices in self.edges:
                found: int | None = None
                if here == producer and consumer not in self.known:
                    found = self._place(consumer, self._consumer(producer, consumer, indices))
                elif here == consumer and producer not in self.known:
                    found = self._place(producer, self._producer(producer, consumer, indices))
                if found is not None:
                    queue.append(found)

    def _place(self, number: int, values: Mapping[Var, Index] | None) -> int | None:
        if values is None:
            return None
        self.known[number] = values
        return number

    def _consumer(self, producer: int, consumer: int, indices: Sequence[Index]) -> Mapping[Var, Index] | None:
        """Solve `indices(consumer axes) = write(producer axes)`; free axes become rows unless the consumer reduces."""
        first, second = self.statements[producer], self.statements[consumer]
        right = [substitute(w, self.known[producer]) for w in first.write]
        solution = solve(list(zip(indices, right, strict=True)), second.axes, f"f{len(self.fresh)}_")
        if solution is None or solution.guards or any(r in solution.values for r in second.reduce):
            return None
        if second.combine and solution.free:
            return None
        rows = set().union(*(variables(v) for v in (solution.values[a] for a in second.axes)), set()) - set(self.axes)
        if prod(a.extent for a in second.axes) != prod(v.extent for v in (*self.axes, *rows)):
            return None
        named = {v: Var(f"e{len(self.fresh) + n}", v.extent) for n, v in enumerate(solution.free)}
        self.fresh.extend(named.values())
        return {a: substitute(solution.values[a], named) for a in second.axes}

    def _producer(self, producer: int, consumer: int, indices: Sequence[Index]) -> Mapping[Var, Index] | None:
        """Solve `write(producer axes) = indices(consumer axes)`; no place where the consumer's reduced axes occur."""
        first, second = self.statements[producer], self.statements[consumer]
        right = [substitute(i, self.known[consumer]) for i in indices]
        solution = solve(list(zip(first.write, right, strict=True)), first.axes)
        if solution is None or solution.guards or solution.free:
            return None
        values = {a: solution.values[a] for a in first.axes}
        used = set().union(*(variables(v) for v in values.values()), set())
        if used & set(second.reduce):
            return None
        onto = tuple(
            dict.fromkeys(
                (*(p for p in self.axes if p.extent > 1), *sorted(used - set(self.axes), key=lambda v: v.name))
            )
        )
        return values if is_bijection(values, [a for a in first.axes if a.extent > 1], onto) else None


def order_of_row(
    extra: tuple[Var, ...],
    write: Sequence[Index],
    body: Expr,
    reductions: Sequence[Reduction],
    target: TensorType,
    summed: bool = False,
) -> tuple[Var, ...]:
    """Return an output's row axes in the order of a reduction.

    Each thread then writes the elements that it reduced, a few neighbours in memory: they are no neighbours in the
    output, but each of them is one of an element of the next thread.

        sum over p, c of x[n, p, c];  y[n, c, p] = x[n, p, c] ...  for c, p     ->     for p, c
    """
    address = linearise(write, target.strides)
    for reduction in reductions:
        for order in permutations(extra) if 1 < len(extra) <= MAX_ORDERED_AXES else ():
            if [a.extent for a in order] != [r.extent for r in reduction.reduce]:
                continue
            rows = {a: as_index(r) for a, r in zip(order, reduction.reduce, strict=True)}
            if {substitute_expr(r, rows) for r in reads(body)}.isdisjoint(reads(reduction.body)):
                continue
            near = order[-1].extent * target.dtype.size <= MAX_HELD_BYTES and address.coefficient(order[-2]) == 1
            return order if near or summed else extra
    return extra


def add_single_row(segment: Segment, columns: bool, types: dict[str, TensorType]) -> Segment:
    """Return a segment with an axis of one row, before any `columns`.

    With it, a product of one row is a product of matrices, as instructions multiply them. The `types` of the segment's
    reductions change.

        p[h, j] = sum_c q[h, c] * k[h, j, c]   ->   p[h, i, j] for i < 1
    """
    names, place = {r.name for r in segment.reductions}, len(segment.axes) - columns
    taken = {v.name for v in (*segment.axes, *(v for r in segment.reductions for v in r.reduce))}
    axes = (*segment.axes[:place], Var(unused_name("row", taken), 1), *segment.axes[place:])
    types.update({name: evolve(types[name], shape=tuple(a.extent for a in axes)) for name in names})

    def leaf(node: Expr) -> Expr:
        held = isinstance(node, Read) and node.tensor in names
        return evolve(node, indices=tuple(map(as_index, axes))) if held and isinstance(node, Read) else node

    reductions = tuple(evolve(r, body=rebuild(r.body, leaf)) for r in segment.reductions)
    outputs = tuple(evolve(o, body=rebuild(o.body, leaf)) for o in segment.outputs)
    return Segment(axes, reductions, outputs)
