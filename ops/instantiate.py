"""From a declaration to a `Program`, once the operands' types and the attributes are known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from ..ir.errors import GraphError, SpecError
from ..ir.expr import Read, reads
from ..ir.graph import Array, Attribute
from ..ir.index import Index, Var, as_index, indirects, variables
from ..ir.source import Span
from ..ir.statement import Program, Statement
from ..ir.types import DType, TensorType
from . import syntax as s
from .binding import Binding, bind_attribute, bind_operands, check_shapes
from .canonical import canonicalise
from .evaluator import Evaluator
from .parser import parse_expression
from .values import TensorRef, Trouble, Value, describe, to_expr

if TYPE_CHECKING:
    from .declaration import OpDecl

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@frozen
class Instance:
    """An operation at static shapes.

    `inputs` has the formal name of each operand given, None for an absent optional one; variadic operands and results are
    numbered (`x_0`, `x_1`). `attributes` holds the values used, defaults included.
    """

    op: str
    program: Program
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    output_types: tuple[TensorType, ...]
    attributes: Mapping[str, Value] = field(factory=dict)


def instantiate(
    decl: OpDecl,
    input_types: Sequence[TensorType | None],
    attributes: Mapping[str, Attribute],
    constants: Mapping[int, Array] | None = None,
) -> Instance:
    """Return what the declared operation means for these operands and attributes."""
    return _Instantiation(decl, constants or {}).run(input_types, attributes)


class _Instantiation:
    """One run: items are taken in the order they are written, the family's first."""

    def __init__(self, decl: OpDecl, constants: Mapping[int, Array]) -> None:
        self.decl = decl
        self.evaluator = Evaluator()
        self.constants = constants
        self.outputs: list[str] = []
        self.attributes: dict[str, Value] = {}

    def run(self, input_types: Sequence[TensorType | None], attributes: Mapping[str, Attribute]) -> Instance:
        evaluator = self.evaluator
        binding = bind_operands(self.decl, input_types, evaluator)
        evaluator.fetch_constant = lambda name: self._constant(binding, name)
        unknown = sorted(set(attributes) - set(self.decl.attributes))
        if unknown:
            known = ", ".join(self.decl.attributes) or "none"
            raise GraphError(f"op '{self.decl.name}': unknown attribute {', '.join(map(repr, unknown))}", hint=f"it has {known}")
        for item in self.decl.items:
            self._item(item, attributes)
        check_shapes(self.decl, binding, evaluator)
        for item in self.decl.items:
            if isinstance(item, s.Assignment):
                self._assignment(item)
        self._check_coverage(binding)
        return self._instance(binding)

    def _constant(self, binding: Binding, name: str) -> Value:
        position = binding.inputs.index(name)
        if position not in self.constants:
            raise GraphError(f"op '{self.decl.name}': operand '{name}': expected a constant, found a computed value")
        return _nested(self.constants[position].tolist())

    # ---- items

    def _item(self, item: s.Item, given: Mapping[str, Attribute]) -> None:
        evaluator = self.evaluator
        if isinstance(item, s.AttrItem):
            for attribute in item.attributes:
                value = bind_attribute(self.decl, attribute, given, evaluator)
                evaluator.scope[attribute.name] = self.attributes[attribute.name] = value
        elif isinstance(item, s.LetItem):
            for let in item.bindings:
                evaluator.scope[let.name] = evaluator.evaluate(let.value)
        elif isinstance(item, s.TableItem):
            self._table(item)
        elif isinstance(item, s.Require):
            self._require(item)
        elif isinstance(item, s.OutItem):
            for result in item.results:
                self._result(result)
        elif isinstance(item, s.TempItem):
            for temporary in item.temporaries:
                evaluator.scope[temporary.name] = self._tensor(temporary.name, temporary.dtype, temporary.dims, temporary.span)

    def _require(self, item: s.Require) -> None:
        if self.evaluator.evaluate(item.condition) in (True, 1):
            return
        raise GraphError(f"op '{self.decl.name}': {self._message(item)}")

    def _message(self, item: s.Require) -> str:
        def fill(match: re.Match[str]) -> str:
            node = parse_expression(item.span.source, item.span.start, match.group(1))
            return describe(self.evaluator.evaluate(node))

        return _PLACEHOLDER.sub(fill, item.message)

    def _dtype(self, name: str, span: Span) -> DType:
        value = self.evaluator.scope.get(name)
        if isinstance(value, DType):
            return value
        raise SpecError(f"'{name}' is no element type here", span)

    def _tensor(self, name: str, dtype: str, dims: tuple[s.Expression, ...], span: Span) -> TensorRef:
        entries: list[int | tuple[int, ...]] = []
        for node in dims:
            value = self.evaluator.evaluate(node.value if isinstance(node, s.Spread) else node)
            sizes = value if isinstance(node, s.Spread) else (value,)
            if not isinstance(sizes, tuple) or not all(isinstance(n, int) for n in sizes):
                raise SpecError(f"expected sizes, found {describe(value)}", node.span)
            if any(n < 0 for n in sizes):
                raise GraphError(f"op '{self.decl.name}': result '{name}' would have a dim of size {min(sizes)}")
            entries.append(tuple(sizes) if isinstance(node, s.Spread) else sizes[0])
        shape = tuple(n for e in entries for n in (e if isinstance(e, tuple) else (e,)))
        type_ = TensorType(self._dtype(dtype, span), shape)
        self.evaluator.tensors[name] = type_
        return TensorRef(name, type_, tuple(entries))

    def _result(self, result: s.Result) -> None:
        scope = self.evaluator.scope
        if result.binder is None:
            scope[result.name] = self._tensor(result.name, result.dtype, result.dims, result.span)
            self.outputs.append(result.name)
            return
        refs = []
        count = self.evaluator.evaluate(result.binder.bound)
        for number in range(count):
            scope[result.binder.name] = number
            refs.append(self._tensor(f"{result.name}_{number}", result.dtype, result.dims, result.span))
        scope.pop(result.binder.name, None)
        scope[result.name] = tuple(refs)
        self.outputs.extend(ref.name for ref in refs)

    def _table(self, item: s.TableItem) -> None:
        rows = self.evaluator.evaluate(item.value)
        shape: list[int] = []
        level = rows
        while isinstance(level, tuple):
            shape.append(len(level))
            level = level[0] if level else 0
        flat = _flatten(rows)
        if len(flat) != TensorType(DType.F32, tuple(shape)).size:
            raise SpecError(f"the rows of table '{item.name}' have different lengths", item.span)
        type_ = TensorType(self._dtype(item.dtype, item.span), tuple(shape))
        self.evaluator.tensors[item.name] = type_
        self.evaluator.tables[item.name] = flat
        self.evaluator.scope[item.name] = TensorRef(item.name, type_)

    # ---- assignments

    def _assignment(self, item: s.Assignment) -> None:
        if item.each is None:
            self._assign(item)
            return
        for number in range(self.evaluator.evaluate(item.each.bound)):
            self.evaluator.scope[item.each.name] = number
            self._assign(item)
        self.evaluator.scope.pop(item.each.name, None)

    def _assign(self, item: s.Assignment) -> None:
        evaluator, outer = self.evaluator, dict(self.evaluator.scope)
        evaluator.variables, evaluator.taken = [], set()
        for binder in item.binders:
            evaluator.bind(binder)
        target, brackets = self._target(item.target)
        evaluator.target = target
        evaluator.position = write = self._write(target, brackets, item)
        axes = _axes(write)
        lost = [v.name for v in evaluator.variables if v.extent != 1 and v not in axes]
        if lost:
            raise SpecError(f"'{target.name}' is written several times: {', '.join(lost)} does not occur in its subscripts", item.span)
        evaluator.variables = list(axes)
        first = len(evaluator.statements)
        try:
            body = to_expr(evaluator.element(item.value), target.type.dtype)
        except Trouble as trouble:
            raise SpecError(str(trouble), item.value.span) from trouble
        found = evaluator.arithmetic.dtype(body)
        if found is not target.type.dtype:
            raise SpecError(f"'{target.name}' has element type {target.type.dtype}, the value {found}", item.value.span, "convert it")
        evaluator.statements.append(Statement(target.name, axes, write, body))
        self._merge(first)
        evaluator.scope.clear()
        evaluator.scope.update(outer)

    def _target(self, node: s.Target) -> tuple[TensorRef, tuple[tuple[s.Expression, ...], ...]]:
        ref, brackets = self.evaluator.scope[node.name], node.brackets
        if isinstance(ref, tuple) and brackets:
            number = self.evaluator.evaluate(brackets[0][0])
            if not isinstance(number, int) or not 0 <= number < len(ref):
                raise SpecError(f"there are {len(ref)} results '{node.name}', found number {describe(number)}", node.span)
            ref, brackets = ref[number], brackets[1:]
        assert isinstance(ref, TensorRef)
        return ref, brackets

    def _write(self, target: TensorRef, brackets: tuple[tuple[s.Expression, ...], ...], item: s.Assignment) -> tuple[Index, ...]:
        evaluator = self.evaluator
        if not brackets:
            return tuple(as_index(evaluator.new_variable(f"i{n}", size)) for n, size in enumerate(target.type.shape))
        write: list[Index] = []
        entries = _align(target, brackets[0])
        for node, entry in zip(brackets[0], entries, strict=True):
            inner = node.value if isinstance(node, s.Spread) else node
            if isinstance(inner, s.Name) and inner.id not in evaluator.scope:
                self._bind_axis(inner, isinstance(node, s.Spread), entry)
            value = evaluator.evaluate(inner)
            values = value if isinstance(node, s.Spread) else (value,)
            write.extend(evaluator.as_index(v, 0, target.type) for v in values)
        if len(write) != len(target.type.shape):
            raise SpecError(
                f"{target.type} tensor '{target.name}' needs {len(target.type.shape)} subscripts, found {len(write)}", item.target.span
            )
        for axis, (index, extent) in enumerate(zip(write, target.type.shape, strict=True)):
            low, high = index.bounds()
            if indirects(index) or (extent and not 0 <= low <= high < extent):
                raise SpecError(f"'{target.name}' is written out of bounds: {index.text} runs from {low} to {high}, axis {axis} has {extent} elements",
                                item.target.span)  # fmt: skip
        return tuple(write)

    def _bind_axis(self, name: s.Name, spread: bool, entry: int | tuple[int, ...] | None) -> None:
        """Bind an index variable of the left-hand side to the extent declared at its place."""
        evaluator = self.evaluator
        if spread and isinstance(entry, tuple):
            evaluator.scope[name.id] = tuple(as_index(evaluator.new_variable(f"{name.id}{n}", size)) for n, size in enumerate(entry))
        elif not spread and isinstance(entry, int):
            evaluator.scope[name.id] = as_index(evaluator.new_variable(name.id, entry))
        else:
            raise SpecError(
                f"the range of '{name.id}' is unknown", name.span, "subscripts must match the declared shape entry by entry, or add 'for'"
            )

    def _merge(self, first: int) -> None:
        """Let a reduction whose value is stored as it is write the target itself."""
        statements, tensors = self.evaluator.statements, self.evaluator.tensors
        last = statements[-1]
        body = last.body
        if not isinstance(body, Read) or body.guards:
            return
        for position in range(first, len(statements) - 1):
            source = statements[position]
            used = any(r.tensor == source.target for st in statements[position + 1 : -1] for r in reads(st.body))
            if source.target != body.tensor or used or set(source.axes) != set(last.axes):
                continue
            if body.indices == tuple(as_index(a) for a in source.axes):
                del statements[position], tensors[source.target]
                statements[-1] = Statement(last.target, last.axes, last.write, source.body, source.reduce, source.combine)
            return

    def _check_coverage(self, binding: Binding) -> None:
        """Every element of a result or intermediate is written once (writes are injective, ranges add up)."""
        written: dict[str, int] = {}
        for statement in self.evaluator.statements:
            count = 1
            for axis in statement.axes:
                count *= axis.extent
            written[statement.target] = written.get(statement.target, 0) + count
        for name, type_ in self.evaluator.tensors.items():
            if name in binding.inputs or name in self.evaluator.tables or written.get(name, 0) == type_.size:
                continue
            raise SpecError(f"op '{self.decl.name}' writes {written.get(name, 0)} of the {type_.size} elements of '{name}'", self.decl.span)

    def _instance(self, binding: Binding) -> Instance:
        evaluator = self.evaluator
        inputs = tuple(name for name in binding.inputs if name is not None)
        statements = tuple(canonicalise(statement) for statement in evaluator.statements)
        used = {r.tensor for st in statements for r in reads(st.body)}
        tables = {name: rows for name, rows in evaluator.tables.items() if name in used}
        tensors = {n: t for n, t in evaluator.tensors.items() if n not in evaluator.tables or n in tables}
        program = Program(tensors, inputs, tuple(self.outputs), statements, tables)
        types = tuple(tensors[name] for name in self.outputs)
        return Instance(self.decl.name, program, binding.inputs, tuple(self.outputs), types, self.attributes)


