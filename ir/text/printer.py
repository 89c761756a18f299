"""Printer of IR by forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias, cast

import attrs
from attrs import define, field

from ..affine import Guard, Index, Var
from ..dfg import Literal, Op, Root, Value, operand_nodes, post_order
from ..expr import Expr
from .expressions import ATOM, call_text, literal_text, print_expr
from .forms import Form, Lines, Maybe, Part, Slot, Word, element_type, entry_types, field_defaults, field_types, members
from .indices import IndexNames, print_guard, print_index
from .tokens import number_text, quote

Record: TypeAlias = Mapping[str, Any]
_INDENT = "  "
_VALUES = frozenset(members(Value))


def variables_of(node: object) -> dict[Var, None]:
    """Return every variable of a tree of attrs classes.

    The order is that of first occurrence.
    """
    found: dict[Var, None] = {}
    seen: set[int] = set()
    stack: list[object] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            stack.extend(reversed(item))
        elif isinstance(item, Index):
            found.update(_in_order(item))
        elif isinstance(item, Var):
            found[item] = None
        elif names := _last_first(cast(Any, type(item))):
            if id(item) not in seen:
                seen.add(id(item))
                stack.extend([getattr(item, name) for name in names])
        elif isinstance(item, Mapping):
            stack.extend(reversed(list(item.values())))
    return found


@lru_cache(maxsize=1 << 16)
def _in_order(index: Index) -> dict[Var, None]:
    """Return the variables of an index, in order of first occurrence."""
    found: dict[Var, None] = {}
    for primary, _ in index.terms:
        for part in (primary,) if isinstance(primary, Var) else primary.parts:
            found.update({part: None} if isinstance(part, Var) else _in_order(part))
    return found


@cache
def _last_first(kind: Any) -> tuple[str, ...]:
    """Return the fields of an attrs class, the last first; nothing for other classes."""
    return tuple(reversed(list(field_types(kind)))) if attrs.has(kind) else ()


@define
class Printer:
    """Printer of nodes by the forms of their classes.

    `values` names the values of the data-flow graph being printed.
    """

    forms: Mapping[type, Form]
    names: IndexNames
    values: dict[Value, str] = field(factory=dict)

    def node(self, node: Any) -> Iterator[str]:
        """Yield the lines of a node.

        A root comes after the lines of its values that are not printed yet.
        """
        form = self.forms[type(node)]
        if isinstance(node, members(Root)):
            yield from self._value_lines(node)
        types, defaults = field_types(type(node)), field_defaults(type(node))
        record = {name: getattr(node, name) for name in types}
        head = self._parts(form.head, record, types, defaults)
        if not form.body:
            yield head
            return
        inner = [line for section in form.body for line in self._section(section, record, types, defaults)]
        yield head + (" {" if inner else " {}")
        if inner:
            yield from (_INDENT + line for line in inner)
            yield "}"

    def _section(self, section: Lines | Maybe, record: Record, types: Record, defaults: Record) -> Iterator[str]:
        if isinstance(section, Maybe):
            line = self._maybe(section, record, types, defaults)
            if line:
                yield line
            return
        pair = entry_types(types[section.name])
        if pair is not None:
            for key, value in record[section.name].items():
                yield self._parts(section.entry, {"key": key, "value": value}, {"key": pair[0], "value": pair[1]}, {})
            return
        if element_type(types[section.name]) == Root:
            self.values = {}
        for element in record[section.name]:
            yield from self.node(element)

    def _value_lines(self, root: Root) -> Iterator[str]:
        """Yield a line for every value that a root needs and that has no name yet."""
        for value in post_order(operand_nodes(root)):
            if value in self.values or isinstance(value, Literal):
                continue
            text = self._value(value)  # type: ignore[arg-type]
            self.values[value] = f"%{len(self.values)}"  # type: ignore[index]
            yield f"{self.values[value]}: {value.dtype} = {text}"  # type: ignore[index]

    def _value(self, value: Value) -> str:
        if isinstance(value, Op):
            args = [
                literal_text(a.value, a.dtype) if isinstance(a, Literal) else (self.values[a], ATOM) for a in value.args
            ]
            return call_text(value.fn, args)[0]
        types, defaults = field_types(type(value)), field_defaults(type(value))
        return self._parts(
            self.forms[type(value)].head, {name: getattr(value, name) for name in types}, types, defaults
        )

    def _parts(self, parts: Sequence[Part], record: Record, types: Record, defaults: Record) -> str:
        text = ""
        for part in parts:
            if isinstance(part, Word):
                text += part.text
            elif isinstance(part, Maybe):
                text += self._maybe(part, record, types, defaults)
            elif not part.flag:
                text += self._slot(types[part.name], record[part.name])
        return text

    def _maybe(self, maybe: Maybe, record: Record, types: Record, defaults: Record) -> str:
        slots = [part for part in maybe.parts if isinstance(part, Slot)]
        usual = all(record[slot.name] == defaults.get(slot.name, ()) for slot in slots)
        return "" if usual else self._parts(maybe.parts, record, types, defaults)

    def _slot(self, kind: Any, value: Any) -> str:
        inner = element_type(kind)
        if inner is not None:
            return ", ".join(self._slot(inner, v) for v in value)
        if kind == Expr:
            return print_expr(value, self.names)
        if set(members(kind)) <= _VALUES:
            return literal_text(value.value, value.dtype)[0] if isinstance(value, Literal) else self.values[value]
        if isinstance(value, Index):
            return print_index(value, self.names)
        if isinstance(value, Guard):
            return print_guard(value, self.names)
        if isinstance(value, Var):
            return self.names.variable(value)
        if isinstance(value, str):
            return quote(value, ())
        return number_text(value) if kind is float else str(value)
