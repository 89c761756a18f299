"""Programs: nodes of a graph as statements, cut into kernel units.

The unit of fusion is the statement, but most operations are one kernel as a whole, so a `Unit` is a run of a node's
statements: the whole program where it has a normal form, else the longest runs that have one, with the tensors between
them in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
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
    Slice,
    SpecError,
    Statement,
    Target,
    TensorType,
    Var,
    as_index,
    attributes_key,
    convert_error,
    rename_statement,
    substitute,
)
from ...ops import Instance, Registry
from ...ops.language import live_statements, walk_recurrences
from ..statements import (
    MAX_NETWORK_ROW,
    IntegerFact,
    Programs,
    Repeat,
    Unit,
    bypass_copies,
    divide_scans,
    fact_of_array,
    fold_gathers,
    integer_facts,
    longest_sorted_row,
    make_scatters_atomic,
    make_scatters_deterministic,
    mark_sorts,
    replace_known_tables,
    separate_lone_pieces,
    split_residues,
    tensors_looked_up,
)
from .cut_units import copy_source, cut_units, last_reads_of, tensors_left_by, tensors_read_by
from .fold_tables import unroll_tables
from .recurrences import Item, Iteration, Sliced, slice_loops


def build_programs(
    graph: Graph,
    registry: Registry,
    known: dict[object, Meaning] | None = None,
    deterministic: bool = True,
    target: Target | None = None,
) -> Programs:
    """Instantiate every node's declaration and cut the programs into units.

    Graphs of one vocabulary may share `known` instances and parts of nodes. Unless `deterministic`,
    scatters combine floats in any order. Rows up to the longest of the `target` are sorted.
    """
    cache, row = {} if known is None else known, longest_sorted_row(target) if target else MAX_NETWORK_ROW
    invariant, types = target is not None and target.invariant, dict(graph.types)
    builder = _Builder(
        graph, registry, types, cache=cache, deterministic=deterministic, longest=row, invariant=invariant
    )
    units = _past_copies([unit for node in graph.nodes for unit in builder.units(node)])
    units = replace_known_tables(units, graph.constants)
    return Programs(graph, tuple(units), builder.types, builder.tables, builder.slices, builder.rotating)


def _past_copies(units: Sequence[Unit]) -> list[Unit]:
    """Return units that look up integers in the sources of copies.

    Tensors that loops write, or that stay in a unit, are left out.
    """
    written: dict[str, list[Statement]] = {}
    for unit in units:
        for statement in unit.statements:
            written.setdefault(statement.target, []).append(statement)
    loops = {t for unit in units if unit.repeat for t in unit.writes}
    passed = written.keys() - {t for unit in units for t in unit.writes}
    copies: dict[str, list[tuple[Statement, Read]]] = {}
    for tensor, found in written.items():
        reads = [(s, copy_source(s)) for s in found]
        sources = [(s, read) for s, read in reads if read is not None and read.tensor not in loops | passed]
        if len(sources) == len(found) and tensor not in loops:
            copies[tensor] = sources
    return [_looks_past(unit, copies) for unit in units]


def _looks_past(unit: Unit, copies: Mapping[str, Sequence[tuple[Statement, Read]]]) -> Unit:
    """Return a unit that looks up integers in the sources of copies."""
    found = [s for s in unit.statements if not copies.keys().isdisjoint(s.tensors_read)]
    if unit.repeat is not None or not any(t in copies for s in found for t in tensors_looked_up(s)):
        return unit
    statements = tuple(bypass_copies(s, copies) for s in unit.statements)
    before, after = tensors_read_by(unit.statements), tensors_read_by(statements)
    reads = [t for t in unit.reads if t in after or t not in before]
    reads += [t for t in after if t not in before]
    return evolve(unit, statements=statements, reads=tuple(dict.fromkeys(reads)))


class _Constants(Mapping[int, Array]):
    """A node's constant operands; notes whether the declaration reads them, as then the types alone do not decide."""

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
    turn: Iteration | None = None


def _runs_and_loops(program: Program, sliced: Sliced, invariant: bool) -> Iterator[_Part]:
    """Yield the runs and loops of a program, cut into units."""
    if len(sliced.items) == 1 and not isinstance(sliced.items[0], Iteration):
        yield _Part(program, cut_units(program, invariant=invariant))
        return
    for place, item in enumerate(sliced.items):
        if isinstance(item, Iteration):
            yield _Part(item.program, cut_units(item.program, invariant=invariant), item)
            continue
        others = [other for n, other in enumerate(sliced.items) if n != place]
        needed = {*program.outputs, *(t for other in others for t in (*_needs(other), *_leaves(other)))}
        needed |= {part.whole for part in sliced.slices.values()}
        outputs = tuple(t for t in dict.fromkeys(s.target for s in item) if t in needed)
        run = evolve(program, tensors=sliced.tensors, outputs=outputs, statements=item)
        yield _Part(run, cut_units(run, {t for other in others for t in _leaves(other)}, invariant))


