"""Scalar expressions: the bodies of statements.

Expressions are trees of frozen nodes. `Read` is the only access to tensors; its guards bound the access and `fill` is
its value elsewhere ("outside reads as 0"): no element is touched where a guard fails.

Each class defines the walk over its nodes: its operands (`children`, `with_children`) and the indices that it holds
itself (`own_indices`, `with_indices`). `ir.traversal` uses nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from operator import is_
from typing import Any, TypeAlias, TypeVar, Union, cast
from weakref import WeakValueDictionary

from attrs import field, frozen

from .affine import Guard, Index, MoveGuards, MoveIndex
from .functions import FUNCTIONS
from .types import DType, TensorType, exactly


class _Node:
    """Base of a node, by default without operands and indices."""

    __slots__ = ()

    @property
    def children(self) -> tuple[Expr, ...]:
        """The direct operands."""
        return ()

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        """Return the node over other operands, itself where they are identical."""
        return cast("Expr", self)

    @property
    def own_indices(self) -> tuple[Index, ...]:
        """The indices that the node itself holds, those of its guards included."""
        return ()

    def with_indices(self, move: MoveIndex, check: MoveGuards) -> Expr:
        """Return the node with other indices and guards of its own."""
        return cast("Expr", self)


@frozen(cache_hash=True)
class Const(_Node):
    """A literal."""

    value: float | int | bool = field(eq=exactly)
    dtype: DType


@frozen(cache_hash=True)
class Read(_Node):
    """Element of a tensor, or `fill` where a guard fails.

    `fill` is a number by `types.as_float`.
    """

    tensor: str
    indices: tuple[Index, ...]
    guards: tuple[Guard, ...] = ()
    fill: float = field(default=0.0, eq=exactly)

    @property
    def own_indices(self) -> tuple[Index, ...]:
        """The indices of the element and of the guards."""
        return (*self.indices, *(g.index for g in self.guards))

    def with_indices(self, move: MoveIndex, check: MoveGuards) -> Expr:
        """Return the read of another element, itself where that is the same."""
        indices, guards = tuple(map(move, self.indices)), check(self.guards)
        same = guards == self.guards and all(map(is_, indices, self.indices))
        return self if same else Read(self.tensor, indices, guards, self.fill)


@frozen(cache_hash=True)
class IndexValue(_Node):
    """The value of an index expression as a number of type `dtype`."""

    index: Index
    dtype: DType = DType.I64

    @property
    def own_indices(self) -> tuple[Index, ...]:
        """The index."""
        return (self.index,)

    def with_indices(self, move: MoveIndex, check: MoveGuards) -> Expr:
        """Return the value of another index."""
        return IndexValue(move(self.index), self.dtype)


@frozen(cache_hash=True)
class InRange(_Node):
    """Boolean that is true where all guards hold."""

    guards: tuple[Guard, ...]

    @property
    def own_indices(self) -> tuple[Index, ...]:
        """The indices of the guards."""
        return tuple(g.index for g in self.guards)

    def with_indices(self, move: MoveIndex, check: MoveGuards) -> Expr:
        """Return the test of other guards, true where none is left."""
        guards = check(self.guards)
        return InRange(guards) if guards or not self.guards else Const(True, DType.BOOL)


@frozen(cache_hash=True)
class Call(_Node):
    """A scalar function of the fixed table in `functions`."""

    fn: str
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        """The operands."""
        return self.args

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        """Return the function of other operands."""
        return self if all(a is b for a, b in zip(children, self.args, strict=True)) else Call(self.fn, children)


@frozen(cache_hash=True)
class Cast(_Node):
    """Conversion to another element type.

    Float to int truncates towards zero, anything to bool tests for non-zero.
    """

    dtype: DType
    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        """The operand."""
        return (self.arg,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        """Return the conversion of another operand."""
        return self if children[0] is self.arg else Cast(self.dtype, children[0])


Expr: TypeAlias = Union[Const, Read, IndexValue, InRange, Call, Cast]


def call(fn: str, *args: Expr) -> Call:
    """Build a function call, checking the name and the arity."""
    assert FUNCTIONS[fn].arity == len(args), f"{fn} takes {FUNCTIONS[fn].arity} operands, got {len(args)}"
    return Call(fn, args)


def dtype_of(expr: Expr, tensors: Mapping[str, TensorType]) -> DType:
    """Return the element type of an expression, given its tensors' types."""
    if isinstance(expr, (Const, Cast, IndexValue)):
        return expr.dtype
    if isinstance(expr, Read):
        return tensors[expr.tensor].dtype
    if isinstance(expr, InRange):
        return DType.BOOL
    function = FUNCTIONS[expr.fn]
    if function.result != "same":
        return function.result_type(DType.BOOL)
    return dtype_of(expr.args[1 if expr.fn == "select" else 0], tensors)


def guarded_read(expr: Expr, at: float | None = None, instead: float | None = None) -> Read | None:
    """Return the read that an expression equals except at one value.

    x   or   select(x != at, x, instead)   ->   x

    None for another expression. Without `at` and `instead`, any constants match.
    """
    if isinstance(expr, Read):
        return expr
    if not isinstance(expr, Call) or expr.fn != "select":
        return None
    condition, element, other = expr.args
    if not isinstance(element, Read) or not isinstance(condition, Call) or condition.fn != "ne":
        return None
    read, value = condition.args
    if read != element or not isinstance(value, Const) or not isinstance(other, Const):
        return None
    return element if at in (None, value.value) and instead in (None, other.value) else None


Node = TypeVar("Node", bound=Hashable)
_INTERNED_NODES: WeakValueDictionary[Any, Any] = WeakValueDictionary()


def find_interned(node: Node) -> Node | None:
    """Return the interned node that equals another one, if any."""
    found: Node | None = _INTERNED_NODES.get(node)
    return found


def intern(node: Node) -> Node:
    """Return the one object of equal nodes.

    Expressions share parts, and a comparison of two equal ones walks through them as trees. Tables whose keys are long
    expressions compare them at each look-up, unless they are the same objects.
    """
    found: Node = _INTERNED_NODES.setdefault(node, node)
    return found
