"""Printer of a phase's nodes: scalar and vector accesses, instructions, accumulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, cast

from attrs import define

from ...ir import (
    COMBINERS,
    SORT_ORDERS,
    Accumulate,
    AsyncCopy,
    Convert,
    DfgNode,
    DType,
    Guard,
    Index,
    Initialise,
    LaneProduct,
    LaneReduce,
    LdMatrix,
    Literal,
    Load,
    Mma,
    Op,
    PackedConvert,
    RegisterRead,
    RegisterWrite,
    SharedMatrix,
    Store,
    Value,
    Var,
    VectorLoad,
    VectorStore,
    WarpgroupMma,
    WideStore,
    sorts_by_radix,
    substitute,
    substitute_guards,
    vector_piece,
)
from .atomics import print_atomic_update
from .ctext import call_text, number_text
from .dialect import BEGINS, HELD_ROWS, OF_SUMS
from .index_ctext import guard_text, index_text
from .lane_products import print_lane_product, unpacking_name
from .lanes import LaneCombination, LaneScan, LaneSelect, LaneSort, StridedLanes, radix_printer
from .values import ValuePrinter


@define
class NodePrinter(ValuePrinter):
    """Printer of one phase's nodes, within loops that its caller opens."""

    def statement(self, node: DfgNode) -> None:
        """Print a node as a statement, unless its only user does."""
        if type(node) in _STATEMENTS:
            _STATEMENTS[type(node)](self, node)
        else:
            self._value(cast("Value", node))

    def _value(self, node: Value) -> None:
        if node in self.declared:
            self.out.line(f"{self.element(node, {})} = {self.expression(node)};")
        elif not (isinstance(node, (Op, Convert)) and len(self.users.get(node, [])) == 1):
            name = self.names.fresh()
            self.out.line(f"const {self.names.dialect.type(node.dtype)} {name} = {self.expression(node)};")
            self.texts[node] = name

    def packed_convert(self, node: PackedConvert) -> None:
        """Print the conversions of words of floats to bytes and back."""
        dialect, vectors = self.names.dialect, self.names.dialect.vectors[node.through.value]
        pack = dialect.instructions[_conversion_name(f"{node.through}_of_{node.dtype}x4", node.arg)]
        unpack = dialect.instructions[f"{node.dtype}_of_{node.through}x4"]
        for first in range(0, node.axis.extent, vectors.per_word):
            lanes = range(first, first + vectors.per_word)
            (made,) = vectors.pack([self.lane_text(node.arg, node.axis, n) for n in lanes], pack)
            word = self.names.fresh()
            self.out.line(f"{vectors.vector(len(lanes))} {word}; {word}.x = {made};")
            for place, lane in enumerate(lanes):
                self.out.line(f"{self.lane_text(node, node.axis, lane)} = {vectors.element(word, place, unpack)};")

    def vector_load(self, node: VectorLoad) -> None:
        """Print the accesses of a vector load, one after another."""
        start = 0
        for width in node.pieces:
            lanes = range(start, start + width)
            if width > 1:
                self._load_piece(node, lanes)
            else:
                at = {node.axis: start}
                address, guards = substitute(node.address, at), substitute_guards(node.guards, at)
                single = Load(node.space, node.buffer, address, node.dtype, guards, node.fill)
                self.out.line(f"{self.lane_text(node, node.axis, start)} = {self.expression(single)};")
            start += width

    def _load_piece(self, node: VectorLoad, lanes: range) -> None:
        line, count = node.line, node.per_byte
        piece = vector_piece(line.address, line.guards, line.axis, lanes)
        assert piece is not None, "a piece is a vector"
        start, guards = piece
        vectors = self.names.dialect.vectors[node.memory_dtype.value]
        where = self._vector_place(node, start, len(lanes))
        name = self.names.fresh()
        words = node.dtype is DType.U32
        conversion = self.names.dialect.instructions[unpacking_name(node)] if node.stored and not words else ""
        if guards:
            (fill,) = vectors.pack([number_text(node.fill, node.memory_dtype, self.names.dialect)] * vectors.per_word)
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
        for place, lane in enumerate(range(count * lanes.start, count * lanes.stop)):
            if words:
                if place % (vectors.per_word * count) == 0:
                    part = vectors.names[place // (vectors.per_word * count)]
                    self.out.line(f"{self.lane_text(node, node.axis, lane)} = {name}.{part};")
                continue
            text = vectors.element(name, place, conversion, count, node.zero)
            self.out.line(f"{self.lane_text(node, node.axis, lane)} = {text};")

    def vector_store(self, node: VectorStore) -> None:
        """Print the accesses of a vector store, one after another."""
        for first in range(0, node.axis.extent, node.width):
            values = [self.lane_text(node.value, node.axis, n) for n in range(first, first + node.width)]
            self._store_vector(node, substitute(node.address, {node.axis: first}), values)

    def wide_store(self, node: WideStore) -> None:
        """Print the store of several values."""
        self._store_vector(node, node.address, [self.text(v) for v in node.values])

    def _store_vector(self, node: VectorStore | WideStore, start: Index, values: Sequence[str]) -> None:
        vectors = self.names.dialect.vectors[node.dtype.value]
        place = self._vector_place(node, start, len(values))
        conversion = _conversion_name(node.conversion, node.value) if isinstance(node, VectorStore) else ""
        pack = self.names.dialect.instructions[conversion] if conversion else ""
        text = vectors.store.format(**place, values=", ".join(vectors.pack(values, pack)))
        self._print_under(node.guards, text, node.when if isinstance(node, VectorStore) else ())

    def _vector_place(self, node: VectorLoad | VectorStore | WideStore, start: Index, width: int) -> dict[str, str]:
        """Return the values of the templates of vector accesses."""
        kind = node.memory_dtype if isinstance(node, VectorLoad) else node.dtype
        vectors = self.names.dialect.vectors[kind.value]
        return {
            "p": self.names.buffer(node.space, node.buffer),
            "i": self.names.place(node.space, node.buffer, start),
            "vector": vectors.vector(width),
            "words": str(width // vectors.per_word),
            "space": self.names.dialect.spaces[node.space],
        }

    def _print_under(self, guards: Sequence[Guard], text: str, when: Sequence[Value] = ()) -> None:
        """Print a statement under a condition."""
        parts = [guard_text(guards, self.names.pointers)] if guards else []
        condition = " && ".join([*parts, *map(self.text, when)])
        self.out.line((f"if ({condition}) " if condition else "") + text)

    def copy(self, node: AsyncCopy) -> None:
        """Print the copies from global to shared memory."""
        for first in range(0, node.axis.extent if node.axis else 1, node.width):
            at = {node.axis: first} if node.axis else {}
            self._copy_piece(node, substitute(node.address, at), substitute(node.start, at))

    def _copy_piece(self, node: AsyncCopy, to: Index, start: Index) -> None:
        pointers, source = self.names.pointers, self.names.buffer("global", node.source)
        if self.names.stores_operands and (unrolled := self._unrolled_part(start)) != Index():
            # Between products, copies add their unrolled offset to a shared pointer, and need no other register.
            source, start = f"({source} + ({index_text(start - unrolled, pointers)}))", unrolled
        text = self.names.dialect.instructions[node.instruction].format(
            d=node.buffer,
            di=self.names.place("shared", node.buffer, to),
            s=source,
            si=index_text(start, pointers),
            ok=guard_text(node.valid, pointers),
        )
        self._print_under(node.guards, text)

    def _unrolled_part(self, index: Index) -> Index:
        """Return the part of an index that is constant in each iteration of the phase's unrolled loops."""
        terms = tuple((primary, factor) for primary, factor in index.terms if primary in self.phase.unrolled)
        return Index(index.const, terms)

    def matrix_load(self, node: LdMatrix) -> None:
        """Print a warp's load of fragments."""
        places = product(*(range(v.extent) for v in node.axes))
        names = [self.element(node, dict(zip(node.axes, place, strict=True))) for place in places]
        template, row = (
            self.names.dialect.instructions[node.instruction],
            self.names.place("shared", node.buffer, node.row),
        )
        self.out.line(template.format(registers=", ".join(names), p=node.buffer, i=row))

    def multiply(self, node: Mma) -> None:
        """Print one matrix instruction.

        Its operands are the registers of C, in the order of its elements, then those of A and B.
        """
        dialect, name = self.names.dialect, self.names.registers[node.name]
        results = [dialect.atom_result.format(f"{name}[{index_text(at, self.names.pointers)}]") for at in node.results]
        registers = [
            self.lane_text(operand, axis, n)
            for operand, axis in ((node.a, node.axes[0]), (node.b, node.axes[1]))
            for n in range(axis.extent)
        ]
        self.out.line(dialect.instructions[node.instruction].format(operands=", ".join([*results, *registers])))

    def multiply_lanes(self, node: LaneProduct) -> None:
        """Print the matrix instructions of a lane's numbers."""
        print_lane_product(node, self, self.names, self.out)

    def multiply_in_place(self, node: WarpgroupMma) -> None:
        """Print a warpgroup's matrix instruction over shared memory."""
        name, pointers = self.names.registers[node.name], self.names.pointers
        deep = [self.names.matrix(m).deep for m in (node.a, node.b) if isinstance(m, SharedMatrix)]
        variant = HELD_ROWS * isinstance(node.a, RegisterRead) + BEGINS * node.begins
        text = self.names.dialect.instructions[node.instruction + variant].format(
            columns=node.columns,
            pitch=node.pitch,
            upper=f"{name} + {index_text(node.upper, pointers)}",
            lower=f"{name} + {index_text(node.lower, pointers)}",
            a=self.text(node.a),
            b=self.text(node.b),
            turned=", ".join(str(int(not d)) for d in deep),
        )
        self.out.line(text)

    def store(self, node: Store) -> None:
        """Print the store of one element."""
        if node.into:
            self.update(node, ())
            return
        dialect = self.names.dialect
        template = dialect.store.get(node.dtype.value, "{p}[{i}] = {v};")
        text = template.format(
            p=self.names.buffer(node.space, node.buffer, node.dtype),
            i=self.names.place(node.space, node.buffer, node.address),
            v=self.text(node.value),
        )
        self._print_under(node.guards, text, node.when)

    def update(self, node: Store, rest: tuple[Var, ...]) -> None:
        """Print the atomic operations of a box."""
        axis = node.axis
        values = (
            [self.text(node.value)]
            if axis is None
            else [self.lane_text(node.value, axis, n) for n in range(axis.extent)]
        )
        print_atomic_update(node, values, rest, self.names, self.out)

    def accumulate(self, node: Accumulate) -> None:
        """Print the accumulation of one value, or of the bytes of words."""
        if node.axis is not None:
            self._accumulate_words(node, node.axis)
            return
        held = self.names.register(node.name, node.at)
        if node.name in self.names.along:
            self.out.line(f"{held} = {self.text(node.value)};")
            return
        if node.combine == "sum" and node.dtype.element.kind != "signed":
            self.out.line(f"{held} += {self.text(node.value)};")
            return
        combined = call_text(COMBINERS[node.combine].fn, (held, self.text(node.value)), node.dtype, self.names.dialect)
        self.out.line(f"{held} = {combined};")

    def _accumulate_words(self, node: Accumulate, axis: Var) -> None:
        """Print the accumulation of neighbours, a word at a time, which compilers keep as words."""
        dialect = self.names.dialect
        vectors, text = dialect.vectors[node.dtype.value], dialect.instructions[f"{node.combine}_{node.dtype}x4"]
        for first in range(0, axis.extent, vectors.per_word):
            lanes = range(first, first + vectors.per_word)
            held = [self.names.register(node.name, tuple(substitute(i, {axis: n}) for i in node.at)) for n in lanes]
            (old,), (new,) = vectors.pack(held), vectors.pack([self.lane_text(node.value, axis, n) for n in lanes])
            word = self.names.fresh()
            self.out.line(f"{vectors.vector(len(lanes))} {word}; {word}.x = {text.format(old, new)};")
            for place, register in enumerate(held):
                self.out.line(f"{register} = {vectors.element(word, place)};")

    def write_register(self, node: RegisterWrite) -> None:
        """Print a register write."""
        self.out.line(f"{self.names.register(node.name, node.at)} = {self.text(node.value)};")

    def initialise(self, node: Initialise) -> None:
        """Print the initialisation of a reduction's registers."""
        identity = number_text(COMBINERS[node.combine].identity(node.dtype), node.dtype, self.names.dialect)
        self.names.initialise(self.out, node, identity)

    def reduce_lanes(self, node: LaneReduce, *others: LaneReduce) -> None:
        """Print a reduction with independent `others`, a scan or a sort."""
        if node.along in SORT_ORDERS:
            sort = LaneSort(node, self.names.types[node.keys], self.names, self.out)
            if node.ranks:
                LaneSelect(sort, self.names, self.out).print()
            elif sorts_by_radix(sort.count, node.threads):
                radix_printer(sort, self.names, self.out).print()
            else:
                sort.print()
        elif node.along:
            LaneScan(node, self.names, self.out).print()
        elif node.extent:
            StridedLanes(node, self.names, self.out).print()
        else:
            LaneCombination(self.names, self.out).print((node, *others))


#: Printer of each class that is a statement; other values are expressions.
def _conversion_name(name: str, value: Value) -> str:
    """Return the packed conversion of a value: that of sums for one with a number that no compiler drops."""
    summed = isinstance(value, Op) and value.fn in ("add", "sub")
    last = value.args[-1] if isinstance(value, Op) else value
    return name + OF_SUMS if name and summed and isinstance(last, Literal) and last.value else name


_STATEMENTS: Mapping[type, Callable[[NodePrinter, Any], None]] = {
    VectorLoad: NodePrinter.vector_load,
    PackedConvert: NodePrinter.packed_convert,
    LdMatrix: NodePrinter.matrix_load,
    Store: NodePrinter.store,
    VectorStore: NodePrinter.vector_store,
    WideStore: NodePrinter.wide_store,
    AsyncCopy: NodePrinter.copy,
    Accumulate: NodePrinter.accumulate,
    LaneProduct: NodePrinter.multiply_lanes,
    Mma: NodePrinter.multiply,
    WarpgroupMma: NodePrinter.multiply_in_place,
    RegisterWrite: NodePrinter.write_register,
    Initialise: NodePrinter.initialise,
    LaneReduce: NodePrinter.reduce_lanes,
}
