"""Programs: every node of a graph as statements over graph values, cut into units that one kernel can compute.

The unit of fusion is the statement, but most operations are one kernel as a whole, so a `Unit` is a run of a node's
statements: the whole program where it has a normal form, else the longest runs that have one, with the tensors between
them in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import TypeAlias

from attrs import evolve, field, frozen

from ...ir import (
    COMBINERS,
    Array,
    Const,
    Graph,
    GraphError,
    Node,
    Program,
    Read,
    Segment,
    Slice,
    SpecError,
    Statement,
    TensorType,
    Var,
    as_index,
    attributes_key,
    indirects,
    is_contraction,
    reads,
    rename_statement,
    retold,
    substitute,
    variables,
)
from ...ops import Instance, Registry
from .fold_lookups import fold_lookups, past_copies, tensors_looked_up
from .fold_tables import unroll_tables
from .loops import LONGEST_RUN, Item, Sliced, Turn, slice_loops
from .normalise import Illegal, normalise
from .orders import mark_orders
from .residues import split_residues, spread_lone_pieces
from .scans import cut_scans
from .scatters import settle_scatters

#: Few results of long reductions: such a reduction fills no machine unless it is split.
FEW, LONG = 64, 1 << 14
#: Elements of the rows that statements share which a block can keep: longer ones are read again by each statement.
KEPT = 1 << 16


@frozen
class Unit:
    """Statements of one node that are never torn apart.

    `reads` are the tensors it needs from elsewhere, `writes` those it may leave in memory, both in order. `free` units
    need no kernel: their result is a view of, or a place inside, a buffer that exists anyway. A loop has no statements,
    but units that are repeated.
    """

    name: str
    node: str
    op: str
    statements: tuple[Statement, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    free: bool = False
    repeat: Repeat | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor of its statements, in order of first occurrence: what a pattern numbers."""
        found: dict[str, None] = {}
        for statement in self.statements:
            found.update(dict.fromkeys((*statement.tensors_read, statement.target)))
        return tuple(found)


@frozen
class Repeat:
    """Units that are computed for each value of `step`, in order; `kept` are the slices that they leave for others."""

    step: Var
    units: tuple[Unit, ...]
    kept: tuple[str, ...]


@frozen
class Programs:
    """A graph as units in topological order; `types` and `tables` also cover tensors that exist only between units.

    Units of loops are over `slices`, parts of tensors that move with the step; of tensors in `rotating` only so many
    rows are kept (see `loops`). Tensors in `orders` are stored, typed, written and read with their dims in that order
    (see `reorder`).
    """

    graph: Graph
    units: tuple[Unit, ...]
    types: Mapping[str, TensorType]
    tables: Mapping[str, tuple[float, ...]] = field(factory=dict)
    slices: Mapping[str, Slice] = field(factory=dict)
    rotating: Mapping[str, int] = field(factory=dict)
    orders: Mapping[str, tuple[int, ...]] = field(factory=dict)

    @property
    def every_unit(self) -> tuple[Unit, ...]:
        """The units, each loop followed by those it repeats."""
        return tuple(u for unit in self.units for u in (unit, *(unit.repeat.units if unit.repeat else ())))

    def turn(self, repeat: Repeat) -> Programs:
        """Return one turn of a loop, as units in topological order."""
        return evolve(self, units=repeat.units, graph=evolve(self.graph, outputs=repeat.kept))

    def producers(self) -> dict[str, list[Unit]]:
        """Map each computed tensor to the units that write it, or parts of it."""
        found: dict[str, list[Unit]] = {}
        for unit in self.units:
            for tensor in unit.writes:
                found.setdefault(tensor, []).append(unit)
        return found

    def consumers(self) -> dict[str, list[Unit]]:
        """Map each tensor to the units that read it."""
        found: dict[str, list[Unit]] = {}
        for unit in self.units:
            for tensor in unit.reads:
                found.setdefault(tensor, []).append(unit)
        return found


def build_programs(graph: Graph, registry: Registry, known: dict[object, Meaning] | None = None) -> Programs:
    """Instantiate every node's declaration and cut the programs into units; graphs of one vocabulary may share what is
    `known` of their nodes.
    """
    builder = _Builder(graph, registry, dict(graph.types), cache={} if known is None else known)
    units = _past_copies([unit for node in graph.nodes for unit in builder.units(node)])
    return Programs(graph, tuple(units), builder.types, builder.tables, builder.slices, builder.rotating)


