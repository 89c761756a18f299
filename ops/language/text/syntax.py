"""Syntax tree of `.cuts` files: a class per rule of `spec/cuts.lark`.

Spans take no part in equality, so two texts that print equally have equal trees.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen

from ....ir import Span


@frozen
class Node:
    """Anything written in a declaration, and where."""

    span: Span = field(eq=False, repr=False, kw_only=True)


@frozen
class Number(Node):
    """An integer or real literal; `inf`, `true` and the like are names."""

    value: int | float


@frozen
class Text(Node):
    """A string literal."""

    value: str


@frozen
class Name(Node):
    """A dim, attribute, index variable, tensor or predefined constant."""

    id: str


@frozen
class Call(Node):
    """`fn(args)`, a function call or a conversion.

    The function is static or scalar; a conversion names an element type.
    """

    fn: str
    args: tuple[Expression, ...]


@frozen
class Listing(Node):
    """`[a, b, c]`."""

    items: tuple[Expression, ...]


@frozen
class Comprehension(Node):
    """`[body for var < source]` (counted) or `[body for var in source]`."""

    body: Expression
    var: str
    counted: bool
    source: Expression


@frozen
class Spread(Node):
    """`...list`: every item of a list in place."""

    value: Expression


@frozen
class Slice(Node):
    """`low:high` within a list's subscript."""

    low: Expression | None
    high: Expression | None


@frozen
class Subscript(Node):
    """`base[items]`: an element of a tensor or list, or a list slice."""

    base: Expression
    items: tuple[Expression, ...]


@frozen
class Outside(Node):
    """`read outside fill`: a read with a fill value for out-of-range indices."""

    read: Expression
    fill: Expression


@frozen
class Unary(Node):
    """`-x` or `not x`."""

    op: str
    arg: Expression


@frozen
class Binary(Node):
    """An infix operation."""

    op: str
    left: Expression
    right: Expression


@frozen
class Conditional(Node):
    """`then if test else other`."""

    then: Expression
    test: Expression
    other: Expression


@frozen
class Binder(Node):
    """`name < bound`, or `...name < bounds` for one variable per item."""

    name: str
    spread: bool
    bound: Expression


@frozen
class Reduction(Node):
    """`sum[binders] body`."""

    kind: str
    binders: tuple[Binder, ...]
    body: Expression


Expression: TypeAlias = (
    Number
    | Text
    | Name
    | Call
    | Listing
    | Comprehension
    | Spread
    | Slice
    | Subscript
    | Outside
    | Unary
    | Binary
    | Conditional
    | Reduction
)


@frozen
class TypeItem(Node):
    """`type T: float | int`: an element type of some classes."""

    name: str
    classes: tuple[str, ...]


@frozen
class Operand(Node):
    """`name: T[dims]`; `name?` may be absent, `name*` is any number of operands."""

    name: str
    variadic: bool
    optional: bool
    dtype: str
    dims: tuple[Expression, ...]


@frozen
class Result(Node):
    """`name: T[dims]`; with a binder, one result per value of it."""

    name: str
    binder: Binder | None
    dtype: str
    dims: tuple[Expression, ...]


@frozen
class Temporary(Node):
    """`name: T[dims]`: an intermediate; with a binder, one per value of it."""

    name: str
    binder: Binder | None
    dtype: str
    dims: tuple[Expression, ...]


@frozen
class AttributeType(Node):
    """Type of an attribute.

    It has a `kind`, and the length of a list, the shape that an axis counts in, or the allowed strings.
    """

    kind: str
    length: Expression | None
    shape: Expression | None
    choices: tuple[str, ...]


@frozen
class AttributeItem(Node):
    """`name: type = default`."""

    name: str
    type: AttributeType
    default: Expression | None


@frozen
class Binding(Node):
    """`name = value` or `name(parameters) = value` in a `let`.

    With parameters it is a function of the declaration.
    """

    name: str
    value: Expression
    parameters: tuple[str, ...] = ()


@frozen
class InItem(Node):
    """A line of operands."""

    operands: tuple[Operand, ...]


@frozen
class OutItem(Node):
    """A line of results."""

    results: tuple[Result, ...]


@frozen
class TempItem(Node):
    """A line of named intermediates."""

    temporaries: tuple[Temporary, ...]


@frozen
class AttrItem(Node):
    """A line of attributes."""

    attributes: tuple[AttributeItem, ...]


@frozen
class LetItem(Node):
    """A line of static definitions."""

    bindings: tuple[Binding, ...]


@frozen
class TableItem(Node):
    """`table name: T = rows`, a constant tensor."""

    name: str
    dtype: str
    value: Expression


@frozen
class Require(Node):
    """`require condition "message with {expressions}"`."""

    condition: Expression
    message: str


@frozen
class Target(Node):
    """Target of an assignment: a tensor, with or without subscripts.

    Without any it is every element by position.
    """

    name: str
    brackets: tuple[tuple[Expression, ...], ...]


@frozen
class Assignment(Node):
    """Assignment, possibly repeated by `each`, possibly a `scatter`.

    Its forms are `each j < n: target = value for c < C` and `scatter sum target = value for c < C`.

    `into` names the reduction of the values that arrive at an element, `atomic` says that they may arrive in any order.
    """

    each: Binder | None
    target: Target
    value: Expression
    binders: tuple[Binder, ...]
    into: str | None = None
    atomic: bool = False


@frozen
class Repetition(Node):
    """`each t < T { assignments }`, a recurrence.

    All assignments run for the first value, then for the second, and so on.
    """

    each: Binder
    items: tuple[Assignment | Repetition, ...]


@frozen
class Argument(Node):
    """Operand of a step; an attribute when it has a name."""

    name: str | None
    value: Expression


@frozen
class Step(Node):
    """`a, b = op(x, attribute: value)` of an algorithm or a gradient."""

    results: tuple[str, ...]
    op: str
    arguments: tuple[Argument, ...]


@frozen
class Algorithm(Node):
    """Alternative algorithm of the op: steps, legal when the guard holds."""

    name: str
    guard: Expression | None
    steps: tuple[Step, ...]


@frozen
class Gradient(Node):
    """Steps that compute the gradient where the derived one is not wanted."""

    steps: tuple[Step, ...]


Item: TypeAlias = (
    TypeItem
    | InItem
    | OutItem
    | TempItem
    | AttrItem
    | LetItem
    | TableItem
    | Require
    | Assignment
    | Repetition
    | Algorithm
    | Gradient
)


@frozen
class Declaration(Node):
    """A family or an op, as written."""

    kind: str
    name: str
    family: str | None
    summary: str
    items: tuple[Item, ...]
