"""Checks of expressions: names in scope, functions and their arities, subscripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from ....ir import FUNCTIONS, CutsError, DType, Span, SpecError
from ..evaluation import ABOUT_TENSORS, BUILTINS, CONSTANTS
from ..text import syntax as s

DTYPES = frozenset(d.value for d in DType)
RESERVED_NAMES = frozenset(CONSTANTS) | DTYPES
#: Functions that take a tensor: the value of a constant operand, an element as an index, an element in a type with room
#: for sums.
_ON_TENSORS = {"value": 1, "index": 2, "wide": 1}
_FUNCTION_NAMES = frozenset(FUNCTIONS) | frozenset(BUILTINS) | frozenset(_ON_TENSORS)


class ExpressionChecker:
    """Names in scope, and the errors found.

    `quiet` is true while lines of a family are read, whose own check reports them.
    """

    def __init__(self) -> None:
        self.errors: list[CutsError] = []
        self.quiet = False
        self.scope: set[str] = set(RESERVED_NAMES)
        self.tensors: dict[str, s.Operand | s.Result | s.Temporary | s.TableItem] = {}
        self.types: set[str] = set(DTYPES)
        self.kinds: dict[str, str] = {}
        self.functions: dict[str, int] = {}

    def error(self, message: str, span: Span, hint: str = "") -> None:
        """Add an error, unless the family's own check reports it."""
        self.report(SpecError(message, span, hint))

    def report(self, error: CutsError) -> None:
        """Add an error, unless the family's own check reports it."""
        if not self.quiet:
            self.errors.append(error)

    @contextmanager
    def local(self, names: Iterable[str], span: Span) -> Iterator[None]:
        """Bring index variables into scope.

        A name has one meaning at a time.
        """
        names = list(names)
        for name in names:
            if name in self.scope:
                self.error(f"'{name}' already has a meaning here", span, "choose another name for the index")
        added = set(names) - self.scope
        self.scope |= added
        yield
        self.scope -= added

    def expression(self, node: s.Expression) -> None:
        """Check an expression and all below it."""
        if isinstance(node, s.Name):
            self._name(node)
        elif isinstance(node, s.Call):
            self._call(node)
        elif isinstance(node, s.Subscript):
            if isinstance(node.base, s.Name) and node.base.id in self.tensors:
                self.subscript_count(node.base.id, node.items, node.span)
            self._children(node)
        elif isinstance(node, s.Comprehension):
            self.expression(node.source)
            with self.local([node.var], node.span):
                self.expression(node.body)
        elif isinstance(node, s.Reduction):
            for binder in node.binders:
                self.expression(binder.bound)
            with self.local([b.name for b in node.binders], node.span):
                self.expression(node.body)
        elif isinstance(node, s.Outside) and not isinstance(node.read, s.Subscript):
            self.error("'outside' follows the subscripts of a tensor", node.span)
        else:
            self._children(node)

    def _children(self, node: s.Expression) -> None:
        for child in children(node):
            self.expression(child)

    def _name(self, node: s.Name) -> None:
        if node.id in self.scope:
            return
        known = sorted(self.scope - RESERVED_NAMES)
        close = get_close_matches(node.id, known, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"names in scope: {', '.join(known) or 'none'}"
        self.error(f"unknown name '{node.id}'", node.span, hint)

    def _call(self, node: s.Call) -> None:
        self._children(node)
        if node.fn in self.types or self.kinds.get(node.fn) == "dtype":
            least = most = 1
        elif node.fn in self.functions:
            least = most = self.functions[node.fn]
        elif node.fn in BUILTINS:
            least, most = BUILTINS[node.fn].arity
        elif node.fn in FUNCTIONS or node.fn in _ON_TENSORS:
            least = most = FUNCTIONS[node.fn].arity if node.fn in FUNCTIONS else _ON_TENSORS[node.fn]
        else:
            close = get_close_matches(node.fn, sorted(_FUNCTION_NAMES | self.functions.keys()), 3)
            self.error(
                f"unknown function '{node.fn}'",
                node.span,
                f"did you mean {' or '.join(close)}?" if close else "see spec/README.md",
            )
            return
        if not least <= len(node.args) <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            self.error(
                f"'{node.fn}' takes {count} argument{'s' if count != '1' else ''}, found {len(node.args)}", node.span
            )

    def subscript_count(self, name: str, items: tuple[s.Expression, ...], span: Span) -> None:
        """Compare the number of subscripts with the declared dims.

        Only where neither has a spread part.
        """
        tensor = self.tensors[name]
        if isinstance(tensor, s.TableItem) or (isinstance(tensor, s.Operand) and tensor.variadic):
            return
        if isinstance(tensor, (s.Result, s.Temporary)) and tensor.binder is not None:
            return
        if any(isinstance(n, (s.Spread, s.Slice)) for n in (*items, *tensor.dims)):
            return
        if len(items) != len(tensor.dims):
            self.error(f"tensor '{name}' has {len(tensor.dims)} dims, found {len(items)} subscripts", span)


def reads_itself(name: str, span: Span) -> SpecError:
    """Return the error of an assignment that reads its own target."""
    hint = "elements are written in no order: let an intermediate hold the result, and read that"
    return SpecError(f"'{name}' is read by the statement that writes it", span, hint)


def reads_unwritten(name: str, span: Span) -> SpecError:
    """Return the error of an assignment that reads an unwritten tensor.

    A later assignment writes it, or none.
    """
    return SpecError(
        f"'{name}' is read before a statement writes it", span, "statements are run in the order in which they stand"
    )


def names_read(node: s.Expression) -> Iterator[s.Name]:
    """Yield the names in an expression that stand for values.

    Arguments of functions about tensors, as in `rank(x)`, are left out.
    """
    if isinstance(node, s.Name):
        yield node
    if not (isinstance(node, s.Call) and node.fn in ABOUT_TENSORS):
        for child in children(node):
            yield from names_read(child)


def children(node: s.Expression) -> tuple[s.Expression, ...]:
    """Return the direct operands of an expression."""
    if isinstance(node, (s.Call, s.Listing, s.Subscript)):
        parts = node.args if isinstance(node, s.Call) else node.items
        return (node.base, *parts) if isinstance(node, s.Subscript) else parts
    if isinstance(node, s.Comprehension):
        return (node.source, node.body)
    if isinstance(node, s.Slice):
        return tuple(n for n in (node.low, node.high) if n is not None)
    if isinstance(node, s.Spread):
        return (node.value,)
    if isinstance(node, s.Outside):
        return (node.read, node.fill)
    if isinstance(node, s.Unary):
        return (node.arg,)
    if isinstance(node, s.Binary):
        return (node.left, node.right)
    if isinstance(node, s.Conditional):
        return (node.then, node.test, node.other)
    if isinstance(node, s.Reduction):
        return (*(b.bound for b in node.binders), node.body)
    return ()
