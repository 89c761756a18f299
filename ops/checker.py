"""What must hold in a declaration before any shape is known: names, kinds, arities, assignments.

Every check adds to one list of errors, so that a file is corrected in one go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from ..ir.errors import CutsError, ParseError, SpecError
from ..ir.functions import FUNCTIONS
from ..ir.source import Span
from ..ir.types import DType
from . import syntax as s
from .binding import ATTRIBUTE_KINDS, CLASSES
from .builtins import BUILTINS, CONSTANTS
from .parser import parse_expression

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_DTYPES = frozenset(d.value for d in DType)
_RESERVED = frozenset(CONSTANTS) | _DTYPES
_FUNCTION_NAMES = frozenset(FUNCTIONS) | frozenset(BUILTINS) | {"value"}


def check_declaration(declaration: s.Declaration, families: Mapping[str, s.Declaration]) -> list[CutsError]:
    """Return every error of a declaration, in the order of the text."""
    checker = _Checker(declaration)
    inherited = [item for family in checker.chain(families) for item in family.items]
    checker.run(inherited)
    return sorted(checker.errors, key=lambda e: e.span.start if e.span else 0)


class _Checker:
    def __init__(self, declaration: s.Declaration) -> None:
        self.declaration = declaration
        self.errors: list[CutsError] = []
        self.quiet = False  # the family's own check reports what is wrong in its lines
        self.scope: set[str] = set(_RESERVED)
        self.tensors: dict[str, s.Operand | s.Result | s.Temporary | s.TableItem] = {}
        self.types: set[str] = set(_DTYPES)
        self.inherited_types: set[str] = set()
        self.kinds: dict[str, str] = {}
        self.defined: dict[str, Span] = {}
        self.assigned: set[str] = set()

    def error(self, message: str, span: Span, hint: str = "") -> None:
        """Note an error, unless it belongs to a family and is reported there."""
        if not self.quiet:
            self.errors.append(SpecError(message, span, hint))

    # ---- the declaration as a whole

    def chain(self, families: Mapping[str, s.Declaration]) -> list[s.Declaration]:
        """Return the families, outermost first."""
        found: list[s.Declaration] = []
        name = self.declaration.family
        while name is not None:
            if name not in families:
                close = get_close_matches(name, families, 3) or sorted(families)
                self.error(f"unknown family '{name}'", self.declaration.span, f"families are {', '.join(close)}")
                break
            family = families[name]
            if family in found or (self.declaration.kind == "family" and name == self.declaration.name):
                self.error(f"family '{name}' inherits from itself", self.declaration.span)
                break
            found.insert(0, family)
            name = family.family
        return found

    def run(self, inherited: list[s.Item]) -> None:
        """Check all lines; the inherited ones only bring names into scope."""
        own = list(self.declaration.items)
        self.is_op = self.declaration.kind == "op"
        if self.is_op and not self.declaration.summary:
            self.error(f"op '{self.declaration.name}' has no summary", self.declaration.span, 'expected a sentence in "..." after the name')
        for items, quiet in ((inherited, True), (own, False)):
            self.quiet = quiet
            for item in items:
                self._bind_operands(item)
        for items, quiet in ((inherited, True), (own, False)):
            self.quiet = quiet
            for item in items:
                self._definition(item)
        for items, quiet in ((inherited, True), (own, False)):
            self.quiet = quiet
            for item in items:
                if isinstance(item, s.Assignment):
                    self._assignment(item)
                elif isinstance(item, (s.Algorithm, s.Gradient)):
                    self._steps(item)
        self._whole()

    def _whole(self) -> None:
        if not self.is_op:
            return
        results = [t for t in self.tensors.values() if isinstance(t, s.Result)]
        if not results:
            self.error(f"op '{self.declaration.name}' has no result", self.declaration.span, "expected a line 'out name: T[dims]'")
        for name, tensor in self.tensors.items():
            if isinstance(tensor, (s.Result, s.Temporary)) and name not in self.assigned:
                what = "result" if isinstance(tensor, s.Result) else "intermediate"
                self.error(f"{what} '{name}' of op '{self.declaration.name}' is never assigned", self._home(tensor.span))
        variadic = [t for t in self.tensors.values() if isinstance(t, s.Operand) and t.variadic]
        for tensor in variadic[1:]:
            self.error(f"operand '{tensor.name}' is a second variadic one", self._home(tensor.span), "one can be told apart")

    def _home(self, span: Span) -> Span:
        """Return the span, or that of the declaration when it lies in a family's text."""
        own = any(span.source is i.span.source and i.span.start <= span.start < i.span.end for i in self.declaration.items)
        return span if own else self.declaration.span

    # ---- definitions

    def _define(self, name: str, span: Span) -> None:
        if name in _RESERVED:
            self.error(f"'{name}' is a reserved name", span)
        elif name in self.defined:
            self.error(f"'{name}' is defined twice", span, f"the first is at {self.defined[name].position}")
        self.defined.setdefault(name, span)

    def _bind_operands(self, item: s.Item) -> None:
        """Bring types, operands and the dims that operands name into scope; these hold everywhere."""
        if isinstance(item, s.TypeItem):
            if item.name not in self.inherited_types:
                self._define(item.name, item.span)
            if self.quiet:
                self.inherited_types.add(item.name)  # an op may narrow the classes of its family
            self.types.add(item.name)
            self.scope.add(item.name)
            for name in item.classes:
                if name not in CLASSES:
                    self.error(f"unknown element type class '{name}'", item.span, f"expected {', '.join(CLASSES)}")
        elif isinstance(item, s.InItem):
            for operand in item.operands:
                self._define(operand.name, operand.span)
                self.tensors[operand.name] = operand
                self.scope.add(operand.name)
                for dim in operand.dims:
                    node = dim.value if isinstance(dim, s.Spread) else dim
                    if isinstance(node, s.Name):
                        self.scope.add(node.id)
                if sum(isinstance(d, s.Spread) for d in operand.dims) > 1:
                    self.error(f"operand '{operand.name}' has two spread dims", operand.span, "one can be told from the rank")

    def _definition(self, item: s.Item) -> None:
        if isinstance(item, s.InItem):
            for operand in item.operands:
                self._element_type(operand.dtype, operand.span)
        elif isinstance(item, s.AttrItem):
            for attribute in item.attributes:
                self._attribute(attribute)
        elif isinstance(item, s.LetItem):
            for binding in item.bindings:
                self._expression(binding.value)
                self._define(binding.name, binding.span)
                self.scope.add(binding.name)
        elif isinstance(item, s.OutItem):
            for result in item.results:
                self._result(result)
        elif isinstance(item, s.TempItem):
            for temporary in item.temporaries:
                self._tensor(temporary)
        elif isinstance(item, s.TableItem):
            self._expression(item.value)
            self._element_type(item.dtype, item.span)
            self._define(item.name, item.span)
            self.tensors[item.name] = item
            self.scope.add(item.name)
        elif isinstance(item, s.Require):
            self._require(item)

    def _attribute(self, item: s.AttributeItem) -> None:
        if item.type.kind not in ATTRIBUTE_KINDS:
            self.error(
                f"unknown attribute type '{item.type.kind}'", item.type.span, f"expected {', '.join(sorted(ATTRIBUTE_KINDS - {'choice'}))}"
            )
        for part in (item.type.length, item.type.shape, item.default):
            if part is not None:
                self._expression(part)
        self._define(item.name, item.span)
        self.kinds[item.name] = item.type.kind
        self.scope.add(item.name)

    def _result(self, result: s.Result) -> None:
        if result.binder is None:
            self._tensor(result)
            return
        self._expression(result.binder.bound)
        with self._local([result.binder.name], result.binder.span):
            self._tensor(result)

    def _tensor(self, tensor: s.Result | s.Temporary) -> None:
        for dim in tensor.dims:
            self._expression(dim.value if isinstance(dim, s.Spread) else dim)
        self._element_type(tensor.dtype, tensor.span)
        self._define(tensor.name, tensor.span)
        self.tensors[tensor.name] = tensor
        self.scope.add(tensor.name)

    def _element_type(self, name: str, span: Span) -> None:
        if name not in self.types and self.kinds.get(name) != "dtype":
            self.error(f"unknown element type '{name}'", span, f"types in scope: {', '.join(sorted(self.types))}")

    def _require(self, item: s.Require) -> None:
        self._expression(item.condition)
        for match in PLACEHOLDER.finditer(item.message):
            offset = item.span.source.text.find(match.group(), item.span.start) + 1
            try:
                self._expression(parse_expression(item.span.source, offset, match.group(1)))
            except ParseError as error:
                if not self.quiet:
                    self.errors.append(error)

    # ---- assignments and steps

    @contextmanager
    def _local(self, names: Iterable[str], span: Span) -> Iterator[None]:
        names = list(names)
        for name in names:
            if name in self.scope:
                self.error(f"'{name}' already has a meaning here", span, "choose another name for the index")
        added = set(names) - self.scope
        self.scope |= added
        yield
        self.scope -= added

    def _assignment(self, item: s.Assignment) -> None:
        for binder in filter(None, (item.each, *item.binders)):
            if binder is item.each:
                self._expression(binder.bound)
        with self._local([item.each.name] if item.each else [], item.span):
            for binder in item.binders:
                self._expression(binder.bound)
            with self._local([b.name for b in item.binders], item.span):
                self._written(item)

    def _written(self, item: s.Assignment) -> None:
        target = self.tensors.get(item.target.name)
        if not isinstance(target, (s.Result, s.Temporary)):
            writable = [n for n, t in self.tensors.items() if isinstance(t, (s.Result, s.Temporary))]
            self.error(
                f"'{item.target.name}' is no result or intermediate", item.target.span, f"expected {' or '.join(writable) or 'a result'}"
            )
        self.assigned.add(item.target.name)
        brackets = list(item.target.brackets)
        if isinstance(target, s.Result) and target.binder is not None and brackets:
            for node in brackets.pop(0):
                self._expression(node)
        subscripts = brackets[0] if brackets else ()
        axes = [n.id for node in subscripts if isinstance(n := node.value if isinstance(node, s.Spread) else node, s.Name)]
        with self._local(dict.fromkeys(a for a in axes if a not in self.scope or a in self.tensors), item.target.span):
            for node in subscripts:
                self._expression(node.value if isinstance(node, s.Spread) else node)
            if target is not None and brackets:
                self._subscript_count(item.target.name, subscripts, item.target.span)
            self._expression(item.value)

    def _steps(self, item: s.Algorithm | s.Gradient) -> None:
        if isinstance(item, s.Algorithm) and item.guard is not None:
            self._expression(item.guard)
        names: set[str] = set()
        for step in item.steps:
            for argument in step.arguments:
                with self._extended(names):
                    self._expression(argument.value)
            names.update(step.results)

    @contextmanager
    def _extended(self, names: set[str]) -> Iterator[None]:
        added = names - self.scope
        self.scope |= added
        yield
        self.scope -= added

    # ---- expressions

    def _expression(self, node: s.Expression) -> None:
        if isinstance(node, s.Name):
            self._name(node)
        elif isinstance(node, s.Call):
            self._call(node)
        elif isinstance(node, s.Subscript):
            if isinstance(node.base, s.Name) and node.base.id in self.tensors:
                self._subscript_count(node.base.id, node.items, node.span)
            self._children(node)
        elif isinstance(node, s.Comprehension):
            self._expression(node.source)
            with self._local([node.var], node.span):
                self._expression(node.body)
        elif isinstance(node, s.Reduction):
            for binder in node.binders:
                self._expression(binder.bound)
            with self._local([b.name for b in node.binders], node.span):
                self._expression(node.body)
        elif isinstance(node, s.Outside) and not isinstance(node.read, s.Subscript):
            self.error("'outside' follows the subscripts of a tensor", node.span)
        else:
            self._children(node)

    def _children(self, node: s.Expression) -> None:
        for child in children(node):
            self._expression(child)

    def _name(self, node: s.Name) -> None:
        if node.id in self.scope:
            return
        known = sorted(self.scope - _RESERVED)
        close = get_close_matches(node.id, known, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"names in scope: {', '.join(known) or 'none'}"
        self.error(f"unknown name '{node.id}'", node.span, hint)

    def _call(self, node: s.Call) -> None:
        self._children(node)
        if node.fn in self.types or self.kinds.get(node.fn) == "dtype":
            least = most = 1
        elif node.fn in BUILTINS:
            least, most = BUILTINS[node.fn].arity
        elif node.fn in FUNCTIONS or node.fn == "value":
            least = most = FUNCTIONS[node.fn].arity if node.fn in FUNCTIONS else 1
        else:
            close = get_close_matches(node.fn, sorted(_FUNCTION_NAMES), 3)
            self.error(f"unknown function '{node.fn}'", node.span, f"did you mean {' or '.join(close)}?" if close else "see spec/README.md")
            return
        if not least <= len(node.args) <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            self.error(f"'{node.fn}' takes {count} argument{'s' if count != '1' else ''}, found {len(node.args)}", node.span)

    def _subscript_count(self, name: str, items: tuple[s.Expression, ...], span: Span) -> None:
        """Compare the number of subscripts with the declared dims where neither has a spread part."""
        tensor = self.tensors[name]
        if isinstance(tensor, s.TableItem) or (isinstance(tensor, s.Operand) and tensor.variadic):
            return
        if isinstance(tensor, s.Result) and tensor.binder is not None:
            return
        if any(isinstance(n, (s.Spread, s.Slice)) for n in (*items, *tensor.dims)):
            return
        if len(items) != len(tensor.dims):
            self.error(f"tensor '{name}' has {len(tensor.dims)} dims, found {len(items)} subscripts", span)


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
