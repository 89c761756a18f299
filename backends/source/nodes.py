"""Printing the nodes of a phase: values as expressions, loads and stores one by one or several neighbours at once,
accumulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from attrs import define, field

from ...ir import (
    COMBINERS,
    MATRIX_ATOMS,
    ORDERS,
    WIDEST_BYTES,
    Accumulate,
    AtomAccumulate,
    Convert,
    DfgNode,
    Guard,
    Held,
    Index,
    IndexLike,
    IndexNode,
    Initialise,
    Keep,
    LaneReduce,
    Literal,
    Load,
    Op,
    Pack,
    Phase,
    Store,
    Test,
    Value,
    Var,
    WideStore,
    Window,
    as_index,
    indirects,
    linearise,
    own_variables,
    row_major,
    substitute,
    substitute_node,
    vector_address,
    vector_guards,
)
from .arrivals import arrive
from .atom_text import fragment_places, operand_words
from .ctext import call_text, convert_text, literal_text, number_text
from .index_ctext import guard_text, index_text
from .lane_scan import LaneScan
from .lane_sort import LaneSort
from .matrices import MatrixLoad, matrix_load
from .scope import KernelNames, Writer
from .window_loads import part, pieces

#: Least bytes of an asynchronous copy.
NARROWEST_COPY = 4


@define
class NodePrinter:
    """Prints nodes of one phase, each within the loops that whoever asks has opened.

    `users` are the nodes that read a node, `texts` the names of values that have one, `declared` the boxes of those
    that are arrays.
    """

    phase: Phase
    names: KernelNames
    out: Writer
    users: Mapping[DfgNode, Sequence[DfgNode]]
    declared: dict[DfgNode, tuple[Var, ...]] = field(factory=dict)
    texts: dict[DfgNode, str] = field(factory=dict)

    def declare(self, node: Value, rest: tuple[Var, ...]) -> None:
        """Declare a value as an array over a box, or as a scalar."""
        self.declared[node] = rest
        name = self.names.fresh()
        self.texts[node] = name
        # Arrays are flat: PoCL miscompiles vector stores from private arrays of several dimensions.
        size = f"[{prod(v.extent for v in rest)}]" if rest else ""
        self.out.line(f"{self.names.dialect.type(node.dtype)} {name}{size};")

    def vector_axes(self, node: DfgNode, rest: Sequence[Var]) -> tuple[Var, ...]:
        """Return the variables along which a load or store moves several elements at once: neighbours along one, the
        registers of fragments that a warp loads together along one or two. Nothing where it moves single elements.
        """
        if found := self._matrix(node, rest):
            return found.axes
        if isinstance(node, Pack) or (isinstance(node, Store) and node.into) or not isinstance(node, (Load, Store)):
            return ()
        along = next((v for v in reversed(rest) if self._walks_vector(node, v)), None)
        along = along or next((v for v in rest if self._window_pieces(node, v)), None)
        return () if along is None else (along,)

    def _window_pieces(self, node: Load | Store, var: Var) -> Sequence[range]:
        """Return the accesses that bring a window along a variable, nothing where most elements come one by one."""
        users = self.users.get(node, ())
        if not isinstance(node, Load) or not any(isinstance(u, Window) and var in u.axes for u in users):
            return ()
        found = pieces(node, var, self.names.alignment(node.space, node.buffer))
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
        """Return how many elements of a vector along a variable one access moves, 0 where there is no such vector.

        A copy moves bytes, whatever they stand for.
        """
        if not (isinstance(node, Store) and self._is_copy(node)):
            return self.names.width(node.dtype, var.extent)
        widest = WIDEST_BYTES // node.dtype.size
        width = var.extent if var.extent <= widest else widest
        return width if width > 1 and width & (width - 1) == 0 and var.extent % width == 0 else 0

    def _async_vector(self, node: Load | Store, var: Var) -> bool:
        """An asynchronous copy moves a vector only where both of its ends do."""
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
        """Print a load or a store of neighbours along a variable: at once, or as many at once as one access moves."""
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
            self._vector_store(node, start, guards, [self._lane_text(node.value, var, n) for n in lanes])

    def _window_load(self, node: Load, var: Var, lanes: range) -> None:
        """Print the load of some elements of a window, at once where they are several."""
        if len(lanes) == 1:
            value = self._expression(substitute_node(node, {var: lanes.start}, {}))
            self.out.line(f"{self._lane_text(node, var, lanes.start)} = {value};")
            return
        here, lane = part(node, var, lanes)
        start, guards = vector_address(here.address, lane), vector_guards(here.guards, lane)
        assert start is not None and guards is not None, "a piece is a vector"
        self._vector_load(node, start, guards, var, lanes)

    def _vector_load(self, node: Load, start: Index, guards: Sequence[Guard], var: Var, lanes: range) -> None:
        vectors = self.names.dialect.vectors[node.dtype.value]
        where = self._vector_place(node, start, len(lanes))
        name = self.names.fresh()
        if guards:
            (fill,) = vectors.packed([number_text(node.fill, node.dtype, self.names.dialect)] * vectors.per_word)
            self.out.line(
                f"{where['vector']} {name}; {'; '.join(f'{name}.{c} = {fill}' for c in vectors.parts(len(lanes)))};"
            )
            condition = guard_text(guards, self.names.pointers)
            if vectors.guarded and node.space == "global":
                # All parts of a condition are computed: a compiler makes branches of those that may be left out.
                self.out.line(vectors.guarded.format(**where, x=name, ok=condition.replace(" && ", " & ")))
            else:
                self.out.line(f"if ({condition}) {name} = {vectors.load.format(**where)};")
        else:
            self.out.line(f"{where['vector']} {name} = {vectors.load.format(**where)};")
        for place, lane in enumerate(lanes):
            self.out.line(f"{self._lane_text(node, var, lane)} = {vectors.element(name, place)};")

    def _vector_store(
        self, node: Store | WideStore, start: Index, guards: Sequence[Guard], values: Sequence[str]
    ) -> None:
        vectors = self.names.dialect.vectors[node.dtype.value]
        condition = f"if ({guard_text(guards, self.names.pointers)}) " if guards else ""
        place = self._vector_place(node, start, len(values))
        self.out.line(condition + vectors.store.format(**place, values=", ".join(vectors.packed(values))))

    def _vector_place(self, node: Load | Store | WideStore, start: Index, width: int) -> dict[str, str]:
        """Return what the templates of vector accesses ask for."""
        vectors = self.names.dialect.vectors[node.dtype.value]
        return {
            "p": self.names.buffer(node.space, node.buffer),
            "i": index_text(start, self.names.pointers),
            "vector": vectors.vector(width),
            "words": str(width // vectors.per_word),
            "space": self.names.dialect.spaces[node.space],
        }

    def _lane_text(self, node: Value, var: Var, number: int) -> str:
        if isinstance(node, (Held, IndexNode, Test)):
            return self._expression(substitute_node(node, {var: number}, {}))
        if isinstance(node, Window):
            places = (substitute(place, {var: number}) for place in node.at)
            return self._element(node.load, {var: number, **dict(zip(node.axes, places, strict=True))})
        return self._element(node, {var: number})

    def _is_copy(self, node: Store) -> bool:
        return self.phase.asynchronous and bool(self.names.dialect.copy) and isinstance(node.value, Load)

    def _copy(self, node: Store, var: Var | None, lanes: range = range(1)) -> None:
        """Print an asynchronous copy from global to shared memory; a failed guard copies zeros.

        What is too narrow for one is copied by the thread itself, which is done sooner than it need be.
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
        template = dialect.copy if nbytes >= NARROWEST_COPY else dialect.copy_element
        source = self.names.buffer(load.space, load.buffer)
        if self.names.keeps and (apart := self._unrolled_part(start)) != Index():
            # Between products, copies add what tells them apart to a pointer that they share, and keep no other number.
            source, start = f"({source} + ({index_text(start - apart, pointers)}))", apart
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
        """Return the part of an index that is known for each turn of the phase's unrolled loops."""
        terms = tuple((primary, factor) for primary, factor in index.terms if primary in self.phase.unrolled)
        return Index(index.const, terms)

    def statement(self, node: DfgNode) -> None:
        """Print a node as a statement, unless the only one that uses it holds its text."""
        if isinstance(node, Store):
            self._store(node)
        elif isinstance(node, WideStore):
            self._vector_store(node, node.address, node.guards, [self._text(v) for v in node.values])
        elif isinstance(node, Accumulate):
            self._accumulate(node)
        elif isinstance(node, AtomAccumulate):
            self._multiply(node)
        elif isinstance(node, Keep):
            self.out.line(f"{self.names.held(node.name, node.at)} = {self._text(node.value)};")
        elif isinstance(node, Initialise):
            identity = number_text(COMBINERS[node.combine].identity(node.dtype), node.dtype, self.names.dialect)
            self.names.initialise(self.out, node, identity)
        elif isinstance(node, LaneReduce):
            if node.along in ORDERS:
                LaneSort(node, self.names.types[node.keys], self.names, self.out).print()
            elif node.along:
                LaneScan(node, self.names, self.out).print()
            else:
                self.names.lane_reduce(self.out, node)
        elif node in self.declared:
            self.out.line(f"{self._element(node, {})} = {self._expression(node)};")
        elif not (isinstance(node, (Op, Convert)) and len(self.users.get(node, [])) == 1):
            name = self.names.fresh()
            self.out.line(f"const {self.names.dialect.type(node.dtype)} {name} = {self._expression(node)};")
            self.texts[node] = name

    def absorbed(self, node: Load) -> bool:
        """Whether what uses a load reads memory itself."""
        users = self.users.get(node, [])
        return self.feeds_copy(node) or (
            bool(users)
            and all(isinstance(u, Pack) and (self._whole_register(u) or self._matrix(u, ()) is not None) for u in users)
        )

    def _fragment(self, node: Pack | Load) -> tuple[Var, Var] | None:
        """Return the variable that numbers the registers of the fragment that a value is of, and that of the lanes."""
        axes = {v: r.lane for r in self.phase.roots if isinstance(r, (AtomAccumulate, Keep)) for v in r.axes if r.lane}
        for user in self.users.get(node, ()):
            if isinstance(user, Keep) and user.lane:
                return user.axes[0], user.lane
            if isinstance(user, AtomAccumulate) and user.lane:
                return user.axes[0] if user.a == node else user.axes[1], user.lane
        return next(((v, axes[v]) for v in own_variables(node) if v in axes), None)

    def _matrix(self, node: DfgNode, rest: Sequence[Var]) -> MatrixLoad | None:
        """Return how a warp loads fragments together, None where it cannot, or the dialect has no such load."""
        if not self.names.dialect.matrix_load or not isinstance(node, (Pack, Load)):
            return None
        found = self._fragment(node)
        if found is None:
            return None
        registers, lane = found
        over = {v for r in self.phase.roots if isinstance(r, AtomAccumulate) for v in r.over}
        others = [(v, registers) for v in reversed(rest) if v != registers and v not in over]
        loads = (matrix_load(node, axes, lane) for axes in (*others, (registers,)))
        return next((load for load in loads if load is not None), None)

    def _matrix_load(self, node: Pack | Load, found: MatrixLoad) -> None:
        places = product(*(range(v.extent) for v in found.axes))
        names = [self._element(node, dict(zip(found.axes, place, strict=True))) for place in places]
        self.out.line(
            self.names.dialect.matrix_load.format(
                count=len(names),
                kind="_f32" if isinstance(node, Load) else "_turned" if found.transposed else "",
                registers=", ".join(names),
                p=found.buffer,
                i=index_text(found.row, self.names.pointers),
            )
        )

    def _whole_register(self, node: Pack) -> bool:
        """Whether the elements of a register lie in memory as they lie in it, and are there together or not at all."""
        load = node.arg
        if node.axis.extent == 1 or not isinstance(load, Load) or load.guards or load.space != "shared":
            return False
        return vector_address(load.address, node.axis) is not None

    def _pack_text(self, node: Pack) -> str:
        """Return the register that holds the elements of a value."""
        dialect, load = self.names.dialect, node.arg
        if self._whole_register(node):
            assert isinstance(load, Load)
            start = vector_address(load.address, node.axis)
            assert start is not None
            where = {"p": self.names.buffer(load.space, load.buffer), "i": index_text(start, self.names.pointers)}
            return dialect.register_load.format(space=dialect.spaces[load.space], **where)
        values = [self._lane_text(load, node.axis, n) for n in range(node.axis.extent)]
        return f"cuts_pack_{node.arg.dtype}({', '.join(values)})"

    def _multiply(self, node: AtomAccumulate) -> None:
        """Print one atom: the registers of its C, in the order of its elements, then those of A and of B."""
        atom, dialect = MATRIX_ATOMS[node.atom], self.names.dialect
        results = [dialect.atom_result.format(self.names.held(node.name, at)) for at in fragment_places(node, atom)]
        registers = [
            self._lane_text(operand, axis, n)
            for operand, axis in ((node.a, node.axes[0]), (node.b, node.axes[1]))
            for n in range(axis.extent)
        ]
        self.out.line(
            dialect.atom.format(
                name=f"cuts_{atom.name}", words=operand_words(atom), operands=", ".join([*results, *registers])
            )
        )

    def feeds_copy(self, node: Load) -> bool:
        """Whether a load is the source of asynchronous copies and of nothing else."""
        return all(isinstance(u, Store) and self._is_copy(u) for u in self.users.get(node, [])) and bool(
            self.users.get(node)
        )

    def _store(self, node: Store) -> None:
        if self._is_copy(node):
            self._copy(node, None)
            return
        if node.into:
            arrive(node, self._text(node.value), (), self.names, self.out)
            return
        dialect, pointers = self.names.dialect, self.names.pointers
        template = dialect.store.get(node.dtype.value, "{p}[{i}] = {v};")
        text = template.format(
            p=self.names.buffer(node.space, node.buffer), i=index_text(node.address, pointers), v=self._text(node.value)
        )
        self.out.line((f"if ({guard_text(node.guards, pointers)}) " if node.guards else "") + text)

    def arrive(self, node: Store, rest: tuple[Var, ...]) -> None:
        """Print the atomic operations of a box."""
        arrive(node, self._text(node.value), rest, self.names, self.out)

    def _accumulate(self, node: Accumulate) -> None:
        held = self.names.held(node.name, node.at)
        if node.name in self.names.along:
            self.out.line(f"{held} = {self._text(node.value)};")
            return
        if node.combine == "sum" and node.dtype.element.kind != "signed":
            self.out.line(f"{held} += {self._text(node.value)};")
            return
        combined = call_text(COMBINERS[node.combine].fn, (held, self._text(node.value)), node.dtype, self.names.dialect)
        self.out.line(f"{held} = {combined};")

    def _text(self, node: Value) -> str:
        if isinstance(node, Window) and node.load in self.declared:
            return self._element(node.load, dict(zip(node.axes, node.at, strict=True)))
        return self._element(node, {}) if node in self.texts else self._expression(node)

    def _element(self, node: Value, at: Mapping[Var, IndexLike]) -> str:
        """Return a value by its name: an element of its array where it was declared as one; `at` replaces variables of
        its box.
        """
        name, rest = self.texts.get(node, ""), self.declared.get(node, ())
        if not name:
            return self._expression(node)
        if not rest:
            return name
        flat = linearise([as_index(at.get(v, v)) for v in rest], row_major(tuple(v.extent for v in rest)))
        return f"{name}[{index_text(flat, self.names.pointers)}]"

    def _converted(self, node: Convert) -> str:
        """Print a conversion; one to a half type rounds, but for what is rounded where it is stored, and for what never
        left its accumulator.
        """
        text = convert_text(self._text(node.arg), node.arg.dtype, node.dtype, self.names.dialect)
        stored = all(isinstance(user, (Store, WideStore)) for user in self.users.get(node, [node]))
        rounded = stored or isinstance(node.arg, Held) or node.arg.dtype is node.dtype
        return text if rounded else self.names.dialect.round.get(node.dtype.value, "{v}").format(v=text)

    def _expression(self, node: Value) -> str:
        dialect, pointers = self.names.dialect, self.names.pointers
        if isinstance(node, Literal):
            return literal_text(node, dialect)
        if isinstance(node, IndexNode):
            return f"({dialect.type(node.dtype)})({index_text(node.index, pointers, raw=True)})"
        if isinstance(node, Test):
            return f"({self._condition(node.guards, self.phase.kind == 'fetch')})"
        if isinstance(node, Held):
            return self.names.held(node.name, node.at)
        if isinstance(node, Op):
            kind = node.args[-1 if node.fn == "select" else 0].dtype
            return call_text(node.fn, [self._text(a) for a in node.args], kind, dialect)
        if isinstance(node, Pack):
            return self._pack_text(node)
        if isinstance(node, Convert):
            return self._converted(node)
        assert isinstance(node, Load), "a window is named by its loads, which are always declared"
        template = "{p}[{i}]" if node.space == "constant" else dialect.load.get(node.dtype.value, "{p}[{i}]")
        text = template.format(p=self.names.buffer(node.space, node.buffer), i=index_text(node.address, pointers))
        if not node.guards:
            return text
        many = node.space == "global" and (self.phase.kind == "fetch" or node.dtype.size < NARROWEST_COPY)
        condition = self._condition(node.guards, many)
        return f"({condition} ? {text} : {number_text(node.fill, node.dtype, dialect)})"

    def _condition(self, guards: Sequence[Guard], many: bool) -> str:
        """Return whether guards hold. Where a thread loads `many` elements one by one, all parts are computed, unless
        they look anything up: a compiler makes branches of those that may be left out, and waits behind each for what
        it loads.
        """
        looks_up = any(True for guard in guards for _ in indirects(guard.index))
        return guard_text(guards, self.names.pointers, "&" if many and not looks_up else "&&")
