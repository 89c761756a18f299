"""Printing a phase: a folded data-flow graph becomes nests of unrolled loops over register arrays and scalars (section 6.1).

Nodes come in reverse post order. Families over the same box share a nest; a reduced variable opens a scope in which its loads, products and
accumulations stand together. What one nest makes and another uses is a register array, everything else a scalar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import define, field

from ..ir.dfg import (
    Accumulate,
    Convert,
    Held,
    IndexNode,
    Initialise,
    LaneReduce,
    Literal,
    Load,
    Node,
    Op,
    Store,
    Test,
    Value,
    WideStore,
    Window,
    operands,
    own_variables,
    post_order,
    substitute_node,
)
from ..ir.expr import Guard
from ..ir.functions import COMBINE_FUNCTION, COMBINERS
from ..ir.index import Index, IndexLike, Var, as_index, linearise
from ..ir.kernel import Phase
from ..ir.types import DType, row_major
from ..ir.vector import vector_address, vector_guards
from .ctext import call_text, guard_text, index_text, literal_text, number_text
from .scope import Names, Writer

#: Largest body of accumulations, and of loads and stores, that a scope is unrolled to.
_UNROLLED_OPERATIONS = 2048
_UNROLLED_MOVES = 160
_UNROLLED_FETCHES = 32


@define
class _Unit:
    """Nodes that are printed in one nest. `key` says which nodes may join it."""

    key: tuple[object, ...]
    nodes: list[Node] = field(factory=list)


@define
class PhasePrinter:
    """Prints one phase into a writer."""

    phase: Phase
    names: Names
    out: Writer
    boxes: dict[Node, tuple[Var, ...]] = field(factory=dict)
    users: dict[Node, list[Node]] = field(factory=dict)
    declared: dict[Node, tuple[Var, ...]] = field(factory=dict)
    texts: dict[Node, str] = field(factory=dict)
    scopes: frozenset[Var] = frozenset()

    def print(self) -> None:
        """Print the phase, under its condition if it has one."""
        order = post_order(self.phase.roots)
        for node in order:
            self.boxes[node] = self._box(node)
            for operand in operands(node):
                self.users.setdefault(operand, []).append(node)
        # A reduced variable that loads walk as a vector opens no scope: its loads stand before all of its uses.
        vectors = {self._vector_var(n, self.boxes[n]) for n in order if isinstance(n, Load) and self.boxes[n]}
        self.scopes = frozenset(v for r in self.phase.roots if isinstance(r, Accumulate) for v in r.over if v not in vectors)
        if self.phase.kind == "fetch":
            self.scopes = frozenset(self.phase.unrolled[:1])
        nodes = [n for n in order if not _inline_always(n) and not (isinstance(n, Load) and self._feeds_copy(n))]
        condition = guard_text(self.phase.when, self.names.pointers)
        with self.out.block(f"if ({condition})" if self.phase.when else ""):
            self._block(nodes, ())

    def _box(self, node: Node) -> tuple[Var, ...]:
        own = set(own_variables(node))
        if isinstance(node, Accumulate):
            own |= set(node.over)
        for operand in operands(node):
            own |= set(self.boxes[operand])
        if isinstance(node, Window):
            own -= set(node.axes)
        return tuple(v for v in self.phase.unrolled if v in own)

    def _block(self, nodes: Sequence[Node], opened: tuple[Var, ...]) -> None:
        """Print nodes under the loops already opened: form units, declare what crosses them, print each."""
        units = self._units(nodes, opened)
        home = {node: unit for unit in units for node in unit.nodes}
        for unit in units:
            self._declare(unit, home, opened)
            rest = self._rest(unit.nodes[0], opened)
            if unit.key[0] == "scope":
                with self.out.loop(rest[0], self._unroll(unit.nodes, opened, rest[0])):
                    self._block(unit.nodes, (*opened, rest[0]))
            elif unit.key[0] == "vector":
                var = self._vector_var(unit.nodes[0], rest)
                assert var is not None
                with self.out.loops([v for v in rest if v != var]):
                    self._vector(unit.nodes[0], var)
            else:
                with self.out.loops(rest):
                    for node in unit.nodes:
                        self._node(node)

    def _unroll(self, nodes: Sequence[Node], opened: tuple[Var, ...], var: Var) -> int:
        """Return how often to unroll a scope: compile time and register pressure grow superlinearly with its text."""
        sizes = {n: prod(v.extent for v in self._rest(n, opened)) for n in nodes}
        operations = sum(size for n, size in sizes.items() if isinstance(n, Accumulate))
        moves = sum(size // self._width(n, opened) for n, size in sizes.items() if isinstance(n, (Load, Store, WideStore)))
        limit = _UNROLLED_FETCHES if self.phase.kind == "fetch" else _UNROLLED_MOVES
        times = min(var.extent, _UNROLLED_OPERATIONS * var.extent // max(1, operations), limit * var.extent // max(1, moves))
        return max(1, times)

    def _width(self, node: Node, opened: tuple[Var, ...]) -> int:
        rest = self._rest(node, opened)
        var = self._vector_var(node, rest)
        return var.extent if var else 1

    def _rest(self, node: Node, opened: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(v for v in self.boxes[node] if v not in opened)

    def _key(self, node: Node, opened: tuple[Var, ...]) -> tuple[object, ...]:
        rest = self._rest(node, opened)
        if isinstance(node, (Initialise, LaneReduce)):
            return ("fence", node)
        if rest and rest[0] in self.scopes:
            only = len(rest) == 1 and self._vector_var(node, rest)
            return ("vector", node) if only else ("scope", rest[0])
        if self._vector_var(node, rest):
            return ("vector", node)
        return ("nest", rest)

    def _units(self, nodes: Sequence[Node], opened: tuple[Var, ...]) -> list[_Unit]:
        """Group nodes greedily: a node joins the last unit of its key unless a later unit makes one of its operands."""
        units: list[_Unit] = []
        place: dict[Node, int] = {}
        fence = 0
        for node in nodes:
            key = self._key(node, opened)
            earliest = max([fence, *(place[o] for o in _sources(node) if o in place)], default=0)
            chosen = next((i for i in range(len(units) - 1, earliest - 1, -1) if units[i].key == key), None)
            if chosen is None:
                units.append(_Unit(key))
                chosen = len(units) - 1
            units[chosen].nodes.append(node)
            place[node] = chosen
            if key[0] == "fence":
                fence = len(units)
        return units

    def _declare(self, unit: _Unit, home: dict[Node, _Unit], opened: tuple[Var, ...]) -> None:
        """Declare the values of a unit that another one uses, as arrays over the box that is not yet open."""
        for node in unit.nodes:
            if isinstance(node, (Store, WideStore, Accumulate, Initialise, LaneReduce)) or node in self.declared:
                continue
            if all(home.get(u) is unit for u in self.users.get(node, [])) and unit.key[0] != "vector":
                continue
            rest = self._rest(node, opened)
            self.declared[node] = rest
            name = self.names.fresh()
            self.texts[node] = name
            # Arrays are flat: PoCL miscompiles vector stores from private arrays of several dimensions.
            size = f"[{prod(v.extent for v in rest)}]" if rest else ""
            self.out.line(f"{self.names.dialect.type(node.dtype)} {name}{size};")

    def _vector_var(self, node: Node, rest: Sequence[Var]) -> Var | None:
        """Return the variable along which a load or store moves neighbours at once, None where it moves single elements."""
        if not isinstance(node, (Load, Store)) or node.dtype not in (DType.F32, DType.I32):
            return None
        return next((v for v in reversed(rest) if self._walks_vector(node, v)), None)

    def _walks_vector(self, node: Load | Store, var: Var) -> bool:
        if var.extent not in (2, 4) or self.names.alignment(node.space, node.buffer) % var.extent or var not in own_variables(node):
            return False
        if vector_address(node.address, var) is None or vector_guards(node.guards, var) is None:
            return False
        asynchronous = self.phase.asynchronous and bool(self.names.dialect.copy)
        return not asynchronous or self._async_vector(node, var)

    def _async_vector(self, node: Load | Store, var: Var) -> bool:
        """An asynchronous copy moves a vector only where both of its ends do."""
        if isinstance(node, Load):
            return False
        load = node.value
        return isinstance(load, Load) and vector_address(load.address, var) is not None and vector_guards(load.guards, var) is not None

    def _vector(self, node: Node, var: Var) -> None:
        dialect, pointers = self.names.dialect, self.names.pointers
        assert isinstance(node, (Load, Store))
        start, guards = vector_address(node.address, var), vector_guards(node.guards, var)
        assert start is not None and guards is not None
        if isinstance(node, Store) and self._is_copy(node):
            self._copy(node, var)
            return
        if isinstance(node, Store):
            self._vector_store(node, start, guards, [self._lane_text(node.value, var, n) for n in range(var.extent)])
            return
        where = self._vector_place(node, start, var.extent)
        vector, condition = where["vector"], f"if ({guard_text(guards, pointers)}) " if guards else ""
        name = self.names.fresh()
        fill = number_text(node.fill, node.dtype, dialect)
        if guards:
            self.out.line(f"{vector} {name}; {'; '.join(f'{name}.{c} = {fill}' for c in 'xyzw'[: var.extent])};")
            self.out.line(f"{condition}{name} = {dialect.vector_load.format(**where)};")
        else:
            self.out.line(f"{vector} {name} = {dialect.vector_load.format(**where)};")
        for n in range(var.extent):
            self.out.line(f"{self._lane_text(node, var, n)} = {name}.{'xyzw'[n]};")

    def _vector_store(self, node: Store | WideStore, start: Index, guards: Sequence[Guard], values: Sequence[str]) -> None:
        condition = f"if ({guard_text(guards, self.names.pointers)}) " if guards else ""
        place = self._vector_place(node, start, len(values))
        self.out.line(condition + self.names.dialect.vector_store.format(**place, values=", ".join(values)))

    def _vector_place(self, node: Load | Store | WideStore, start: Index, width: int) -> dict[str, str]:
        """Return what the templates of vector accesses ask for."""
        vector = self.names.dialect.vector.format(type=self.names.dialect.memory_type(node.dtype), width=width)
        space = "__global" if node.space == "global" else "__local"
        return {
            "p": self.names.buffer(node.space, node.buffer),
            "i": index_text(start, self.names.pointers),
            "vector": vector,
            "space": space,
        }

    def _lane_text(self, node: Value, var: Var, number: int) -> str:
        if isinstance(node, (Held, IndexNode, Test)):
            return self._expression(substitute_node(node, {var: number}, {}))
        return self._element(node, {var: number})

    def _is_copy(self, node: Store) -> bool:
        return self.phase.asynchronous and bool(self.names.dialect.copy) and isinstance(node.value, Load)

    def _copy(self, node: Store, var: Var | None) -> None:
        """Print an asynchronous copy from global to shared memory; a failed guard copies zeros."""
        load = node.value
        assert isinstance(load, Load)
        to, start, outer, inner = node.address, load.address, node.guards, load.guards
        if var is not None:
            to, start = vector_address(to, var) or to, vector_address(start, var) or start
            outer, inner = vector_guards(outer, var) or (), vector_guards(inner, var) or ()
        pointers = self.names.pointers
        text = self.names.dialect.copy.format(
            bytes=4 * (var.extent if var else 1),
            d=self.names.buffer(node.space, node.buffer),
            di=index_text(to, pointers),
            s=self.names.buffer(load.space, load.buffer),
            si=index_text(start, pointers),
            ok=guard_text([g for g in inner if g not in outer], pointers),
        )
        self.out.line((f"if ({guard_text(outer, pointers)}) " if outer else "") + text)

    def _node(self, node: Node) -> None:
        if isinstance(node, Store):
            self._store(node)
        elif isinstance(node, WideStore):
            self._vector_store(node, node.address, node.guards, [self._text(v) for v in node.values])
        elif isinstance(node, Accumulate):
            self._accumulate(node)
        elif isinstance(node, Initialise):
            identity = number_text(_identity(node.combine, node.dtype), node.dtype, self.names.dialect)
            self.names.initialise(self.out, node, identity)
        elif isinstance(node, LaneReduce):
            self.names.lane_reduce(self.out, node)
        elif node in self.declared:
            self.out.line(f"{self._element(node, {})} = {self._expression(node)};")
        elif not (isinstance(node, (Op, Convert)) and len(self.users.get(node, [])) == 1):
            name = self.names.fresh()
            self.out.line(f"const {self.names.dialect.type(node.dtype)} {name} = {self._expression(node)};")
            self.texts[node] = name

    def _feeds_copy(self, node: Load) -> bool:
        return all(isinstance(u, Store) and self._is_copy(u) for u in self.users.get(node, [])) and bool(self.users.get(node))

    def _store(self, node: Store) -> None:
        if self._is_copy(node):
            self._copy(node, None)
            return
        dialect, pointers = self.names.dialect, self.names.pointers
        template = dialect.store.get(node.dtype.value, "{p}[{i}] = {v};")
        text = template.format(p=self.names.buffer(node.space, node.buffer), i=index_text(node.address, pointers), v=self._text(node.value))
        self.out.line((f"if ({guard_text(node.guards, pointers)}) " if node.guards else "") + text)

    def _accumulate(self, node: Accumulate) -> None:
        held = self.names.held(node.name, node.at)
        if node.combine == "sum":
            self.out.line(f"{held} += {self._text(node.value)};")
            return
        combined = call_text(COMBINE_FUNCTION[node.combine], (held, self._text(node.value)), node.dtype, self.names.dialect)
        self.out.line(f"{held} = {combined};")

    def _text(self, node: Value) -> str:
        if isinstance(node, Window) and node.load in self.declared:
            return self._element(node.load, dict(zip(node.axes, node.at, strict=True)))
        return self._element(node, {}) if node in self.texts else self._expression(node)

    def _element(self, node: Value, at: Mapping[Var, IndexLike]) -> str:
        """Return a value by its name: an element of its array where it was declared as one; `at` replaces variables of its box."""
        name, rest = self.texts.get(node, ""), self.declared.get(node, ())
        if not name:
            return self._expression(node)
        if not rest:
            return name
        flat = linearise([as_index(at.get(v, v)) for v in rest], row_major(tuple(v.extent for v in rest)))
        return f"{name}[{index_text(flat, self.names.pointers)}]"

    def _expression(self, node: Value) -> str:
        dialect, pointers = self.names.dialect, self.names.pointers
        if isinstance(node, Literal):
            return literal_text(node, dialect)
        if isinstance(node, IndexNode):
            return f"({dialect.type(node.dtype)})({index_text(node.index, pointers, raw=True)})"
        if isinstance(node, Test):
            return f"({guard_text(node.guards, pointers)})"
        if isinstance(node, Held):
            return self.names.held(node.name, node.at)
        if isinstance(node, Op):
            kind = node.args[-1 if node.fn == "select" else 0].dtype
            return call_text(node.fn, [self._text(a) for a in node.args], kind, dialect)
        if isinstance(node, Convert):
            text = self._text(node.arg)
            return f"({text} != 0)" if node.dtype is DType.BOOL else f"(({dialect.type(node.dtype)}){text})"
        assert isinstance(node, Load), "a window is named by its loads, which are always declared"
        template = "{p}[{i}]" if node.space == "constant" else dialect.load.get(node.dtype.value, "{p}[{i}]")
        text = template.format(p=self.names.buffer(node.space, node.buffer), i=index_text(node.address, pointers))
        if not node.guards:
            return text
        return f"({guard_text(node.guards, pointers)} ? {text} : {number_text(node.fill, node.dtype, dialect)})"


def _inline_always(node: Node) -> bool:
    return isinstance(node, (Literal, Held, Test, IndexNode, Window))


def _sources(node: Node) -> list[Value]:
    """Return the operands that are printed themselves: a window stands for its loads."""
    return [o.load if isinstance(o, Window) else o for o in operands(node)]


def _identity(combine: str, dtype: DType) -> float | int:
    if dtype.is_float:
        return COMBINERS[combine]
    return {"sum": 0, "prod": 1, "max": -(2**63), "min": 2**63 - 1}[combine]


def print_phase(phase: Phase, names: Names, out: Writer) -> None:
    """Print a phase of one thread."""
    PhasePrinter(phase, names, out).print()
