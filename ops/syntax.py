"""The syntax tree of `.cuts` files: one frozen class per rule of `spec/cuts.lark`.

Spans take no part in equality, so two texts that print alike have equal trees.
"""

from __future__ import annotations

from typing import TypeAlias, Union

from attrs import field, frozen

from ..ir.source import Span


def _span() -> Span:
    span: Span = field(eq=False, repr=False)
    return span


@frozen
class Number:
    """An integer or real literal; `inf`, `true` and the like are names."""

    value: int | float
    span: Span = _span()


@frozen
class Text:
    """A string literal."""

    value: str
    span: Span = _span()


@frozen
class Name:
    """A dim, attribute, index variable, tensor or predefined constant."""

    id: str
    span: Span = _span()


@frozen
class Call:
    """`fn(args)`: a static function, a scalar function or a conversion to an element type."""

    fn: str
    args: tuple[Expression, ...]
    span: Span = _span()


@frozen
class Listing:
    """`[a, b, c]`."""

    items: tuple[Expression, ...]
    span: Span = _span()


@frozen
class Comprehension:
    """`[body for var < source]` (counted) or `[body for var in source]`."""

    body: Expression
    var: str
    counted: bool
    source: Expression
    span: Span = _span()


@frozen
class Spread:
    """`...list`: every item of a list in place."""

    value: Expression
    span: Span = _span()


@frozen
class Slice:
    """`low:high` within a list's subscript."""

    low: Expression | None
    high: Expression | None
    span: Span = _span()


@frozen
class Subscript:
    """`base[items]`: an element of a tensor or of a list, or a slice of a list."""

    base: Expression
    items: tuple[Expression, ...]
    span: Span = _span()


@frozen
class Outside:
    """`read outside fill`: what a read yields where an index leaves the tensor."""

    read: Expression
    fill: Expression
    span: Span = _span()


@frozen
class Unary:
    """`-x` or `not x`."""

    op: str
    arg: Expression
    span: Span = _span()


@frozen
class Binary:
    """An infix operation."""

    op: str
    left: Expression
    right: Expression
    span: Span = _span()


@frozen
class Conditional:
    """`then if test else other`."""

    then: Expression
    test: Expression
    other: Expression
    span: Span = _span()


@frozen
class Binder:
    """`name < bound`, or `...name < bounds` for one variable per item."""

    name: str
    spread: bool
    bound: Expression
    span: Span = _span()


@frozen
class Reduction:
    """`sum[binders] body`."""

    kind: str
    binders: tuple[Binder, ...]
    body: Expression
    span: Span = _span()


Expression: TypeAlias = Union[
    Number, Text, Name, Call, Listing, Comprehension, Spread, Slice, Subscript, Outside, Unary, Binary, Conditional, Reduction
]


@frozen
class TypeItem:
    """`type T: float | int`: an element type that stands for any of some classes."""

    name: str
    classes: tuple[str, ...]
    span: Span = _span()


@frozen
class Operand:
    """`name: T[dims]`; `name?` may be absent, `name*` is any number of operands."""

    name: str
    variadic: bool
    optional: bool
    dtype: str
    dims: tuple[Expression, ...]
    span: Span = _span()


@frozen
class Result:
    """`name: T[dims]`; with a binder, one result per value of it."""

    name: str
    binder: Binder | None
    dtype: str
    dims: tuple[Expression, ...]
    span: Span = _span()


@frozen
class Temporary:
    """`name: T[dims]`, a named intermediate."""

    name: str
    dtype: str
    dims: tuple[Expression, ...]
    span: Span = _span()


@frozen
class AttributeType:
    """Type of an attribute: a `kind`, an expected length of a list, the shape an axis counts in, or the allowed strings."""

    kind: str
    length: Expression | None
    shape: Expression | None
    choices: tuple[str, ...]
    span: Span = _span()


@frozen
class AttributeItem:
    """`name: type = default`."""

    name: str
    type: AttributeType
    default: Expression | None
    span: Span = _span()


@frozen
class Binding:
    """`name = value` in a `let`."""

    name: str
    value: Expression
    span: Span = _span()


@frozen
class InItem:
    """A line of operands."""

    operands: tuple[Operand, ...]
    span: Span = _span()


@frozen
class OutItem:
    """A line of results."""

    results: tuple[Result, ...]
    span: Span = _span()


@frozen
class TempItem:
    """A line of named intermediates."""

    temporaries: tuple[Temporary, ...]
    span: Span = _span()


@frozen
class AttrItem:
    """A line of attributes."""

    attributes: tuple[AttributeItem, ...]
    span: Span = _span()


@frozen
class LetItem:
    """A line of static definitions."""

    bindings: tuple[Binding, ...]
    span: Span = _span()


@frozen
class TableItem:
    """`table name: T = rows`, a constant tensor."""

    name: str
    dtype: str
    value: Expression
    span: Span = _span()


@frozen
class Require:
    """`require condition "message with {expressions}"`."""

    condition: Expression
    message: str
    span: Span = _span()


@frozen
class Target:
    """What an assignment writes: a tensor with subscripts, or without any for every element by position."""

    name: str
    brackets: tuple[tuple[Expression, ...], ...]
    span: Span = _span()


@frozen
class Assignment:
    """`each j < n: target = value for c < C`."""

    each: Binder | None
    target: Target
    value: Expression
    binders: tuple[Binder, ...]
    span: Span = _span()


@frozen
class Argument:
    """An operand of a step, or an attribute when it has a name."""

    name: str | None
    value: Expression
    span: Span = _span()


@frozen
class Step:
    """`a, b = op(x, attribute: value)` of an algorithm or a gradient."""

    results: tuple[str, ...]
    op: str
    arguments: tuple[Argument, ...]
    span: Span = _span()


@frozen
class Algorithm:
    """Another way to compute the op: steps of declared ops, legal when the guard holds."""

    name: str
    guard: Expression | None
    steps: tuple[Step, ...]
    span: Span = _span()


@frozen
class Gradient:
    """Steps that compute the gradient where the derived one is not wanted."""

    steps: tuple[Step, ...]
    span: Span = _span()


Item: TypeAlias = Union[
    TypeItem, InItem, OutItem, TempItem, AttrItem, LetItem, TableItem, Require, Assignment, Algorithm, Gradient
]


@frozen
class Declaration:
    """A family or an op, as written."""

    kind: str
    name: str
    family: str | None
    summary: str
    items: tuple[Item, ...]
    span: Span = _span()
