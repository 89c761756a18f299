"""Conversion of Lark's parse tree to the classes of `syntax`.

There is one method per rule or alias of the grammar.
"""

from __future__ import annotations

from typing import Any

from lark import Token, Transformer, v_args
from lark.tree import Meta

from ....ir import Source, Span
from . import syntax as s

Children = list[Any]


@v_args(meta=True)
class TreeBuilder(Transformer[Token, Any]):
    """Builds the syntax tree of text at an offset of its source."""

    def __init__(self, source: Source, start: int) -> None:
        super().__init__()
        self._source, self._start = source, start

    def _span(self, meta: Meta) -> Span:
        if meta.empty:
            return Span(self._source, self._start, self._start)
        return Span(self._source, self._start + meta.start_pos, self._start + meta.end_pos)

    def family(self, meta: Meta, c: Children) -> s.Declaration:
        return s.Declaration(
            "family", str(c[0]), _text(c[1]), _unquote(c[2]), _items(c[3:]), span=self._name_span(c[0])
        )

    def op(self, meta: Meta, c: Children) -> s.Declaration:
        return s.Declaration("op", str(c[0]), _text(c[1]), _unquote(c[2]), _items(c[3:]), span=self._name_span(c[0]))

    def _name_span(self, token: Token) -> Span:
        start = self._start + (token.start_pos or 0)
        return Span(self._source, start, start + len(token))

    # ---- items

    def type_items(self, meta: Meta, c: Children) -> tuple[s.TypeItem, ...]:
        return tuple(c)

    def type_item(self, meta: Meta, c: Children) -> s.TypeItem:
        return s.TypeItem(str(c[0]), tuple(map(str, c[1:])), span=self._span(meta))

    def in_item(self, meta: Meta, c: Children) -> s.InItem:
        return s.InItem(tuple(c), span=self._span(meta))

    def out_item(self, meta: Meta, c: Children) -> s.OutItem:
        return s.OutItem(tuple(c), span=self._span(meta))

    def temp_item(self, meta: Meta, c: Children) -> s.TempItem:
        return s.TempItem(tuple(c), span=self._span(meta))

    def attr_item(self, meta: Meta, c: Children) -> s.AttrItem:
        return s.AttrItem(tuple(c), span=self._span(meta))

    def let_item(self, meta: Meta, c: Children) -> s.LetItem:
        return s.LetItem(tuple(c), span=self._span(meta))

    def table_item(self, meta: Meta, c: Children) -> s.TableItem:
        return s.TableItem(str(c[0]), str(c[1]), c[2], span=self._span(meta))

    def require_item(self, meta: Meta, c: Children) -> s.Require:
        return s.Require(c[0], _unquote(c[1]), span=self._span(meta))

    def assignment(self, meta: Meta, c: Children) -> s.Assignment:
        return s.Assignment(c[0], c[1], c[2], tuple(b for b in c[3:] if b is not None), span=self._span(meta))

    def arrival(self, meta: Meta, c: Children) -> s.Assignment:
        binders = tuple(b for b in c[5:] if b is not None)
        return s.Assignment(c[0], c[3], c[4], binders, str(c[2]), str(c[1]) == "atomic", span=self._span(meta))

    def repetition(self, meta: Meta, c: Children) -> s.Repetition:
        return s.Repetition(c[0], tuple(c[1:]), span=self._span(meta))

    def algorithm(self, meta: Meta, c: Children) -> s.Algorithm:
        return s.Algorithm(str(c[0]), c[1], tuple(c[2:]), span=self._span(meta))

    def gradient(self, meta: Meta, c: Children) -> s.Gradient:
        return s.Gradient(tuple(c), span=self._span(meta))

    def operand(self, meta: Meta, c: Children) -> s.Operand:
        return s.Operand(str(c[0]), c[1] is not None, c[2] is not None, str(c[3]), c[4] or (), span=self._span(meta))

    def result(self, meta: Meta, c: Children) -> s.Result:
        return s.Result(str(c[0]), c[1], str(c[2]), c[3] or (), span=self._span(meta))

    def temporary(self, meta: Meta, c: Children) -> s.Temporary:
        return s.Temporary(str(c[0]), c[1], str(c[2]), c[3] or (), span=self._span(meta))

    def attribute(self, meta: Meta, c: Children) -> s.AttributeItem:
        return s.AttributeItem(str(c[0]), c[1], c[2], span=self._span(meta))

    def plain_type(self, meta: Meta, c: Children) -> s.AttributeType:
        return s.AttributeType(str(c[0]), c[1], None, (), span=self._span(meta))

    def axis_type(self, meta: Meta, c: Children) -> s.AttributeType:
        return s.AttributeType(str(c[0]), None, c[1], (), span=self._span(meta))

    def choice_type(self, meta: Meta, c: Children) -> s.AttributeType:
        return s.AttributeType("choice", None, None, tuple(_unquote(t) for t in c), span=self._span(meta))

    def binding(self, meta: Meta, c: Children) -> s.Binding:
        return s.Binding(str(c[0]), c[2], c[1] or (), span=self._span(meta))

    def parameters(self, meta: Meta, c: Children) -> tuple[str, ...]:
        return tuple(map(str, c))

    def target(self, meta: Meta, c: Children) -> s.Target:
        return s.Target(str(c[0]), tuple(c[1:]), span=self._span(meta))

    def bracket(self, meta: Meta, c: Children) -> tuple[s.Expression, ...]:
        return c[0] or ()

    def step(self, meta: Meta, c: Children) -> s.Step:
        tokens = [t for t in c if isinstance(t, Token)]
        arguments = tuple(a for a in c if isinstance(a, s.Argument))
        return s.Step(tuple(map(str, tokens[:-1])), str(tokens[-1]), arguments, span=self._span(meta))

    def plain_argument(self, meta: Meta, c: Children) -> s.Argument:
        return s.Argument(None, c[0], span=self._span(meta))

    def keyword_argument(self, meta: Meta, c: Children) -> s.Argument:
        return s.Argument(str(c[0]), c[1], span=self._span(meta))

    # ---- expressions

    def conditional(self, meta: Meta, c: Children) -> s.Conditional:
        return s.Conditional(c[0], c[1], c[2], span=self._span(meta))

    def logical_or(self, meta: Meta, c: Children) -> s.Binary:
        return s.Binary("or", c[0], c[1], span=self._span(meta))

    def logical_and(self, meta: Meta, c: Children) -> s.Binary:
        return s.Binary("and", c[0], c[1], span=self._span(meta))

    def logical_not(self, meta: Meta, c: Children) -> s.Unary:
        return s.Unary("not", c[0], span=self._span(meta))

    def binary(self, meta: Meta, c: Children) -> s.Binary:
        return s.Binary(str(c[1]), c[0], c[2], span=self._span(meta))

    def negative(self, meta: Meta, c: Children) -> s.Unary:
        return s.Unary("-", c[1], span=self._span(meta))

    def reduction(self, meta: Meta, c: Children) -> s.Reduction:
        return s.Reduction(str(c[0]), tuple(c[1:-1]), c[-1], span=self._span(meta))

    def subscript(self, meta: Meta, c: Children) -> s.Subscript:
        return s.Subscript(c[0], c[1] or (), span=self._span(meta))

    def outside(self, meta: Meta, c: Children) -> s.Outside:
        return s.Outside(c[0], c[1], span=self._span(meta))

    def number(self, meta: Meta, c: Children) -> s.Number:
        text = str(c[0])
        return s.Number(int(text) if text.isdigit() else float(text), span=self._span(meta))

    def string(self, meta: Meta, c: Children) -> s.Text:
        return s.Text(_unquote(c[0]), span=self._span(meta))

    def name(self, meta: Meta, c: Children) -> s.Name:
        return s.Name(str(c[0]), span=self._span(meta))

    def call(self, meta: Meta, c: Children) -> s.Call:
        return s.Call(str(c[0]), tuple(a for a in c[1:] if a is not None), span=self._span(meta))

    def listing(self, meta: Meta, c: Children) -> s.Listing:
        return s.Listing(tuple(a for a in c if a is not None), span=self._span(meta))

    def comprehension(self, meta: Meta, c: Children) -> s.Comprehension:
        var, counted, source = c[1]
        return s.Comprehension(c[0], var, counted, source, span=self._span(meta))

    def counted(self, meta: Meta, c: Children) -> tuple[str, bool, s.Expression]:
        return str(c[0]), True, c[1]

    def listed(self, meta: Meta, c: Children) -> tuple[str, bool, s.Expression]:
        return str(c[0]), False, c[1]

    def binder(self, meta: Meta, c: Children) -> s.Binder:
        return s.Binder(str(c[1]), c[0] is not None, c[2], span=self._span(meta))

    def subscripts(self, meta: Meta, c: Children) -> tuple[s.Expression, ...]:
        return tuple(c)

    def spread(self, meta: Meta, c: Children) -> s.Spread:
        return s.Spread(c[1], span=self._span(meta))

    def slice(self, meta: Meta, c: Children) -> s.Slice:
        return s.Slice(c[0], c[1], span=self._span(meta))


def _items(lines: Children) -> tuple[s.Item, ...]:
    """Return the items of lines; a line of element types has one for each."""
    return tuple(item for line in lines for item in (line if isinstance(line, tuple) else (line,)))


def _text(token: Token | None) -> str | None:
    return None if token is None else str(token)


def _unquote(token: Token | None) -> str:
    return "" if token is None else str(token)[1:-1]
