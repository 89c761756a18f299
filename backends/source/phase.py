"""Printer of a phase: unrolled loop nests over registers (section 6.1).

Nodes come in reverse post order. Families over the same box share a nest; a reduced variable opens a scope with its
loads, products and accumulations. A value that one nest computes and another uses is a register array, everything else
a scalar. Atomic updates have a nest of their own: their operands are loaded before the first of them, as no load
crosses an atomic operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast, get_args

from attrs import define, field

from ...ir import (
    Accumulate,
    AsyncCopy,
    DfgNode,
    IndexNode,
    Initialise,
    LaneProduct,
    LaneReduce,
    LdMatrix,
    Literal,
    Load,
    Mma,
    PackedLoad,
    Phase,
    RegisterRead,
    RegisterWrite,
    Root,
    SharedMatrix,
    Store,
    Test,
    Value,
    Var,
    VectorLoad,
    WarpgroupMma,
    Window,
    box_variables,
    node_users,
    variables,
    vector_axes,
)
from .index_ctext import guard_text
from .needed_nodes import needed_nodes, registers_read, source_nodes
from .nodes import NodePrinter
from .scope import KernelNames, Writer
from .text_size import unroll_factor

_OFFSETS = (AsyncCopy, PackedLoad, LdMatrix)
_ROOTS = get_args(Root)


@define
class _Unit:
    """Nodes of one nest; nodes with the same `key` may join it."""

    key: tuple[object, ...]
    nodes: list[DfgNode] = field(factory=list)


@define
class PhasePrinter:
    """Prints one phase into a writer."""

    phase: Phase
    names: KernelNames
    out: Writer
    boxes: dict[DfgNode, tuple[Var, ...]] = field(factory=dict)
    users: dict[DfgNode, list[DfgNode]] = field(factory=dict)
    printer: NodePrinter = field(init=False)
    arriving: bool = field(init=False)

    @arriving.default
    def _arriving(self) -> bool:
        return all(isinstance(root, Store) and root.into is not None for root in self.phase.roots)

    @printer.default
    def _printer(self) -> NodePrinter:
        return NodePrinter(self.phase, self.names, self.out, self.users)

    def print(self) -> None:
        """Print the phase, under its condition if it has one."""
        self.boxes = box_variables(self.phase.roots, self.phase.unrolled)
        self.users.update(node_users(self.boxes))
        nodes = [n for n in self.boxes if not _inline_always(n)]
        condition = guard_text(self.phase.when, self.names.pointers)
        with self.out.block(f"if ({condition})" if self.phase.when else ""):
            self._block(nodes, ())

    def _block(self, nodes: Sequence[DfgNode], opened: tuple[Var, ...]) -> None:
        """Print nodes under the opened loops: form units, declare values that cross them, print each."""
        units = self._units(self._hoist(nodes, opened), opened)
        home = {node: unit for unit in units for node in unit.nodes}
        for unit in units:
            self._declare(unit, home, opened)
            rest = self._rest(unit.nodes[0], opened)
            if unit.key[0] == "scope":
                fixed = self._addresses_registers(unit, home, rest[0])
                times = rest[0].extent if fixed else self._unroll(unit.nodes, opened, rest[0])
                with self.out.loop(rest[0], times, self._meets(unit.nodes)):
                    self._block(unit.nodes, (*opened, rest[0]))
            elif isinstance(unit.nodes[0], LaneReduce):
                self.printer.reduce_lanes(*cast("list[LaneReduce]", unit.nodes))
            elif unit.key[0] == "arriving":
                for node in unit.nodes:
                    assert isinstance(node, Store)
                    self.printer.update(node, rest)
            else:
                axes = vector_axes(unit.nodes[0])
                with self.out.loops([v for v in rest if v not in axes], self._meets(unit.nodes)):
                    for node in unit.nodes:
                        self.printer.statement(node)

    def _hoist(self, nodes: Sequence[DfgNode], opened: tuple[Var, ...]) -> list[DfgNode]:
        """Return nodes with operands of a scope hoisted before it; no node passes a fence."""
        found: list[DfgNode] = []
        part: list[DfgNode] = []
        for node in nodes:
            if self._key(node, opened)[0] == "fence":
                found += [*self._scopes_last(part, opened), node]
                part = []
            else:
                part.append(node)
        return [*found, *self._scopes_last(part, opened)]

    def _scopes_last(self, nodes: Sequence[DfgNode], opened: tuple[Var, ...]) -> Sequence[DfgNode]:
        """Return nodes with operands of a scope, which do not depend on it, before it."""
        for var in (v for v in self.phase.unrolled if v in self.phase.scopes):
            inside = {n for n in nodes if (rest := self._rest(n, opened)) and rest[0] == var}
            after, wanted = set[object](inside), set[object]()
            needed = needed_nodes(nodes)
            for node in nodes:
                if any(source in after for source in needed[node]):
                    after.add(node)
            for node in reversed(nodes):
                if node in inside or node in wanted:
                    wanted.update(needed[node])
            early = {n for n in nodes if n in wanted and n not in after}
            nodes = [*(n for n in nodes if n in early), *(n for n in nodes if n not in early)]
        return nodes

    def _addresses_registers(self, unit: _Unit, home: dict[DfgNode, _Unit], var: Var) -> bool:
        """Return whether a scope addresses registers by its variable, which then has to be constant in each iteration:
        for values that it passes to other units, those that it gets from others, and those along a row.
        """
        if any(var in self.boxes[node] for node in unit.nodes if isinstance(node, _OFFSETS)):
            return True
        if any(isinstance(node, WarpgroupMma) for node in unit.nodes):
            return True
        left = (n for n in unit.nodes if any(home.get(u) is not unit for u in self.users.get(n, [])))
        found = (o for n in unit.nodes for o in source_nodes(n) if home.get(o) is not unit and not _inline_always(o))
        own = (n.at for n in unit.nodes if isinstance(n, (RegisterRead, Accumulate, LaneProduct, RegisterWrite)))
        held = (*own, *(at for n in unit.nodes for _, at in registers_read(n)))
        along = any(var in variables(i) for at in held for i in at)
        return along or any(var in self.boxes[node] for node in (*left, *found))

    def _unroll(self, nodes: Sequence[DfgNode], opened: tuple[Var, ...], var: Var) -> int:
        """Return the unroll factor of a scope."""
        sizes = {n: prod(v.extent for v in self._rest(n, opened)) for n in nodes}
        return unroll_factor(var.extent, sizes, self.users, self.phase.kind == "fetch")

    def _meets(self, nodes: Sequence[DfgNode]) -> bool:
        """Return whether threads synchronise in some nodes."""
        products = [n for n in nodes if isinstance(n, (LaneProduct, Mma, WarpgroupMma))]
        held = any(not isinstance(n, WarpgroupMma) or isinstance(n.a, RegisterRead) for n in products)
        return self.names.dialect.atoms_meet and held

    def _rest(self, node: DfgNode, opened: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(v for v in self.boxes[node] if v not in opened)

    def _key(self, node: DfgNode, opened: tuple[Var, ...]) -> tuple[object, ...]:
        rest = self._rest(node, opened)
        if isinstance(node, LaneReduce) and not (node.along or node.extent):
            return ("fence", node.threads, node.dtype)
        if isinstance(node, (Initialise, LaneReduce)):
            return ("fence", node)
        if isinstance(node, Mma) and not (rest and rest[0] in self.phase.scopes):
            return ("products", node)  # products of other parts add to the same registers, and would wait for these
        if rest and rest[0] in self.phase.scopes:
            return ("vector", node) if {*rest} == {*vector_axes(node)} else ("scope", rest[0])
        if vector_axes(node):
            return ("vector", node)
        if rest and self.arriving and isinstance(node, (Load, Store)):
            return ("loads" if isinstance(node, Load) else "arriving", rest)
        return ("nest", rest)

    def _is_of_rows(self, node: DfgNode) -> bool:
        """Return whether a node loads elements of a block's own rows.

        They are in flight while threads combine values of other rows; parameters that all blocks read are loaded late.
        """
        if not isinstance(node, (Load, VectorLoad)) or node.space != "global":
            return False
        return not variables(node.address).isdisjoint(self.names.tiles)

    def _units(self, nodes: Sequence[DfgNode], opened: tuple[Var, ...]) -> list[_Unit]:
        """Group nodes greedily: a node joins the last unit of its key unless a later one makes an operand."""
        units: list[_Unit] = []
        place: dict[DfgNode, int] = {}
        written: dict[str, int] = {}
        fence = 0
        for node in nodes:
            key = self._key(node, opened)
            joined = bool(units) and fence == len(units) and units[-1].key == key  # lane reductions in one exchange
            held = [name for name, _ in registers_read(node)]
            early = fence > 0 and not held and self._is_of_rows(node)
            known = (*(place[o] for o in source_nodes(node) if o in place), *(written[n] for n in held if n in written))
            earliest = max([0 if early else fence - joined, *known], default=0)
            fitting = [i for i in range(earliest, len(units)) if units[i].key == key]
            chosen = fitting[0 if early else -1] if fitting else None
            if chosen is None:
                units.append(_Unit(key))
                chosen = len(units) - 1
            units[chosen].nodes.append(node)
            place[node] = chosen
            if isinstance(node, (Accumulate, LaneProduct, RegisterWrite)):
                written[node.name] = chosen
            if key[0] == "fence":
                fence = len(units)
        return units

    def _declare(self, unit: _Unit, home: dict[DfgNode, _Unit], opened: tuple[Var, ...]) -> None:
        """Declare the values of a unit that another one uses, as arrays over the box that is not yet open."""
        for node in unit.nodes:
            if isinstance(node, _ROOTS) or node in self.printer.declared:
                continue
            if all(home.get(u) is unit for u in self.users.get(node, [])) and unit.key[0] != "vector":
                continue
            self.printer.declare(cast("Value", node), self._rest(node, opened))


def _inline_always(node: DfgNode) -> bool:
    return isinstance(node, (Literal, RegisterRead, Test, IndexNode, Window, SharedMatrix))


def print_phase(phase: Phase, names: KernelNames, out: Writer) -> None:
    """Print a phase of one thread."""
    PhasePrinter(phase, names, out).print()
