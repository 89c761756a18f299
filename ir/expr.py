"""Scalar expressions: the bodies of statements.

Expressions are trees of frozen nodes. `Read` is the only access to tensors; its guards say where it is in range and
`fill` what it yields elsewhere ("outside reads as 0"), and no element is touched where a guard fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias, Union

from attrs import evolve, frozen

from .functions import FUNCTIONS
from .index import Index, IndexLike, Var, substitute, variables
from .types import DType, TensorType


@frozen(cache_hash=True)
class Guard:
    """The condition `low <= index < high`."""

    index: Index
    low: int
    high: int

    @property
    def always(self) -> bool:
        """Whether the ranges of the variables prove it."""
        first, last = self.index.bounds()
        return self.low <= first and last < self.high

    @property
    def text(self) -> str:
        """The printed form."""
        return f"{self.low} <= {self.index.text} < {self.high}"


@frozen(cache_hash=True)
class Const:
    """A literal."""

    value: float | int | bool
    dtype: DType


@frozen(cache_hash=True)
class Read:
    """An element of a tensor, or `fill` where a guard fails."""

    tensor: str
    indices: tuple[Index, ...]
    guards: tuple[Guard, ...] = ()
    fill: float = 0.0


@frozen(cache_hash=True)
class IndexValue:
    """The value of an index expression as a number of type `dtype`."""

    index: Index
    dtype: DType = DType.I64


@frozen(cache_hash=True)
class InRange:
    """Whether all guards hold; a bool."""

    guards: tuple[Guard, ...]


@frozen(cache_hash=True)
class Call:
    """A scalar function of the fixed table in `functions`."""

    fn: str
    args: tuple[Expr, ...]


@frozen(cache_hash=True)
class Cast:
    """Conversion to another element type; float to int truncates towards zero, anything to bool tests for non-zero."""

    dtype: DType
    arg: Expr


Expr: TypeAlias = Union[Const, Read, IndexValue, InRange, Call, Cast]


def call(fn: str, *args: Expr) -> Call:
    """Build a function call, checking the name and the arity."""
    assert FUNCTIONS[fn].arity == len(args), f"{fn} takes {FUNCTIONS[fn].arity} operands, got {len(args)}"
    return Call(fn, args)


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands."""
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Cast):
        return (expr.arg,)
    return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it, operands first."""
    for child in children(expr):
        yield from walk(child)
    yield expr


def reads(expr: Expr) -> tuple[Read, ...]:
    """Return the distinct reads in order of first occurrence."""
    return tuple(dict.fromkeys(e for e in distinct(expr) if isinstance(e, Read)))


def distinct(expr: Expr) -> Iterator[Expr]:
    """Yield every object of an expression once, operands first: transforms share most of their subexpressions."""
    seen: set[int] = set()
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children(node)))


def rebuild(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """Rebuild bottom-up, applying `leaf` to every node without operands; what is one object before is one object
    afterwards.
    """
    done: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        if id(node) not in done:
            done[id(node)] = build(node)
        return done[id(node)]

    def build(node: Expr) -> Expr:
        if isinstance(node, Call):
            args = tuple(visit(a) for a in node.args)
            return node if all(a is b for a, b in zip(args, node.args, strict=True)) else Call(node.fn, args)
        if isinstance(node, Cast):
            arg = visit(node.arg)
            return node if arg is node.arg else Cast(node.dtype, arg)
        return leaf(node)

    return visit(expr)


def substitute_guards(guards: tuple[Guard, ...], values: Mapping[Var, IndexLike]) -> tuple[Guard, ...]:
    """Replace variables in guards and drop those that became always true."""
    moved = (Guard(substitute(g.index, values), g.low, g.high) for g in guards)
    return tuple(dict.fromkeys(g for g in moved if not g.always))


def substitute_expr(expr: Expr, values: Mapping[Var, IndexLike]) -> Expr:
    """Replace index variables everywhere in an expression."""
    moved: dict[Index, Index] = {}  # the reads of a transform have many in common
    guarded: dict[tuple[Guard, ...], tuple[Guard, ...]] = {}

    def inside(index: Index) -> Index:
        if index not in moved:
            moved[index] = substitute(index, values)
        return moved[index]

    def checked(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        if guards not in guarded:
            guarded[guards] = substitute_guards(guards, values)
        return guarded[guards]

    def leaf(node: Expr) -> Expr:
        if isinstance(node, Read):
            return Read(node.tensor, tuple(inside(i) for i in node.indices), checked(node.guards), node.fill)
        if isinstance(node, IndexValue):
            return evolve(node, index=inside(node.index))
        if isinstance(node, InRange):
            guards = checked(node.guards)
            return InRange(guards) if guards else Const(True, DType.BOOL)
        return node

    return rebuild(expr, leaf)


@lru_cache(maxsize=1 << 16)
def expr_variables(expr: Expr) -> frozenset[Var]:
    """Return every index variable that occurs in the expression."""
    found: set[Var] = set()
    for node in walk(expr):
        if isinstance(node, Read):
            for index in node.indices:
                found |= variables(index)
        if isinstance(node, (Read, InRange)):
            for guard in node.guards:
                found |= variables(guard.index)
        if isinstance(node, IndexValue):
            found |= variables(node.index)
    return frozenset(found)


def dtype_of(expr: Expr, tensors: Mapping[str, TensorType]) -> DType:
    """Return the element type an expression has, given the types of the tensors it reads."""
    if isinstance(expr, (Const, Cast, IndexValue)):
        return expr.dtype
    if isinstance(expr, Read):
        return tensors[expr.tensor].dtype
    if isinstance(expr, InRange):
        return DType.BOOL
    function = FUNCTIONS[expr.fn]
    if function.result == "bool":
        return DType.BOOL
    return dtype_of(expr.args[1 if expr.fn == "select" else 0], tensors)
