"""Parser of IR by forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from ..affine import Guard, Index, Var
from ..dfg import Literal, Op, Root, Value
from ..errors import ParseError
from ..expr import Expr
from ..types import DType, TensorType, as_float
from .expressions import parse_dtype, parse_expr, parse_literal, parse_operation
from .forms import Form, Lines, Maybe, Part, Slot, Word, element_type, entry_types, field_defaults, field_types, members
from .indices import parse_guard, parse_index, parse_variable
from .tokens import Token, Tokens

_VALUES = frozenset(members(Value))


@define
class Parser:
    """Reader of nodes by the forms of their classes.

    `values` are the values of the data-flow graph being read.
    """

    forms: Mapping[type, Form]
    tokens: Tokens
    declared: Mapping[str, Var]
    values: dict[str, Value] = field(factory=dict)

    def node(self, classes: Sequence[type]) -> Any:
        """Read a node of one of the classes."""
        cls = self._coming(classes)
        if cls is None:
            raise self.tokens.fail(" or ".join(f"'{self.forms[c].keyword}'" for c in classes if c in self.forms))
        form = self.forms[cls]
        types = field_types(cls)
        record: dict[str, Any] = {}
        self._parts(form.head, record, types)
        if form.body:
            self.tokens.expect("{")
            for section in form.body:
                self._section(section, record, types)
            self.tokens.expect("}")
        return _build(cls, types, record)

    def root(self) -> Any:
        """Read the values of one root, and the root."""
        while self.tokens.follows("%"):
            self._define()
        return self.node(members(Root))

    def nodes(self, classes: Sequence[type], values: bool) -> tuple[Any, ...]:
        """Read all nodes that follow.

        With `values`, the values of a data-flow graph may stand between them.
        """
        found: list[Any] = []
        while True:
            if values and self.tokens.follows("%"):
                self._define()
            elif self._coming(classes) is not None:
                found.append(self.node(classes))
            else:
                return tuple(found)

    def _coming(self, classes: Sequence[type]) -> type | None:
        return next((c for c in classes if c in self.forms and self.tokens.follows(self.forms[c].keyword)), None)

    def _section(self, section: Lines | Maybe, record: dict[str, Any], types: Mapping[str, Any]) -> None:
        if isinstance(section, Maybe):
            self._maybe(section, record, types)
            return
        pair = entry_types(types[section.name])
        if pair is not None:
            record[section.name] = self._entries(section, pair)
            return
        kind = element_type(types[section.name])
        if kind == Root:
            self.values = {}
        record[section.name] = self.nodes(members(kind), kind == Root)

    def _entries(self, section: Lines, pair: tuple[Any, Any]) -> dict[Any, Any]:
        first = section.entry[0]
        assert isinstance(first, Word)
        found: dict[Any, Any] = {}
        while self.tokens.follows(*first.tokens):
            token = self.tokens.peek()
            entry: dict[str, Any] = {}
            self._parts(section.entry, entry, {"key": pair[0], "value": pair[1]})
            if entry["key"] in found:
                raise ParseError(f"'{entry['key']}' stands twice in '{section.name}'", self.tokens.span(token))
            found[entry["key"]] = entry["value"]
        return found

    def _parts(self, parts: Sequence[Part], record: dict[str, Any], types: Mapping[str, Any]) -> None:
        for part in parts:
            if isinstance(part, Word):
                for token in part.tokens:
                    self.tokens.expect(token)
            elif isinstance(part, Maybe):
                self._maybe(part, record, types)
            else:
                record[part.name] = True if part.flag else self._slot(types[part.name], part)

    def _maybe(self, maybe: Maybe, record: dict[str, Any], types: Mapping[str, Any]) -> None:
        lead = int(isinstance(maybe.parts[0], Slot))  # a name may stand before the deciding words
        word = maybe.parts[lead]
        assert isinstance(word, Word)
        if self.tokens.follows(*word.tokens, ahead=lead):
            self._parts(maybe.parts, record, types)

    def _slot(self, kind: Any, slot: Slot) -> Any:
        inner = element_type(kind)
        if inner is None:
            return self._scalar(kind)
        found: list[Any] = []
        if not slot.stop or not self.tokens.follows(slot.stop):
            found.append(self._scalar(inner))
            while self.tokens.accept(","):
                found.append(self._scalar(inner))
        return tuple(found)

    def _scalar(self, kind: Any) -> Any:
        if set(members(kind)) <= _VALUES:
            return self._operand(members(kind))
        if kind == Expr:
            return parse_expr(self.tokens, self.declared)
        readers: dict[Any, Callable[[], Any]] = {
            Index: lambda: parse_index(self.tokens, self.declared),
            Guard: lambda: parse_guard(self.tokens, self.declared),
            Var: lambda: parse_variable(self.tokens, self.declared),
            DType: lambda: parse_dtype(self.tokens),
            TensorType: self._tensor_type,
            int: self.tokens.integer,
            float: lambda: as_float(self.tokens.number()),
            str: self.tokens.name,
        }
        return readers[members(kind)[0]]()

    def _tensor_type(self) -> TensorType:
        dtype = parse_dtype(self.tokens)
        self.tokens.expect("[")
        shape = self._slot(tuple[int, ...], Slot("shape", "]"))
        self.tokens.expect("]")
        return TensorType(dtype, shape)

    def _operand(self, kinds: tuple[type, ...]) -> Value:
        """Read a literal or a value defined above, of one of the classes."""
        token = self.tokens.peek()
        literal = parse_literal(self.tokens)
        value = self._defined_value() if literal is None else Literal(*literal)
        if not isinstance(value, kinds):
            raise ParseError(f"expected a {self.forms[kinds[0]].keyword}, found another value", self.tokens.span(token))
        return value

    def _defined_value(self) -> Value:
        token = self.tokens.peek()
        self.tokens.expect("%")
        number = self.tokens.take("number", "the number of a value").text
        if number not in self.values:
            raise ParseError(f"value %{number} is not defined above", self.tokens.span(token))
        return self.values[number]

    def _define(self) -> None:
        """Read the line of one value."""
        token = self.tokens.peek()
        self.tokens.expect("%")
        number = self.tokens.take("number", "the number of a value").text
        if number in self.values:
            raise ParseError(f"value %{number} is defined twice", self.tokens.span(token))
        self.tokens.expect(":")
        dtype = parse_dtype(self.tokens)
        self.tokens.expect("=")
        self.values[number] = self._value(dtype, token)

    def _value(self, dtype: DType, line: Token) -> Value:
        cls = self._coming([c for c in members(Value) if c in self.forms])
        if cls is not None:
            types = field_types(cls)
            record: dict[str, Any] = {"dtype": dtype} if "dtype" in types else {}
            self._parts(self.forms[cls].head, record, types)
            return _build(cls, types, record)  # type: ignore[no-any-return]
        made: list[Value] = []

        def make(fn: str, args: tuple[Value, ...]) -> Value:
            if made:
                raise ParseError("a value is one operation on values defined above", self.tokens.span(line))
            made.append(Op(fn, args, dtype))
            return made[0]

        return parse_operation(self.tokens, lambda: self._operand(members(Value)), make)


def _build(cls: type, types: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
    """Make a node; a tuple that the text left out is empty."""
    missing = {name: () for name, kind in types.items() if element_type(kind) is not None and name not in record}
    return cls(**{k: v for k, v in missing.items() if k not in field_defaults(cls)}, **record)