def _align(target: TensorRef, nodes: tuple[s.Expression, ...]) -> tuple[int | tuple[int, ...] | None, ...]:
    """Pair subscripts with the entries of the declared shape, or with single dims where none is spread."""
    if len(target.items) == len(nodes) and all(
        isinstance(n, s.Spread) == isinstance(e, tuple) for n, e in zip(nodes, target.items, strict=True)
    ):
        return target.items
    if not any(isinstance(n, s.Spread) for n in nodes) and len(nodes) == len(target.type.shape):
        return target.type.shape
    return (None,) * len(nodes)


def _axes(write: tuple[Index, ...]) -> tuple[Var, ...]:
    """Return the variables of a write in order of first occurrence, those of extent 1 left out."""
    found: dict[Var, None] = {}
    for index in write:
        found.update(dict.fromkeys(sorted(variables(index), key=lambda v: v.name)))
    return tuple(found)


def _nested(value: object) -> Value:
    return tuple(_nested(v) for v in value) if isinstance(value, list) else value


def _flatten(value: Value) -> tuple[float, ...]:
    if isinstance(value, tuple):
        return tuple(x for v in value for x in _flatten(v))
    if not isinstance(value, (int, float)):
        raise Trouble(f"a table holds numbers, found {describe(value)}")
    return (value,)