def _needs(item: Item) -> Iterable[str]:
    return item.reads if isinstance(item, Iteration) else tensors_read_by(item)


def _leaves(item: Item) -> Iterable[str]:
    return item.writes if isinstance(item, Iteration) else (s.target for s in item)


#: Meaning of a node: its instance, the parts of its program, the sliced program, and facts of integers by formal name.
Meaning: TypeAlias = tuple[Instance, tuple[_Part, ...], Sliced, Mapping[str, IntegerFact]]


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
    deterministic: bool = True
    longest: int = MAX_NETWORK_ROW
    invariant: bool = False
    facts: dict[str, IntegerFact | None] = field(factory=dict)

    def units(self, node: Node) -> list[Unit]:
        """Return a node's units over graph values.

        Intermediates are named after the node and entered in `types`.
        """
        instance, parts, sliced, facts = self._instance(node)
        pairs = [*zip(instance.inputs, node.inputs, strict=False), *zip(instance.outputs, node.outputs, strict=False)]
        names = {formal: value for formal, value in pairs if formal is not None and value is not None}
        self.facts.update({names[formal]: fact for formal, fact in facts.items() if formal in names})
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
        last_reads = last_reads_of(statements)
        for start, end in zip((0, *part.ends), part.ends, strict=False):
            run = statements[start:end]
            own = {s.target for s in run}
            reads = tuple(t for t in tensors_read_by(run) if t not in own and t not in self.tables)
            name = node.name if single else f"{node.name}/{next(numbers)}"
            if run[0].combines_in_memory:
                reads = (*reads, run[0].target)
            if run[0].combines_in_memory and run[0].target not in {s.target for s in statements[:start]}:
                before = _start(run[0], self.types[run[0].target])
                yield Unit(f"{name}.start", node.name, node.op, (before,), (), (before.target,))
            yield Unit(name, node.name, node.op, tuple(run), reads, tensors_left_by(run, end, last_reads, outputs))

    def _loop(self, node: Node, part: _Part, turn: Iteration, names: Mapping[str, str], numbers: Iterator[int]) -> Unit:
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
        facts = tuple(map(self._fact, node.inputs))
        key = (node.op, node.declaration, operands, attributes_key(node.attributes), facts)
        if key not in self.cache:
            arrays = self.graph.constants
            known = _Constants({n: arrays[v] for n, v in enumerate(node.inputs) if v is not None and v in arrays})
            try:
                instance = self.registry.of(node).instantiate(operands, node.attributes, known)
            except (GraphError, SpecError) as error:
                raise convert_error(error, GraphError, f"node '{node.name}': ", node.span) from error
            given = {f: fact for f, fact in zip(instance.inputs, facts, strict=False) if f and fact}
            derived = integer_facts(instance.program, given)
            program = self._fold_lookups(instance, known)
            program = walk_recurrences(program)
            program = separate_lone_pieces(split_residues(unroll_tables(program)))
            choose_form = make_scatters_deterministic if self.deterministic else make_scatters_atomic
            ordered = [tensor for tensor, fact in derived.items() if fact.ordered]
            program = choose_form(divide_scans(mark_sorts(program, self.longest), self.invariant), ordered)
            program = evolve(program, statements=live_statements(program.statements, program.outputs))
            sliced = slice_loops(program)
            parts = tuple(_runs_and_loops(program, sliced, self.invariant))
            found = evolve(instance, program=program), parts, sliced, derived
            if known.used:
                return found
            self.cache[key] = found
        return self.cache[key]

    def _fact(self, value: str | None) -> IntegerFact | None:
        """Return the fact of a value of the graph."""
        if value is None or not self.types[value].dtype.is_int:
            return None
        if value not in self.facts and value in self.graph.constants:
            self.facts[value] = fact_of_array(self.graph.constants[value])
        return self.facts.get(value)

    def _fold_lookups(self, instance: Instance, known: _Constants) -> Program:
        """Return a node's program with evenly stepping lookups in known tables as indices."""
        wanted = {t for s in instance.program.statements for t in tensors_looked_up(s)} if known.arrays else set()
        places = {f: n for n, f in enumerate(instance.inputs) if f in wanted and n in known.arrays}
        return fold_gathers(instance.program, {f: known[n] for f, n in places.items()})

    def _unique(self, name: str) -> str:
        while name in self.types:
            name += "_"
        return name


def _start(statement: Statement, type_: TensorType) -> Statement:
    """Return the initial value of a scatter's target: the identity, everywhere."""
    axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(type_.shape))
    value = Const(COMBINERS[str(statement.into)].identity(type_.dtype), type_.dtype)
    write = tuple(map(as_index, axes))
    return Statement(statement.target, tuple(a for a in axes if a.extent > 1), write, value, span=statement.span)
