"""Printer of a phase's nodes: scalar and vector accesses, accumulations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from attrs import define

from ...ir import (
    COMBINERS,
    MMA_INSTRUCTIONS,
    SORT_ORDERS,
    WIDEST_BYTES,
    Accumulate,
    Convert,
    DfgNode,
    Guard,
    Index,
    Initialise,
    LaneReduce,
    Load,
    MmaAccumulate,
    Op,
    Pack,
    RegisterWrite,
    Store,
    Var,
    WideStore,
    Window,
    own_variables,
    substitute_node,
    vector_address,
    vector_guards,
)
from .atomic_updates import print_atomic_update
from .ctext import call_text, number_text
from .index_ctext import guard_text, index_text
from .lane_scan import LaneScan
from .lane_sort import LaneSort
from .ldmatrix import MatrixLoad, matrix_load
from .mma_text import fragment_places, operand_words
from .values import MIN_COPY_BYTES, ValuePrinter
from .window_loads import slice_load, split_accesses


@define
class NodePrinter(ValuePrinter):
    """Printer of one phase's nodes, within loops that its caller opens."""

    def vector_axes(self, node: DfgNode, rest: Sequence[Var]) -> tuple[Var, ...]:
        """Return the variables along which an access moves several elements.

        They are one for neighbours, and one or two for the registers of fragments that a warp loads together. Empty for
        single elements.
        """
        if found := self._matrix(node, rest):
            return found.axes
        if isinstance(node, Pack) or (isinstance(node, Store) and node.into) or not isinstance(node, (Load, Store)):
            return ()
        along = next((v for v in reversed(rest) if self._walks_vector(node, v)), None)
        along = along or next((v for v in rest if self._window_pieces(node, v)), None)
        return () if along is None else (along,)

    def _window_pieces(self, node: Load | Store, var: Var) -> Sequence[range]:
        """Return the vector accesses of a window along a variable, empty where most elements are single."""
        users = self.users.get(node, ())
        if not isinstance(node, Load) or not any(isinstance(u, Window) and var in u.axes for u in users):
            return ()
        found = split_accesses(node, var, self.names.alignment(node.space, node.buffer))
        return found if 2 * sum(len(p) for p in found if len(p) > 1) >= var.extent else ()

    def _walks_vector(self, node: Load | Store, var: Var) -> bool:
        width = self._width(node, var)
        if (
            not width
            or self.names.alignment(node.space, node.buffer) % (width * node.dtype.size)
            or var not in own_variables(node)
        ):
            return False
        if vector_address(node.address, var) is None or vector_guards(node.guards, var) is None:
            return False
        asynchronous = self.phase.asynchronous and bool(self.names.dialect.copy)
        return not asynchronous or self._async_vector(node, var)

    def _width(self, node: Load | Store, var: Var) -> int:
        """Return the elements of one vector access along a variable, 0 where there is none.

        A copy moves bytes of any type.
        """
        if not (isinstance(node, Store) and self._is_copy(node)):
            return self.names.width(node.dtype, var.extent)
        widest = WIDEST_BYTES // node.dtype.size
        width = var.extent if var.extent <= widest else widest
        return width if width > 1 and width & (width - 1) == 0 and var.extent % width == 0 else 0

    def _async_vector(self, node: Load | Store, var: Var) -> bool:
        """Return whether an asynchronous copy can move a vector, as both of its ends can."""
        if isinstance(node, Load):
            return False
        load = node.value
        return (
            isinstance(load, Load)
            and self.names.alignment(load.space, load.buffer) % (self._width(node, var) * load.dtype.size) == 0
            and vector_address(load.address, var) is not None
            and vector_guards(load.guards, var) is not None
        )

    def vector(self, node: DfgNode, rest: Sequence[Var]) -> None:
        """Print a load or a store along a variable, as vector accesses."""
        found = self._matrix(node, rest)
        if found is not None and isinstance(node, (Pack, Load)):
            self._matrix_load(node, found)
            return
        assert isinstance(node, (Load, Store))
        (var,) = self.vector_axes(node, rest)
        if isinstance(node, Load) and not self._walks_vector(node, var):
            for lanes in self._window_pieces(node, var):
                self._window_load(node, var, lanes)
            return
        width = self._width(node, var)
        for first in range(0, var.extent, width):
            self._piece(node, var, range(first, first + width))

    def _piece(self, node: Load | Store, var: Var, lanes: range) -> None:
        """Print the access of some lanes of a vector."""
        start, guards = vector_address(node.address, var), vector_guards(node.guards, var)
        assert start is not None and guards is not None
        start = start + lanes.start
        if isinstance(node, Load):
            self._vector_load(node, start, guards, var, lanes)
        elif self._is_copy(node):
            self._copy(node, var, lanes)
        else:
            self._vector_store(node, start, guards, [self.lane_text(node.value, var, n) for n in lanes])

    def _window_load(self, node: Load, var: Var, lanes: range) -> None:
        """Print the load of some elements of a window, at once where there are several."""
        if len(lanes) == 1:
            value = self.expression(substitute_node(node, {var: lanes.start}, {}))
            self.out.line(f"{self.lane_text(node, var, lanes.start)} = {value};")
            return
        here, lane = slice_load(node, var, lanes)
        start, guards = vector_address(here.address, lane), vector_guards(here.guards, lane)
        assert start is not None and guards is not None, "a piece is a vector"
        self._vector_load(node, start, guards, var, lanes)

    def _vector_load(self, node: Load, start: Index, guards: Sequence[Guard], var: Var, lanes: range) -> None:
        vectors = self.names.dialect.vectors[node.dtype.value]
        where = self._vector_place(node, start, len(lanes))
        name = self.names.fresh()
        if guards:
            (fill,) = vectors.pack([number_text(node.fill, node.dtype, self.names.dialect)] * vectors.per_word)
            self.out.line(
                f"{where['vector']} {name}; {'; '.join(f'{name}.{c} = {fill}' for c in vectors.parts(len(lanes)))};"
            )
            condition = guard_text(guards, self.names.pointers)
            if vectors.guarded and node.space == "global":
                # All parts of a condition are computed: a compiler makes branches of conditional ones.
                self.out.line(vectors.guarded.format(**where, x=name, ok=condition.replace(" && ", " & ")))
            else:
                self.out.line(f"if ({condition}) {name} = {vectors.load.format(**where)};")
        else:
            self.out.line(f"{where['vector']} {name} = {vectors.load.format(**where)};")
        for place, lane in enumerate(lanes):
            self.out.line(f"{self.lane_text(node, var, lane)} = {vectors.element(name, place)};")

    def _vector_store(
        self, node: Store | WideStore, start: Index, guards: Sequence[Guard], values: Sequence[str]
    ) -> None:
        vectors = self.names.dialect.vectors[node.dtype.value]
        condition = f"if ({guard_text(guards, self.names.pointers)}) " if guards else ""
        place = self._vector_place(node, start, len(values))
        self.out.line(condition + vectors.store.format(**place, values=", ".join(vectors.pack(values))))

    def _vector_place(self, node: Load | Store | WideStore, start: Index, width: int) -> dict[str, str]:
        """Return the values of the templates of vector accesses."""
        vectors = self.names.dialect.vectors[node.dtype.value]
        return {
            "p": self.names.buffer(node.space, node.buffer),
            "i": index_text(start, self.names.pointers),
            "vector": vectors.vector(width),
            "words": str(width // vectors.per_word),
            "space": self.names.dialect.spaces[node.space],
        }

    def _is_copy(self, node: Store) -> bool:
        return self.phase.asynchronous and bool(self.names.dialect.copy) and isinstance(node.value, Load)

    def _copy(self, node: Store, var: Var | None, lanes: range = range(1)) -> None:
        """Print an asynchronous copy from global to shared memory; a failed guard copies zeros.

        An element that is too narrow for one is copied by the thread synchronously.
        """
        load = node.value
        assert isinstance(load, Load)
        to, start, outer, inner = node.address, load.address, node.guards, load.guards
        if var is not None:
            to, start = (
                (vector_address(to, var) or to) + lanes.start,
                (vector_address(start, var) or start) + lanes.start,
            )
            outer, inner = vector_guards(outer, var) or (), vector_guards(inner, var) or ()
        pointers, dialect = self.names.pointers, self.names.dialect
        nbytes = len(lanes) * node.dtype.size
        template = dialect.copy if nbytes >= MIN_COPY_BYTES else dialect.copy_element
        source = self.names.buffer(load.space, load.buffer)
        if self.names.stores_operands and (unrolled := self._unrolled_part(start)) != Index():
            # Between products, copies add their unrolled offset to a shared pointer, and need no other register.
            source, start = f"({source} + ({index_text(start - unrolled, pointers)}))", unrolled
        text = template.format(
            bytes=nbytes,
            cached="_cached" * (self.phase.cached and nbytes == WIDEST_BYTES),
            d=self.names.buffer(node.space, node.buffer),
            di=index_text(to, pointers),
            s=source,
            si=index_text(start, pointers),
            ok=guard_text([g for g in inner if g not in outer], pointers),
        )
        self.out.line((f"if ({guard_text(outer, pointers)}) " if outer else "") + text)

    def _unrolled_part(self, index: Index) -> Index:
        """Return the part of an index that is constant in each iteration of the phase's unrolled loops."""
        terms = tuple((primary, factor) for primary, factor in index.terms if primary in self.phase.unrolled)
        return Index(index.const, terms)

    def statement(self, node: DfgNode) -> None:
        """Print a node as a statement, unless its only user does."""
        if isinstance(node, Store):
            self._store(node)
        elif isinstance(node, WideStore):
            self._vector_store(node, node.address, node.guards, [self.text(v) for v in node.values])
        elif isinstance(node, Accumulate):
            self._accumulate(node)
        elif isinstance(node, MmaAccumulate):
            self._multiply(node)
        elif isinstance(node, RegisterWrite):
            self.out.line(f"{self.names.register(node.name, node.at)} = {self.text(node.value)};")
        elif isinstance(node, Initialise):
            identity = number_text(COMBINERS[node.combine].identity(node.dtype), node.dtype, self.names.dialect)
            self.names.initialise(self.out, node, identity)
        elif isinstance(node, LaneReduce):
            if node.along in SORT_ORDERS:
                LaneSort(node, self.names.types[node.keys], self.names, self.out).print()
            elif node.along:
                LaneScan(node, self.names, self.out).print()
            else:
                self.names.lane_reduce(self.out, node)
        elif node in self.declared:
            self.out.line(f"{self.element(node, {})} = {self.expression(node)};")
        elif not (isinstance(node, (Op, Convert)) and len(self.users.get(node, [])) == 1):
            name = self.names.fresh()
            self.out.line(f"const {self.names.dialect.type(node.dtype)} {name} = {self.expression(node)};")
            self.texts[node] = name

    def is_absorbed(self, node: Load) -> bool:
        """Return whether the users of a load read memory themselves."""
        users = self.users.get(node, [])
        return self.feeds_copy(node) or (
            bool(users)
            and all(isinstance(u, Pack) and (self.whole_register(u) or self._matrix(u, ()) is not None) for u in users)
        )

    def _fragment(self, node: Pack | Load) -> tuple[Var, Var] | None:
        """Return the variable that numbers the registers of a value's fragment, and that of the lanes."""
        axes = {
            v: r.lane
            for r in self.phase.roots
            if isinstance(r, (MmaAccumulate, RegisterWrite))
            for v in r.axes
            if r.lane
        }
        for user in self.users.get(node, ()):
            if isinstance(user, RegisterWrite) and user.lane:
                return user.axes[0], user.lane
            if isinstance(user, MmaAccumulate) and user.lane:
                return user.axes[0] if user.a == node else user.axes[1], user.lane
        return next(((v, axes[v]) for v in own_variables(node) if v in axes), None)

    def _matrix(self, node: DfgNode, rest: Sequence[Var]) -> MatrixLoad | None:
        """Return a warp's load of fragments, None where it cannot, or the dialect has no such load."""
        if not self.names.dialect.matrix_load or not isinstance(node, (Pack, Load)):
            return None
        found = self._fragment(node)
        if found is None:
            return None
        registers, lane = found
        over = {v for r in self.phase.roots if isinstance(r, MmaAccumulate) for v in r.over}
        others = [(v, registers) for v in reversed(rest) if v != registers and v not in over]
        loads = (matrix_load(node, axes, lane) for axes in (*others, (registers,)))
        return next((load for load in loads if load is not None), None)

    def _matrix_load(self, node: Pack | Load, found: MatrixLoad) -> None:
        places = product(*(range(v.extent) for v in found.axes))
        names = [self.element(node, dict(zip(found.axes, place, strict=True))) for place in places]
        self.out.line(
            self.names.dialect.matrix_load.format(
                count=len(names),
                kind="_f32" if isinstance(node, Load) else "_turned" if found.transposed else "",
                registers=", ".join(names),
                p=found.buffer,
                i=index_text(found.row, self.names.pointers),
            )
        )

    def _multiply(self, node: MmaAccumulate) -> None:
        """Print one matrix instruction: the registers of its C, in the order of its elements, then of A and B."""
        atom, dialect = MMA_INSTRUCTIONS[node.atom], self.names.dialect
        results = [dialect.atom_result.format(self.names.register(node.name, at)) for at in fragment_places(node, atom)]
        registers = [
            self.lane_text(operand, axis, n)
            for operand, axis in ((node.a, node.axes[0]), (node.b, node.axes[1]))
            for n in range(axis.extent)
        ]
        self.out.line(
            dialect.atom.format(
                name=f"cuts_{atom.name}", words=operand_words(atom), operands=", ".join([*results, *registers])
            )
        )

    def feeds_copy(self, node: Load) -> bool:
        """Return whether a load is only the source of asynchronous copies."""
        return all(isinstance(u, Store) and self._is_copy(u) for u in self.users.get(node, [])) and bool(
            self.users.get(node)
        )

    def _store(self, node: Store) -> None:
        if self._is_copy(node):
            self._copy(node, None)
            return
        if node.into:
            print_atomic_update(node, self.text(node.value), (), self.names, self.out)
            return
        dialect, pointers = self.names.dialect, self.names.pointers
        template = dialect.store.get(node.dtype.value, "{p}[{i}] = {v};")
        text = template.format(
            p=self.names.buffer(node.space, node.buffer), i=index_text(node.address, pointers), v=self.text(node.value)
        )
        self.out.line((f"if ({guard_text(node.guards, pointers)}) " if node.guards else "") + text)

    def print_atomic_updates(self, node: Store, rest: tuple[Var, ...]) -> None:
        """Print the atomic operations of a box."""
        print_atomic_update(node, self.text(node.value), rest, self.names, self.out)

    def _accumulate(self, node: Accumulate) -> None:
        held = self.names.register(node.name, node.at)
        if node.name in self.names.along:
            self.out.line(f"{held} = {self.text(node.value)};")
            return
        if node.combine == "sum" and node.dtype.element.kind != "signed":
            self.out.line(f"{held} += {self.text(node.value)};")
            return
        combined = call_text(COMBINERS[node.combine].fn, (held, self.text(node.value)), node.dtype, self.names.dialect)
        self.out.line(f"{held} = {combined};")