def _past_copies(units: Sequence[Unit]) -> list[Unit]:
    """Return units that look integers up where copies have them from; what loops write is theirs."""
    written: dict[str, list[Statement]] = {}
    for unit in units:
        for statement in unit.statements:
            written.setdefault(statement.target, []).append(statement)
    loops = {t for unit in units if unit.repeat for t in unit.writes}
    copies: dict[str, list[tuple[Statement, Read]]] = {}
    for tensor, found in written.items():
        sources = [(s, read) for s in found if (read := copied(s)) is not None and read.tensor not in loops]
        if len(sources) == len(found) and tensor not in loops:
            copies[tensor] = sources
    return [_looks_past(unit, copies) for unit in units]


def _looks_past(unit: Unit, copies: Mapping[str, Sequence[tuple[Statement, Read]]]) -> Unit:
    """Return a unit that looks integers up where copies have them from."""
    if unit.repeat is not None or not any(t in copies for s in unit.statements for t in tensors_looked_up(s)):
        return unit
    statements = tuple(past_copies(s, copies) for s in unit.statements)
    before, after = _read(unit.statements), _read(statements)
    reads = [t for t in unit.reads if t in after or t not in before]
    reads += [t for t in after if t not in before]
    return evolve(unit, statements=statements, reads=tuple(dict.fromkeys(reads)))


def cut(program: Program, elsewhere: Collection[str] = ()) -> tuple[int, ...]:
    """Return where the program's units end: each is as long as has a normal form; one statement always has one.

    Parts of tensors `elsewhere` are written by others too.
    """
    statements = program.statements
    last_reads = _last_reads(statements)
    ends: list[int] = []
    while (start := ends[-1] if ends else 0) < len(statements):
        last = max(min(len(statements), start + LONGEST_RUN), _join_end(statements, start))
        longest = (
            e for e in range(last, start, -1) if e == start + 1 or _fits(program, start, e, last_reads, elsewhere)
        )
        ends.append(next(longest))
    return tuple(ends)


def _join_end(statements: Sequence[Statement], start: int) -> int:
    """Return where the copies into the tensor that the first statement writes end: a concatenation is one unit, however
    long.
    """
    end = start
    while end < len(statements) and copied(statements[end]) and statements[end].target == statements[start].target:
        end += 1
    return end


def _fits(program: Program, start: int, end: int, last_reads: Mapping[str, int], elsewhere: Collection[str]) -> bool:
    """Whether a run of statements is one kernel and all that writes its tensors;
    copies stay apart, they may be views.
    """
    run = program.statements[start:end]
    if len(run) > 1 and (any(s.into for s in run) or _is_narrow(run)):
        return False
    targets = {s.target for s in run}
    writes = _writes(run, end, last_reads, program.outputs)
    if len(targets) > 1 and any(copied(s) and (s.target in writes or _is_part(s, program.tensors)) for s in run):
        return False
    others = (*program.statements[:start], *program.statements[end:])
    if any(s.target in targets for s in others) or not targets.isdisjoint(elsewhere):
        return False
    found = normalise(run, program.tensors, writes, program.constants)
    # Tables that do not fold into a run as a whole may fold into its parts: a transform by rows, then by columns.
    if isinstance(found, Illegal) or (found.constants and len(run) > 1):
        return False
    return len(run) == 1 or not any(map(_spreads, found.segments))


def _spreads(segment: Segment) -> bool:
    """Whether a product's results are written several times, or among zeros: lanes that share it would do that, as they
    would write a row, where threads that stage operands compute it several times as fast.
    """
    own = {r.name for r in segment.reductions}
    wide = [o for o in segment.outputs if o.extra]
    read = [r for o in wide for r in reads(o.body) if r.tensor not in own]
    alone = not any(set(o.extra) & variables(i) for o in wide for r in read for i in r.indices)
    return bool(wide) and alone and any(is_contraction(r, own) for r in segment.reductions)


def _is_narrow(run: Sequence[Statement]) -> bool:
    """Whether a long reduction is apart from something else that takes as long: where few instances would hold it, or
    their rows are too long to be kept. Apart from each other reductions can be split, and the rest has as many threads
    as it has elements.
    """
    work = [(prod(v.extent for v in s.axes), prod(v.extent for v in s.reduce)) for s in run]
    if sum(places * terms >= LONG for places, terms in work) < 2:
        return False
    readers = Counter(tensor for s in run for tensor in s.tensors_read)
    shared = [sum(readers[t] > 1 for t in _rows(s)) for s in run]
    few = any(s.combine and places <= FEW and terms >= LONG for s, (places, terms) in zip(run, work, strict=True))
    return few or any(terms * rows > KEPT for (_, terms), rows in zip(work, shared, strict=True))


def _rows(statement: Statement) -> set[str]:
    """Return the tensors of which a reduction reads other elements for each of its terms."""
    reduced = set(statement.reduce)
    return {r.tensor for r in statement.reads if any(reduced & variables(i) for i in r.indices)}


