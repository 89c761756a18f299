"""Programs: every node of a graph as statements over graph values, cut into units that one kernel can compute.

The unit of fusion is the statement, but most operations are one kernel as a whole, so a `Unit` is a run of a node's
statements: the whole program where it has a normal form, else the longest runs that have one, with the tensors between
them in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    SpecError,
    Statement,
    TensorType,
    Var,
    as_index,
    indirects,
    retold,
)
from ...ops import Instance, Registry
from .fold_tables import unroll_tables
from .normalise import Illegal, normalise
from .rename import rename_statement
from .scatters import settle_scatters

#: Statements that one unit may have: declarations rarely have as many, an unrolled recurrence has thousands.
LONGEST_RUN = 24


@frozen
class Unit:
    """Statements of one node that are never torn apart.

    `reads` are the tensors it needs from elsewhere, `writes` those it may leave in memory, both in order. `free` units
    need no kernel: their result is a view of, or a place inside, a buffer that exists anyway.
    """

    name: str
    node: str
    op: str
    statements: tuple[Statement, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    free: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor of its statements, in order of first occurrence: what a pattern numbers."""
        found: dict[str, None] = {}
        for statement in self.statements:
            found.update(dict.fromkeys((*statement.tensors_read, statement.target)))
        return tuple(found)


@frozen
class Programs:
    """A graph as units in topological order; `types` and `tables` also cover tensors that exist only between units."""

    graph: Graph
    units: tuple[Unit, ...]
    types: Mapping[str, TensorType]
    tables: Mapping[str, tuple[float, ...]] = field(factory=dict)

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


def build_programs(graph: Graph, registry: Registry) -> Programs:
    """Instantiate every node's declaration and cut the programs into units."""
    builder = _Builder(graph, registry, dict(graph.types))
    units = [unit for node in graph.nodes for unit in builder.units(node)]
    return Programs(graph, tuple(units), builder.types, builder.tables)


def cut(program: Program) -> tuple[int, ...]:
    """Return where the program's units end: each is as long as has a normal form; one statement always has one."""
    statements = program.statements
    last_reads = _last_reads(statements)
    ends: list[int] = []
    while (start := ends[-1] if ends else 0) < len(statements):
        last = max(min(len(statements), start + LONGEST_RUN), _join_end(statements, start))
        longest = (e for e in range(last, start, -1) if e == start + 1 or _fits(program, start, e, last_reads))
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


def _fits(program: Program, start: int, end: int, last_reads: Mapping[str, int]) -> bool:
    """Whether a run of statements is one kernel and all that writes its tensors;
    copies stay apart, they may be views.
    """
    run = program.statements[start:end]
    if len(run) > 1 and any(s.into for s in run):
        return False
    targets = {s.target for s in run}
    writes = _writes(run, end, last_reads, program.outputs)
    if len(targets) > 1 and any(copied(s) and (s.target in writes or _is_part(s, program.tensors)) for s in run):
        return False
    if any(s.target in targets for s in (*program.statements[:start], *program.statements[end:])):
        return False
    found = normalise(run, program.tensors, writes, program.constants)
    # Tables that do not fold into a run as a whole may fold into its parts: a transform by rows, then by columns.
    return not isinstance(found, Illegal) and not (found.constants and len(run) > 1)


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
class _Builder:
    """Builds units node by node; equal nodes share the work."""

    graph: Graph
    registry: Registry
    types: dict[str, TensorType]
    tables: dict[str, tuple[float, ...]] = field(factory=dict)
    cache: dict[object, tuple[Instance, tuple[int, ...]]] = field(factory=dict)

    def units(self, node: Node) -> list[Unit]:
        """Return a node's units over graph values; intermediates are named after the node and entered in `types`."""
        instance, ends = self._instance(node)
        program = instance.program
        pairs = [*zip(instance.inputs, node.inputs, strict=False), *zip(instance.outputs, node.outputs, strict=False)]
        names = {formal: value for formal, value in pairs if formal is not None and value is not None}
        for tensor, type_ in program.tensors.items():
            if tensor not in names:
                names[tensor] = self._unique(f"{node.name}.{tensor}")
            self.types.setdefault(names[tensor], type_)
        self.tables.update({names[t]: values for t, values in program.constants.items()})
        statements = [rename_statement(s, names) for s in program.statements]
        outputs = tuple(names[t] for t in program.outputs)
        last_reads = _last_reads(statements)
        units: list[Unit] = []
        for number, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
            run = statements[start:end]
            own = {s.target for s in run}
            reads = tuple(t for t in _read(run) if t not in own and t not in self.tables)
            name = node.name if len(ends) == 1 else f"{node.name}/{number}"
            if run[0].into:
                reads = (*reads, run[0].target)
                before = _start(run[0], self.types[run[0].target])
                units.append(Unit(f"{name}.start", node.name, node.op, (before,), (), (before.target,)))
            units.append(Unit(name, node.name, node.op, tuple(run), reads, _writes(run, end, last_reads, outputs)))
        return units

    def _instance(self, node: Node) -> tuple[Instance, tuple[int, ...]]:
        operands = tuple(None if v is None else self.types[v] for v in node.inputs)
        key = (node.op, operands, tuple(sorted(node.attributes.items())))
        if key not in self.cache:
            arrays = self.graph.constants
            known = _Constants({n: arrays[v] for n, v in enumerate(node.inputs) if v is not None and v in arrays})
            try:
                instance = self.registry[node.op].instantiate(operands, node.attributes, known)
            except (GraphError, SpecError) as error:
                raise retold(error, GraphError, f"node '{node.name}': ", node.span) from error
            program = settle_scatters(unroll_tables(instance.program))
            found = evolve(instance, program=program), cut(program)
            if known.used:
                return found
            self.cache[key] = found
        return self.cache[key]

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
