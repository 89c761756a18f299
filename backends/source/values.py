"""Printer of a phase's values: names, array elements, expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import define, field

from ...ir import (
    MIN_COPY_BYTES,
    Convert,
    DfgNode,
    Guard,
    IndexLike,
    IndexNode,
    Literal,
    Load,
    Op,
    Pack,
    PackedLoad,
    Phase,
    RegisterRead,
    SharedMatrix,
    Store,
    Test,
    Value,
    Var,
    VectorStore,
    WideStore,
    Window,
    as_index,
    indirects,
    linearise,
    row_major,
    substitute,
    substitute_node,
)
from .ctext import call_text, convert_text, literal_text, number_text
from .index_ctext import guard_text, index_text
from .scope import KernelNames, Writer


@define
class ValuePrinter:
    """Printer of one phase's values.

    `users` are the nodes that read a node, `texts` the names of values, `declared` the boxes of array values.
    """

    phase: Phase
    names: KernelNames
    out: Writer
    users: Mapping[DfgNode, Sequence[DfgNode]]
    declared: dict[DfgNode, tuple[Var, ...]] = field(factory=dict)
    texts: dict[DfgNode, str] = field(factory=dict)

    def declare(self, node: Value, rest: tuple[Var, ...]) -> None:
        """Declare a value as an array over a box, or a scalar."""
        self.declared[node] = rest
        name = self.names.fresh()
        self.texts[node] = name
        # Arrays are flat: PoCL miscompiles vector stores from private arrays of several dimensions.
        size = f"[{prod(v.extent for v in rest)}]" if rest else ""
        self.out.line(f"{self.names.dialect.type(node.dtype)} {name}{size};")

    def _packed_load(self, node: PackedLoad) -> str:
        where = {
            "p": self.names.buffer(node.space, node.buffer),
            "i": self.names.place(node.space, node.buffer, node.address),
        }
        dialect = self.names.dialect
        return dialect.register_load.format(space=dialect.spaces[node.space], **where)

    def lane_text(self, node: Value, var: Var, number: int) -> str:
        """Return a value at one value of a variable."""
        if isinstance(node, (RegisterRead, IndexNode, Test)):
            return self.expression(substitute_node(node, {var: number}, {}))
        if isinstance(node, Window):
            places = (substitute(place, {var: number}) for place in node.at)
            return self.element(node.load, {var: number, **dict(zip(node.axes, places, strict=True))})
        return self.element(node, {var: number})

    def text(self, node: Value) -> str:
        """Return a value's name where it has one, else its expression."""
        if isinstance(node, Window) and node.load in self.declared:
            return self.element(node.load, dict(zip(node.axes, node.at, strict=True)))
        return self.element(node, {}) if node in self.texts else self.expression(node)

    def element(self, node: Value, at: Mapping[Var, IndexLike]) -> str:
        """Return a value by name, or an element of its array.

        `at` replaces variables of its box.
        """
        name, rest = self.texts.get(node, ""), self.declared.get(node, ())
        if not name:
            return self.expression(node)
        if not rest:
            return name
        flat = linearise([as_index(at.get(v, v)) for v in rest], row_major(tuple(v.extent for v in rest)))
        return f"{name}[{index_text(flat, self.names.pointers)}]"

    def _conversion(self, node: Convert) -> str:
        """Print a conversion; one to a half type rounds, except where the store rounds it, the value stays in its
        accumulator, or the type has all numbers of the one before.
        """
        text = convert_text(self.text(node.arg), node.arg.dtype, node.dtype, self.names.dialect)
        stored = all(isinstance(user, (Store, VectorStore, WideStore)) for user in self.users.get(node, [node]))
        rounded = stored or isinstance(node.arg, RegisterRead) or node.dtype.includes(node.arg.dtype)
        return text if rounded else self.names.dialect.round.get(node.dtype.value, "{v}").format(v=text)

    def _operands(self, node: Op) -> list[str]:
        """Return the operands of a function.

        A value of elements that a test leaves out is computed first: a compiler branches around functions of a
        conditional expression, and computes them one after another.
        """
        texts = [self.text(a) for a in node.args]
        if node.fn == "select" and isinstance(node.args[0], Test) and isinstance(node.args[1], Op):
            value, texts[1] = texts[1], self.names.fresh()
            self.out.line(f"const {self.names.dialect.type(node.dtype)} {texts[1]} = {value};")
        return texts

    def expression(self, node: Value) -> str:
        """Return a value as an expression of its operands."""
        dialect, pointers = self.names.dialect, self.names.pointers
        if isinstance(node, Literal):
            return literal_text(node, dialect)
        if isinstance(node, IndexNode):
            return f"({dialect.type(node.dtype)})({index_text(node.index, pointers, raw=True)})"
        if isinstance(node, Test):
            return f"({self._condition(node.guards, self.phase.kind == 'fetch')})"
        if isinstance(node, RegisterRead):
            return self.names.register(node.name, node.at)
        if isinstance(node, Op):
            kind = node.args[-1 if node.fn == "select" else 0].dtype
            return call_text(node.fn, self._operands(node), kind, dialect)
        if isinstance(node, Pack):
            values = [self.lane_text(node.arg, node.axis, n) for n in range(node.axis.extent)]
            return f"cuts_pack_{node.arg.dtype}({', '.join(values)})"
        if isinstance(node, PackedLoad):
            return self._packed_load(node)
        if isinstance(node, Convert):
            return self._conversion(node)
        if isinstance(node, SharedMatrix):
            return dialect.shared_matrix(self.names.matrix(node), node.buffer, node.start)
        assert isinstance(node, Load), "a window is named by its loads, which are always declared"
        template = "{p}[{i}]" if node.space == "constant" else dialect.load.get(node.dtype.value, "{p}[{i}]")
        place = self.names.place(node.space, node.buffer, node.address)
        where = {"p": self.names.buffer(node.space, node.buffer, node.dtype), "i": place}
        if not node.guards:
            return template.format(**where)
        many = node.space == "global" and (self.phase.kind == "fetch" or node.dtype.size < MIN_COPY_BYTES)
        condition = self._condition(node.guards, many)
        if node.fill == 0 and "({p}[{i}])" in template:
            # Converted afterwards: a compiler branches around conversions, and waits for each load.
            return template.replace("{p}[{i}]", f"{condition} ? {{p}}[{{i}}] : 0").format(**where)
        return f"({condition} ? {template.format(**where)} : {number_text(node.fill, node.dtype, dialect)})"

    def _condition(self, guards: Sequence[Guard], many: bool) -> str:
        """Return the condition of guards.

        Where a thread loads `many` elements one by one, all parts without lookups are computed: a compiler makes
        branches of conditional ones, and waits for each load after them.
        """
        looks_up = any(True for guard in guards for _ in indirects(guard.index))
        return guard_text(guards, self.names.pointers, "&" if many and not looks_up else "&&")