def _is_part(copy: Statement, tensors: Mapping[str, TensorType]) -> bool:
    """Whether a copy takes a part of a tensor, or repeats it."""
    return any(tensors[r.tensor].size != tensors[copy.target].size for r in copy.reads)


def _writes(
    run: Sequence[Statement], end: int, last_reads: Mapping[str, int], outputs: Sequence[str]
) -> tuple[str, ...]:
    """Return what a run that ends before statement `end` leaves in memory: results, and what later statements read."""
    return tuple(t for t in dict.fromkeys(s.target for s in run) if t in outputs or last_reads.get(t, 0) >= end)


def _last_reads(statements: Sequence[Statement]) -> dict[str, int]:
    """Map each tensor to the last statement that reads it."""
    return {tensor: number for number, statement in enumerate(statements) for tensor in _read([statement])}


def _read(statements: Iterable[Statement]) -> dict[str, None]:
    return dict.fromkeys(tensor for statement in statements for tensor in statement.tensors_read)


class _Constants(Mapping[int, Array]):
    """A node's constant operands; notes whether the declaration looked at them,
    as then the types alone do not decide.
    """

    def __init__(self, arrays: Mapping[int, Array]) -> None:
        self.arrays = arrays
        self.used = False

    def __contains__(self, position: object) -> bool:
        self.used = True
        return position in self.arrays

    def __getitem__(self, position: int) -> Array:
        self.used = True
        return self.arrays[position]

    def __iter__(self) -> Iterator[int]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return max(1, len(self.arrays))


@frozen
class _Part:
    """A run of a program's statements, or one turn of a loop, as a program, with the ends of its units."""

    program: Program
    ends: tuple[int, ...]
    turn: Turn | None = None


def _parts(program: Program, sliced: Sliced) -> Iterator[_Part]:
    """Yield the runs and loops of a program, cut into units."""
    if len(sliced.items) == 1 and not isinstance(sliced.items[0], Turn):
        yield _Part(program, cut(program))
        return
    for place, item in enumerate(sliced.items):
        if isinstance(item, Turn):
            yield _Part(item.program, cut(item.program), item)
            continue
        others = [other for n, other in enumerate(sliced.items) if n != place]
        needed = {*program.outputs, *(t for other in others for t in (*_needs(other), *_leaves(other)))}
        needed |= {part.whole for part in sliced.slices.values()}
        outputs = tuple(t for t in dict.fromkeys(s.target for s in item) if t in needed)
        run = evolve(program, tensors=sliced.tensors, outputs=outputs, statements=item)
        yield _Part(run, cut(run, {t for other in others for t in _leaves(other)}))


def _needs(item: Item) -> Iterable[str]:
    return item.reads if isinstance(item, Turn) else _read(item)


def _leaves(item: Item) -> Iterable[str]:
    return item.writes if isinstance(item, Turn) else (s.target for s in item)


#: What a node means: its instance, the parts of its program, and what is sliced among them.
Meaning: TypeAlias = tuple[Instance, tuple[_Part, ...], Sliced]


