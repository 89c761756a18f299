"""Instantiation of a declaration as a `Program`.

The operands' types and the attributes are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from attrs import define, field, frozen

from ...ir import Array, Attribute, DType, GraphError, Node, Program, Source, Span, SpecError, TensorType
from .algorithms import resolve_algorithms, resolve_gradient
from .assignment import assign_all
from .canonical import canonicalise, live_statements
from .checks import Binding, bind_attribute, bind_operands, check_shapes, names_read
from .declaration import Declaration
from .empty import remove_empty_statements
from .evaluation import ExpressionEvaluator, Located, TensorList, TensorRef, Trouble, Value, describe
from .text import PLACEHOLDER, parse_expression
from .text import syntax as s
from .write_checks import check_coverage


@frozen
class Instance:
    """An operation at static shapes.

    `inputs` has the formal name of each operand given, None for an absent optional one; variadic operands and results
    are numbered (`x_0`, `x_1`). `attributes` holds the values used, defaults included; `algorithms` the steps of each
    algorithm that may stand in for the op here, as nodes over the formal names, and `gradient` those of the gradient
    that the declaration states, where `dy` is the gradient of `y`.
    """

    op: str
    program: Program
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    output_types: tuple[TensorType, ...]
    attributes: Mapping[str, Value] = field(factory=dict)
    algorithms: Mapping[str, tuple[Node, ...]] = field(factory=dict)
    gradient: tuple[Node, ...] = ()


def instantiate(
    decl: Declaration,
    input_types: Sequence[TensorType | None],
    attributes: Mapping[str, Attribute],
    constants: Mapping[int, Array] | None = None,
) -> Instance:
    """Return the instance of an operation for these operands and attributes.

    Raises `SpecError`, with the operands' types, where the declaration has no meaning for them.
    """
    try:
        return _Instantiation(decl, constants or {}).run(input_types, attributes)
    except SpecError as error:
        operands = ", ".join("none" if t is None else str(t) for t in input_types)
        raise SpecError(f"op '{decl.name}' of ({operands}): {error.message}", error.span, error.hint) from error


class _Instantiation:
    """One run: items are taken in the order they are written, the family's first."""

    def __init__(self, decl: Declaration, constants: Mapping[int, Array]) -> None:
        self.decl = decl
        self.evaluator = ExpressionEvaluator()
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
            raise GraphError(
                f"op '{self.decl.name}': unknown attribute {', '.join(map(repr, unknown))}", hint=f"it has {known}"
            )
        for item in self.decl.items:
            self._item(item, attributes)
        check_shapes(self.decl, binding, evaluator)
        assign_all(evaluator, [item for item in self.decl.items if isinstance(item, (s.Assignment, s.Repetition))])
        check_coverage(self.decl, evaluator, [name for name in binding.inputs if name is not None])
        return self._instance(binding)

    def _constant(self, binding: Binding, name: str) -> Value:
        position = binding.inputs.index(name)
        if position not in self.constants:
            raise GraphError(f"op '{self.decl.name}': operand '{name}': expected a constant, found a computed value")
        return _to_tuples(self.constants[position].tolist())

    # ---- items

    def _item(self, item: s.Item, given: Mapping[str, Attribute]) -> None:
        evaluator = self.evaluator
        if isinstance(item, s.AttrItem):
            for attribute in item.attributes:
                value = bind_attribute(self.decl, attribute, given, evaluator)
                evaluator.scope[attribute.name] = self.attributes[attribute.name] = value
        elif isinstance(item, s.LetItem):
            for let in item.bindings:
                evaluator.scope[let.name] = let if let.parameters else evaluator.evaluate(let.value)
        elif isinstance(item, s.TableItem):
            self._table(item)
        elif isinstance(item, s.Require):
            self._require(item)
        elif isinstance(item, s.OutItem):
            for result in item.results:
                self.outputs.extend(self._result(result))
        elif isinstance(item, s.TempItem):
            for temporary in item.temporaries:
                self._temporary(temporary)

    def _require(self, item: s.Require) -> None:
        if self.evaluator.evaluate(item.condition) in (True, 1):
            return
        raise GraphError(f"op '{self.decl.name}': {self._message(item)}")

    def _message(self, item: s.Require) -> str:
        def fill(match: re.Match[str]) -> str:
            return describe(self.evaluator.evaluate(_placeholder(item.span.source, item.span.start, match.group(1))))

        return PLACEHOLDER.sub(fill, item.message)

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
                raise GraphError(
                    f"op '{self.decl.name}': result '{name}' would have a dim of size {min(sizes)}", node.span
                )
            entries.append(tuple(sizes) if isinstance(node, s.Spread) else sizes[0])
        shape = tuple(n for e in entries for n in (e if isinstance(e, tuple) else (e,)))
        type_ = TensorType(self._dtype(dtype, span), shape)
        self.evaluator.tensors[name] = type_
        self.evaluator.unwritten.add(name)
        return TensorRef(name, type_, tuple(entries))

    def _temporary(self, temporary: s.Temporary) -> None:
        """Bring an intermediate into scope, or a list of them; those of one type are named when they are needed."""
        binder = temporary.binder
        names = {n.id for dim in temporary.dims for n in names_read(dim)}
        if binder is None or binder.name in names:
            self._result(temporary)
            return
        count = self.evaluator.size(binder.bound)
        ref = self._tensor(temporary.name, temporary.dtype, temporary.dims, temporary.span)
        del self.evaluator.tensors[temporary.name]
        self.evaluator.unwritten.discard(temporary.name)
        self.evaluator.scope[temporary.name] = TensorList(ref.name, ref.type, ref.items, count)

    def _result(self, result: s.Result | s.Temporary) -> tuple[str, ...]:
        """Bring a result or an intermediate into scope, or one for each value of its binder; return their names."""
        scope = self.evaluator.scope
        if result.binder is None:
            scope[result.name] = self._tensor(result.name, result.dtype, result.dims, result.span)
            return (result.name,)
        refs = []
        for number in self.evaluator.turns(result.binder.bound):
            scope[result.binder.name] = number
            refs.append(self._tensor(f"{result.name}_{number}", result.dtype, result.dims, result.span))
        scope.pop(result.binder.name, None)
        scope[result.name] = tuple(refs)
        return tuple(ref.name for ref in refs)

    def _table(self, item: s.TableItem) -> None:
        rows = self.evaluator.evaluate(item.value)
        shape: list[int] = []
        level = rows
        while isinstance(level, tuple):
            shape.append(len(level))
            level = level[0] if level else 0
        with Located(item.span):
            flat = _flatten(rows)
        if len(flat) != TensorType(DType.F32, tuple(shape)).size:
            raise SpecError(f"the rows of table '{item.name}' have different lengths", item.span)
        type_ = TensorType(self._dtype(item.dtype, item.span), tuple(shape))
        self.evaluator.tensors[item.name] = type_
        self.evaluator.tables[item.name] = flat
        self.evaluator.scope[item.name] = TensorRef(item.name, type_)

    def _instance(self, binding: Binding) -> Instance:
        evaluator = self.evaluator
        inputs = tuple(name for name in binding.inputs if name is not None)
        computed = remove_empty_statements(evaluator.statements, evaluator.tensors, self.decl.name)
        statements = live_statements([canonicalise(statement) for statement in computed], self.outputs)
        used = {tensor for st in statements for tensor in st.tensors_read}
        tables = {name: rows for name, rows in evaluator.tables.items() if name in used}
        kept = {*inputs, *self.outputs, *tables, *(st.target for st in statements)}
        tensors = {n: t for n, t in evaluator.tensors.items() if n in kept}
        program = Program(tensors, inputs, tuple(self.outputs), statements, tables)
        types = tuple(tensors[name] for name in self.outputs)
        algorithms, gradient = resolve_algorithms(self.decl, evaluator), resolve_gradient(self.decl, evaluator)
        return Instance(
            self.decl.name, program, binding.inputs, tuple(self.outputs), types, self.attributes, algorithms, gradient
        )


@lru_cache(maxsize=1024)
def _placeholder(source: Source, start: int, text: str) -> s.Expression:
    """Return the expression in a placeholder of a message; parsed ones are cached, as passes propose the same illegal
    nodes repeatedly.
    """
    return parse_expression(source, start, text)


def _to_tuples(value: object) -> Value:
    return tuple(_to_tuples(v) for v in value) if isinstance(value, list) else value


def _flatten(value: Value) -> tuple[float, ...]:
    if isinstance(value, tuple):
        return tuple(x for v in value for x in _flatten(v))
    if not isinstance(value, (int, float)):
        raise Trouble(f"a table holds numbers, found {describe(value)}")
    return (value,)


@define(frozen=True, slots=False)
class OpDecl(Declaration):
    """Declared operation that can be bound to the types of its operands."""

    def instantiate(
        self,
        input_types: Sequence[TensorType | None],
        attributes: Mapping[str, Attribute] | None = None,
        constants: Mapping[int, Array] | None = None,
    ) -> Instance:
        """Return the instance for operands of these types."""
        return instantiate(self, input_types, attributes or {}, constants)
