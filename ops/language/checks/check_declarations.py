"""Static checks of declarations: names, kinds, arities, assignments.

Every check adds to one list of errors, so that a file is corrected in one go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from ....ir import CutsError, ParseError, Span
from ..text import PLACEHOLDER, parse_expression
from ..text import syntax as s
from .binding import ATTRIBUTE_KINDS, CLASSES
from .check_expressions import RESERVED_NAMES, ExpressionChecker, names_read, reads_itself, reads_unwritten


def check_declaration(declaration: s.Declaration, families: Mapping[str, s.Declaration]) -> list[CutsError]:
    """Return every error of a declaration, in the order of the text."""
    checker = _Checker(declaration)
    inherited = [item for family in checker.chain(families) for item in family.items]
    checker.run(inherited)
    return sorted(checker.errors, key=lambda e: e.span.start if e.span else 0)


class _Checker(ExpressionChecker):
    def __init__(self, declaration: s.Declaration) -> None:
        super().__init__()
        self.declaration = declaration
        self.is_op = declaration.kind == "op"
        self.inherited_types: set[str] = set()
        self.defined: dict[str, Span] = {}
        self.assigned: set[str] = set()

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
        if self.is_op and not self.declaration.summary:
            self.error(
                f"op '{self.declaration.name}' has no summary",
                self.declaration.span,
                'expected a sentence in "..." after the name',
            )
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
                if isinstance(item, (s.Assignment, s.Repetition)):
                    self._assignment(item)
                elif isinstance(item, (s.Algorithm, s.Gradient)):
                    self._steps(item)
        self._check_whole()

    def _check_whole(self) -> None:
        if not self.is_op:
            return
        results = [t for t in self.tensors.values() if isinstance(t, s.Result)]
        if not results:
            self.error(
                f"op '{self.declaration.name}' has no result",
                self.declaration.span,
                "expected a line 'out name: T[dims]'",
            )
        for name, tensor in self.tensors.items():
            if isinstance(tensor, (s.Result, s.Temporary)) and name not in self.assigned:
                what = "result" if isinstance(tensor, s.Result) else "intermediate"
                self.error(
                    f"{what} '{name}' of op '{self.declaration.name}' is never assigned", self._home(tensor.span)
                )
        variadic = [t for t in self.tensors.values() if isinstance(t, s.Operand) and t.variadic]
        for tensor in variadic[1:]:
            self.error(
                f"operand '{tensor.name}' is a second variadic one",
                self._home(tensor.span),
                "only one can be recognised",
            )

    def _home(self, span: Span) -> Span:
        """Return the span, or that of the declaration when it lies in a family's text."""
        own = any(
            span.source is i.span.source and i.span.start <= span.start < i.span.end for i in self.declaration.items
        )
        return span if own else self.declaration.span

    # ---- definitions

    def _define(self, name: str, span: Span) -> None:
        if name in RESERVED_NAMES:
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
                    self.error(
                        f"operand '{operand.name}' has two spread dims", operand.span, "the rank determines only one"
                    )

    def _definition(self, item: s.Item) -> None:
        if isinstance(item, s.InItem):
            for operand in item.operands:
                self._element_type(operand.dtype, operand.span)
        elif isinstance(item, s.AttrItem):
            for attribute in item.attributes:
                self._attribute(attribute)
        elif isinstance(item, s.LetItem):
            for binding in item.bindings:
                with self.local(binding.parameters, binding.span):
                    self.expression(binding.value)
                self._define(binding.name, binding.span)
                if binding.parameters:
                    self.functions[binding.name] = len(binding.parameters)
                else:
                    self.scope.add(binding.name)
        elif isinstance(item, s.OutItem):
            for result in item.results:
                self._result(result)
        elif isinstance(item, s.TempItem):
            for temporary in item.temporaries:
                self._result(temporary)
        elif isinstance(item, s.TableItem):
            self.expression(item.value)
            self._element_type(item.dtype, item.span)
            self._define(item.name, item.span)
            self.tensors[item.name] = item
            self.scope.add(item.name)
        elif isinstance(item, s.Require):
            self._require(item)

    def _attribute(self, item: s.AttributeItem) -> None:
        if item.type.kind not in ATTRIBUTE_KINDS:
            self.error(
                f"unknown attribute type '{item.type.kind}'",
                item.type.span,
                f"expected {', '.join(sorted(ATTRIBUTE_KINDS - {'choice'}))}",
            )
        for part in (item.type.length, item.type.shape, item.default):
            if part is not None:
                self.expression(part)
        self._define(item.name, item.span)
        self.kinds[item.name] = item.type.kind
        self.scope.add(item.name)

    def _result(self, result: s.Result | s.Temporary) -> None:
        if result.binder is None:
            self._tensor(result)
            return
        self.expression(result.binder.bound)
        with self.local([result.binder.name], result.binder.span):
            self._tensor(result)

    def _tensor(self, tensor: s.Result | s.Temporary) -> None:
        for dim in tensor.dims:
            self.expression(dim.value if isinstance(dim, s.Spread) else dim)
        self._element_type(tensor.dtype, tensor.span)
        self._define(tensor.name, tensor.span)
        self.tensors[tensor.name] = tensor
        self.scope.add(tensor.name)

    def _element_type(self, name: str, span: Span) -> None:
        if name not in self.types and self.kinds.get(name) != "dtype":
            self.error(f"unknown element type '{name}'", span, f"types in scope: {', '.join(sorted(self.types))}")

    def _require(self, item: s.Require) -> None:
        self.expression(item.condition)
        for match in PLACEHOLDER.finditer(item.message):
            offset = item.span.source.text.find(match.group(), item.span.start) + 1
            try:
                self.expression(parse_expression(item.span.source, offset, match.group(1)))
            except ParseError as error:
                if not self.quiet:
                    self.errors.append(error)

    # ---- assignments and steps

    def _assignment(self, item: s.Assignment | s.Repetition) -> None:
        if isinstance(item, s.Repetition):
            self.expression(item.each.bound)
            with self.local([item.each.name], item.each.span):
                for inner in item.items:
                    self._assignment(inner)
            return
        for binder in filter(None, (item.each, *item.binders)):
            if binder is item.each:
                self.expression(binder.bound)
        with self.local([item.each.name] if item.each else [], item.span):
            for binder in item.binders:
                self.expression(binder.bound)
            with self.local([b.name for b in item.binders], item.span):
                self._check_target(item)

    def _check_target(self, item: s.Assignment) -> None:
        found = self.tensors.get(item.target.name)
        target = found if isinstance(found, (s.Result, s.Temporary)) else None
        if target is None:
            writable = [n for n, t in self.tensors.items() if isinstance(t, (s.Result, s.Temporary))]
            self.error(
                f"'{item.target.name}' is no result or intermediate",
                item.target.span,
                f"expected {' or '.join(writable) or 'a result'}",
            )
        self._order(item)
        self.assigned.add(item.target.name)
        brackets = list(item.target.brackets)
        if target is not None and target.binder is not None and brackets:
            for node in brackets.pop(0):
                self.expression(node)
        subscripts = brackets[0] if brackets else ()
        axes = [
            n.id for node in subscripts if isinstance(n := node.value if isinstance(node, s.Spread) else node, s.Name)
        ]
        with self.local(dict.fromkeys(a for a in axes if a not in self.scope or a in self.tensors), item.target.span):
            for node in subscripts:
                self.expression(node.value if isinstance(node, s.Spread) else node)
            if target is not None and brackets:
                self.subscript_count(item.target.name, subscripts, item.target.span)
            self.expression(item.value)

    def _order(self, item: s.Assignment) -> None:
        """Check that an assignment reads no tensor that it writes, and no result or intermediate without an earlier
        assignment.

        Only the shapes determine the order within a list of tensors.
        """
        for name in (
            name for node in (item.value, *(n for b in item.target.brackets for n in b)) for name in names_read(node)
        ):
            tensor = self.tensors.get(name.id)
            if not isinstance(tensor, (s.Result, s.Temporary)) or tensor.binder is not None:
                continue
            if name.id == item.target.name:
                self.report(reads_itself(name.id, name.span))
            elif name.id not in self.assigned:
                self.report(reads_unwritten(name.id, name.span))

    def _steps(self, item: s.Algorithm | s.Gradient) -> None:
        if isinstance(item, s.Algorithm) and item.guard is not None:
            self.expression(item.guard)
        results = (
            [n for n, t in self.tensors.items() if isinstance(t, s.Result)] if isinstance(item, s.Gradient) else []
        )
        names = {f"d{result}" for result in results}
        for step in item.steps:
            for argument in step.arguments:
                with self._temporary_names(names):
                    self.expression(argument.value)
            names.update(step.results)

    @contextmanager
    def _temporary_names(self, names: set[str]) -> Iterator[None]:
        added = names - self.scope
        self.scope |= added
        yield
        self.scope -= added