@frozen
class _Builder:
    """Builds units node by node; equal nodes share the work."""

    graph: Graph
    registry: Registry
    types: dict[str, TensorType]
    tables: dict[str, tuple[float, ...]] = field(factory=dict)
    slices: dict[str, Slice] = field(factory=dict)
    rotating: dict[str, int] = field(factory=dict)
    loops: list[str] = field(factory=list)
    cache: dict[object, Meaning] = field(factory=dict)

    def units(self, node: Node) -> list[Unit]:
        """Return a node's units over graph values; intermediates are named after the node and entered in `types`."""
        instance, parts, sliced = self._instance(node)
        pairs = [*zip(instance.inputs, node.inputs, strict=False), *zip(instance.outputs, node.outputs, strict=False)]
        names = {formal: value for formal, value in pairs if formal is not None and value is not None}
        for tensor, type_ in sliced.tensors.items():
            if tensor not in names:
                names[tensor] = self._unique(f"{node.name}.{tensor}")
            self.types.setdefault(names[tensor], type_)
        self.tables.update({names[t]: values for t, values in instance.program.constants.items()})
        self.rotating.update({names[whole]: rows for whole, rows in sliced.rotating.items()})
        numbers = count()
        single = sum(len(part.ends) if part.turn is None else 2 for part in parts) == 1
        units: list[Unit] = []
        for part in parts:
            if part.turn is None:
                units += self._units(node, part, names, numbers, single)
            else:
                units.append(self._loop(node, part, part.turn, names, numbers))
        self._name_slices(sliced.slices, names, parts)
        return units

    def _units(
        self, node: Node, part: _Part, names: Mapping[str, str], numbers: Iterator[int], single: bool = False
    ) -> Iterator[Unit]:
        """Yield the units of a run of statements."""
        statements = [rename_statement(s, names) for s in part.program.statements]
        outputs = tuple(names[t] for t in part.program.outputs)
        last_reads = _last_reads(statements)
        for start, end in zip((0, *part.ends), part.ends, strict=False):
            run = statements[start:end]
            own = {s.target for s in run}
            reads = tuple(t for t in _read(run) if t not in own and t not in self.tables)
            name = node.name if single else f"{node.name}/{next(numbers)}"
            if run[0].into:
                reads = (*reads, run[0].target)
                before = _start(run[0], self.types[run[0].target])
                yield Unit(f"{name}.start", node.name, node.op, (before,), (), (before.target,))
            yield Unit(name, node.name, node.op, tuple(run), reads, _writes(run, end, last_reads, outputs))

    def _loop(self, node: Node, part: _Part, turn: Turn, names: Mapping[str, str], numbers: Iterator[int]) -> Unit:
        """Return a recurrence as a unit."""
        self.loops.append(name := f"{node.name}/{next(numbers)}")
        step = Var(f"{turn.step.name}{len(self.loops)}", turn.step.extent)
        kept = tuple(names[t] for t in turn.program.outputs)
        repeat = Repeat(step, tuple(self._units(node, part, names, numbers)), kept)
        reads, writes = (tuple(names[t] for t in each) for each in (turn.reads, turn.writes))
        reads = tuple(t for t in reads if t not in self.tables)
        return Unit(name, node.name, node.op, (), reads, writes, repeat=repeat)

    def _name_slices(self, slices: Mapping[str, Slice], names: Mapping[str, str], parts: Sequence[_Part]) -> None:
        """Enter slices of a node, over steps that no other loop of the graph has."""
        turns = [part.turn for part in parts if part.turn is not None]
        numbers = range(len(self.loops) - len(turns) + 1, len(self.loops) + 1)
        steps = {
            turn.step: as_index(Var(f"{turn.step.name}{n}", turn.step.extent))
            for turn, n in zip(turns, numbers, strict=True)
        }
        for name, part in slices.items():
            starts = tuple(substitute(start, steps) for start in part.starts)
            self.slices[names[name]] = Slice(names[part.whole], starts, part.extents)

    def _instance(self, node: Node) -> Meaning:
        operands = tuple(None if v is None else self.types[v] for v in node.inputs)
        key = (node.op, node.declaration, operands, attributes_key(node.attributes))
        if key not in self.cache:
            arrays = self.graph.constants
            known = _Constants({n: arrays[v] for n, v in enumerate(node.inputs) if v is not None and v in arrays})
            try:
                instance = self.registry.of(node).instantiate(operands, node.attributes, known)
            except (GraphError, SpecError) as error:
                raise retold(error, GraphError, f"node '{node.name}': ", node.span) from error
            program = self._folded(instance, known)
            program = spread_lone_pieces(split_residues(unroll_tables(program)))
            program = settle_scatters(cut_scans(mark_orders(program)))
            sliced = slice_loops(program)
            found = evolve(instance, program=program), tuple(_parts(program, sliced)), sliced
            if known.used:
                return found
            self.cache[key] = found
        return self.cache[key]

    def _folded(self, instance: Instance, known: _Constants) -> Program:
        """Return a node's program, whose lookups in known tables that step evenly are indices."""
        wanted = {t for s in instance.program.statements for t in tensors_looked_up(s)} if known.arrays else set()
        places = {f: n for n, f in enumerate(instance.inputs) if f in wanted and n in known.arrays}
        return fold_lookups(instance.program, {f: known[n] for f, n in places.items()})

    def _unique(self, name: str) -> str:
        while name in self.types:
            name += "_"
        return name


def _start(statement: Statement, type_: TensorType) -> Statement:
    """Return what must stand in a tensor before anything arrives: the identity, everywhere."""
    axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(type_.shape))
    value = Const(COMBINERS[str(statement.into)].identity(type_.dtype), type_.dtype)
    write = tuple(map(as_index, axes))
    return Statement(statement.target, tuple(a for a in axes if a.extent > 1), write, value, span=statement.span)


def copied(statement: Statement) -> Read | None:
    """Return what a pure copy reads, None for any other statement."""
    body = statement.body
    if (
        not statement.is_pointwise
        or not isinstance(body, Read)
        or body.guards
        or any(indirects(i) for i in body.indices)
    ):
        return None
    return body
