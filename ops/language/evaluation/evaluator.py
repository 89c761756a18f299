"""Evaluation of a declaration's expressions once the shapes are known.

One method per class of `syntax`. A value is static, an index or an expression per element (`values`): the first that
its parts allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce as fold

from attrs import frozen

from ....ir import (
    COMBINERS,
    FUNCTIONS,
    Const,
    DType,
    Indirect,
    Read,
    Span,
    SpecError,
    Var,
    as_index,
    call,
    primary_index,
)
from ..text import syntax as s
from .builtins import ABOUT_TENSORS, BUILTINS, CONSTANTS, ON_ELEMENTS, apply_builtin, takes_elements
from .values import Absent, TensorList, TensorRef, Trouble, Value, describe, elementwise, is_expr, to_expr
from .workspace import Workspace

#: Limits against runaway declarations: of a dim, of a list and of the iterations of repetitions, and of all lists
#: together.
_MAX_DIM, _MAX_ITEMS, _MAX_TOTAL_ITEMS = 1 << 40, 1 << 16, 1 << 22
_FOLDS = {"sum": "add", "prod": "mul", "min": "min", "max": "max"}


@frozen
class Located:
    """Context manager that locates errors in a declaration.

    A `Trouble` within becomes a `SpecError` at the span. A class, as one is entered for each expression of a
    declaration, and a generator takes longer than most evaluations.
    """

    span: Span

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Trouble):
            raise SpecError(str(error), self.span) from error


class ExpressionEvaluator(Workspace):
    """Names in scope, and evaluation of expressions."""

    def __init__(self) -> None:
        super().__init__()
        self.scope: dict[str, Value] = dict(CONSTANTS)
        self.fetch_constant: Callable[[str], Value] | None = None
        self.turned = self.listed = 0
        self.looping = False  # whether repetitions may be loops
        self.no_loop = ""  # why they are none

    def evaluate(self, node: s.Expression) -> Value:
        """Return the value of an expression.

        A tensor without subscripts stays a tensor.
        """
        with Located(node.span):
            return getattr(self, "_" + type(node).__name__.lower())(node)

    def element(self, node: s.Expression) -> Value:
        """Return the value of an expression, tensors as their elements."""
        with Located(node.span):
            return self.as_element(self.evaluate(node))

    def items(self, nodes: tuple[s.Expression, ...]) -> tuple[Value, ...]:
        """Evaluate a list of entries, with spread ones expanded.

        Raises `SpecError` where a spread entry is no list.
        """
        result: list[Value] = []
        for node in nodes:
            if isinstance(node, s.Spread):
                value = self.evaluate(node.value)
                if not isinstance(value, tuple):
                    raise SpecError(f"'...' needs a list, found {describe(value)}", node.span)
                result.extend(value)
            else:
                result.append(self.evaluate(node))
        return tuple(result)

    def _number(self, node: s.Number) -> Value:
        return node.value

    def _text(self, node: s.Text) -> Value:
        return node.value

    def _name(self, node: s.Name) -> Value:
        if node.id not in self.scope:
            raise SpecError(f"'{node.id}' has no value here", node.span, "it may belong to an operand that is absent")
        value = self.scope[node.id]
        return self._list_items(value) if isinstance(value, TensorList) else value

    def _list_items(self, value: TensorList) -> Value:
        if value.count > _MAX_ITEMS:
            raise Trouble(f"expected a list of at most {_MAX_ITEMS} items, found {value.count} tensors '{value.name}'")
        return tuple(self.list_item(value, number) for number in range(value.count))

    def _listing(self, node: s.Listing) -> Value:
        return self.items(node.items)

    def _comprehension(self, node: s.Comprehension) -> Value:
        source = self.evaluate(node.source)
        if node.counted:
            source = range(min(self._size(source, node.source.span), _MAX_ITEMS + 1))
        if not isinstance(source, (tuple, range)) or len(source) > _MAX_ITEMS:
            raise Trouble(f"expected a list of at most {_MAX_ITEMS} items, found {describe(source)}")
        self.listed += len(source)
        if self.listed > _MAX_TOTAL_ITEMS:
            raise Trouble(f"lists have at most {_MAX_TOTAL_ITEMS} items in all")
        outer, result = self.scope.get(node.var), []
        for item in source:
            self.scope[node.var] = item
            result.append(self.evaluate(node.body))
        self._restore(node.var, outer)
        return tuple(result)

    def _restore(self, name: str, value: Value) -> None:
        if value is None:
            self.scope.pop(name, None)
        else:
            self.scope[name] = value

    def turns(self, bound: s.Expression) -> range:
        """Return the iteration values of a repetition.

        Raises `SpecError` for more than the language allows of repetitions that are no loops.
        """
        count, why = self.size(bound), f"it is no loop: {self.no_loop}" if self.no_loop else ""
        if count > _MAX_ITEMS:
            raise SpecError(f"a repetition has at most {_MAX_ITEMS} turns, found {count}", bound.span, why)
        self.turned += count
        if self.turned > _MAX_ITEMS:
            raise SpecError(f"repetitions have at most {_MAX_ITEMS} turns in all", bound.span, why)
        return range(count)

    def is_too_long(self, count: int) -> bool:
        """Return whether a repetition of `count` iterations must be a loop."""
        return count > _MAX_ITEMS

    def size(self, node: s.Expression) -> int:
        """Return the value of an expression that must be a size."""
        return self._size(self.evaluate(node), node.span)

    @staticmethod
    def _size(value: Value, span: Span) -> int:
        if not isinstance(value, int) or not 0 <= value <= _MAX_DIM:
            raise SpecError(f"expected a size, found {describe(value)}", span)
        return value

    def _spread(self, node: s.Spread) -> Value:
        raise SpecError("'...' stands only in subscripts and shapes", node.span)

    _slice = _spread

    # ---- operators

    def _unary(self, node: s.Unary) -> Value:
        value = self.element(node.arg)
        if node.op == "not":
            return (not value) if isinstance(value, bool) else call("not", self.arithmetic.condition(value))
        if is_expr(value):
            return call("neg", value)
        if value is None or isinstance(value, (DType, str)):
            raise Trouble(f"cannot negate {describe(value)}")
        return elementwise(lambda v: call("neg", v) if is_expr(v) else -v, value)

    def _binary(self, node: s.Binary) -> Value:
        left = self.element(node.left)
        if node.op in ("and", "or"):
            return self._logical(node.op, left, node.right)
        return self.arithmetic.infix(node.op, left, self.element(node.right))

    def _logical(self, op: str, left: Value, right: s.Expression) -> Value:
        if isinstance(left, bool):
            return left if left == (op == "or") else self.element(right)
        other = self.element(right)
        if isinstance(other, bool):
            return other if other == (op == "or") else left
        return call(op, self.arithmetic.condition(left), self.arithmetic.condition(other))

    def _conjunction(self, left: Value, right: Value) -> Value:
        if isinstance(left, bool):
            return right if left else False
        if isinstance(right, bool):
            return left if right else False
        return call("and", self.arithmetic.condition(left), self.arithmetic.condition(right))

    def _conditional(self, node: s.Conditional) -> Value:
        test = self.element(node.test)
        if isinstance(test, (bool, int)):
            return self.evaluate(node.then if test else node.other)
        if not is_expr(test):
            raise Trouble(f"expected a condition, found {describe(test)}")
        return self.arithmetic.select(test, self.element(node.then), self.element(node.other), self.written.type.dtype)

    def _call(self, node: s.Call) -> Value:
        known = self.scope.get(node.fn)
        if isinstance(known, DType):
            return self.arithmetic.convert(known, self.element(node.args[0]))
        if isinstance(known, s.Binding):
            return self._own_function(known, node)
        if node.fn == "value":
            return self._constant_operand(node)
        if node.fn == "index":
            return self._data_index(node)
        if node.fn == "wide":
            return elementwise(self.arithmetic.widen, self.element(node.args[0]))
        if node.fn in ABOUT_TENSORS:
            return apply_builtin(node.fn, tuple(self.evaluate(a) for a in node.args))
        args = tuple(self.element(a) for a in node.args)
        if node.fn not in BUILTINS or (node.fn in ON_ELEMENTS and takes_elements(args)):
            return self._scalar_call(node.fn, args)
        return apply_builtin(node.fn, args)

    def _own_function(self, function: s.Binding, node: s.Call) -> Value:
        """Return the value of a function that the declaration defines: each argument is evaluated once, by its name in
        the function.
        """
        arguments = [self.element(a) for a in node.args]
        outer = [self.scope.get(name) for name in function.parameters]
        self.scope.update(zip(function.parameters, arguments, strict=True))
        value = self.element(function.value)
        for name, held in zip(function.parameters, outer, strict=True):
            self._restore(name, held)
        return value

    def _constant_operand(self, node: s.Call) -> Value:
        value = self.evaluate(node.args[0])
        if not isinstance(value, TensorRef) or self.fetch_constant is None:
            raise Trouble(f"value() needs an operand, found {describe(value)}")
        return self.fetch_constant(value.name)

    def _data_index(self, node: s.Call) -> Value:
        """Return an element of an integer tensor as an index of an axis."""
        element, extent = self.element(node.args[0]), self.size(node.args[1])
        if not isinstance(element, Read) or element.guards or not self.arithmetic.dtype(element).is_int:
            raise Trouble(f"index() needs an element of an integer tensor, found {describe(element)}")
        return primary_index(Indirect(element.tensor, element.indices, extent))

    def _scalar_call(self, fn: str, args: tuple[Value, ...]) -> Value:
        if fn in _FOLDS:
            items = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
            return fold(lambda a, b: self._fold(fn, a, b), items)
        if fn == "clamp":
            return self._fold("min", self._fold("max", args[0], args[1]), args[2])
        if fn == "all":
            return fold(self._conjunction, args[0], True)
        if fn not in FUNCTIONS:
            raise Trouble(f"'{fn}' is no function of elements")
        if fn == "select":
            test, then, other = args
            return self.arithmetic.select(test, then, other, self.written.type.dtype)
        if not any(is_expr(a) for a in args):
            args = tuple(to_expr(a, self.written.type.dtype) for a in args)
        operands = self.arithmetic.unify(*args)
        if not FUNCTIONS[fn].takes(dtype := self.arithmetic.dtype(operands[0])):
            raise Trouble(f"'{fn}' is a function of {FUNCTIONS[fn].domain}, found {dtype}")
        return call(fn, *operands)

    def _fold(self, fn: str, left: Value, right: Value) -> Value:
        if fn in ("sum", "prod"):
            return self.arithmetic.infix("+" if fn == "sum" else "*", left, right)
        neutral = -math.inf if fn == "max" else math.inf
        if isinstance(right, float) and right == neutral:
            return left
        if not is_expr(left) and not is_expr(right):
            return apply_builtin(fn, (left, right))
        return call(fn, *self.arithmetic.unify(left, right))

    # ---- reads

    def _subscript(self, node: s.Subscript, fill: Value | None = None) -> Value:
        known = self.scope.get(node.base.id) if isinstance(node.base, s.Name) else None
        if isinstance(known, TensorList) and len(node.items) == 1 and not isinstance(node.items[0], s.Slice):
            return self.list_item(known, self.evaluate(node.items[0]))
        base = self.evaluate(node.base) if fill is None else self._base_outside(node.base, fill)
        if is_expr(base):
            return base
        if isinstance(base, tuple):
            return self._list_item(base, node)
        if isinstance(base, Absent):
            raise Trouble(f"operand '{base.name}' is absent here; test it with present({base.name})")
        if not isinstance(base, TensorRef):
            raise Trouble(f"only tensors and lists have subscripts, found {describe(base)}")
        indices = tuple(self.as_index(v, n, base.type) for n, v in enumerate(self.items(node.items)))
        if len(indices) != len(base.type.shape):
            raise Trouble(
                f"{base.type} tensor '{base.name}' needs {len(base.type.shape)} subscripts, found {len(indices)}"
            )
        return self.read(base, indices, fill)

    def _base_outside(self, node: s.Expression, fill: Value) -> Value:
        """Return the base of a read with an outside value: of a list of tensors one that may be absent."""
        known = (
            self.scope.get(node.base.id) if isinstance(node, s.Subscript) and isinstance(node.base, s.Name) else None
        )
        if not isinstance(known, TensorList) or not isinstance(node, s.Subscript) or len(node.items) != 1:
            return self.evaluate(node)
        position = self.evaluate(node.items[0])
        if isinstance(position, int) and not 0 <= position < known.count:
            return to_expr(fill, known.type.dtype)
        return self.list_item(known, position, outside=True)

    def _list_item(self, base: tuple[Value, ...], node: s.Subscript) -> Value:
        if len(node.items) != 1:
            raise Trouble(f"a list takes one subscript, found {len(node.items)}")
        (item,) = node.items
        if isinstance(item, s.Slice):
            low = None if item.low is None else self.evaluate(item.low)
            high = None if item.high is None else self.evaluate(item.high)
            return base[low:high]
        position = self.evaluate(item)
        if not isinstance(position, int) or not -len(base) <= position < len(base):
            raise Trouble(f"a list of {len(base)} items has no item {describe(position)}")
        return base[position]

    def _outside(self, node: s.Outside) -> Value:
        fill = self.evaluate(node.fill)
        if not isinstance(fill, (int, float)):
            raise Trouble(f"'outside' needs a number, found {describe(fill)}")
        if not isinstance(node.read, s.Subscript):
            raise Trouble("'outside' follows the subscripts of a tensor")
        return self._subscript(node.read, fill)

    def bind(self, binder: s.Binder) -> list[Var]:
        """Bring a binder's variables into scope; return them.

        Raises `SpecError` where several variables have a bound that is no list.
        """
        bound = self.evaluate(binder.bound)
        if not binder.spread:
            var = self.new_variable(binder.name, self._size(bound, binder.bound.span))
            self.scope[binder.name] = as_index(var)
            return [var]
        if not isinstance(bound, tuple):
            raise SpecError(f"'...{binder.name}' needs a list of sizes, found {describe(bound)}", binder.bound.span)
        found = [
            self.new_variable(f"{binder.name}{n}", self._size(size, binder.bound.span)) for n, size in enumerate(bound)
        ]
        self.scope[binder.name] = tuple(as_index(v) for v in found)
        return found

    def _reduction(self, node: s.Reduction) -> Value:
        found = [var for binder in node.binders for var in self.bind(binder)]
        body = to_expr(self.element(node.body), self.written.type.dtype)
        for binder in node.binders:
            del self.scope[binder.name]
        for var in found:
            self.variables.remove(var)
            self.taken.discard(var.name)
        reduce = tuple(v for v in found if v.extent != 1)
        if not reduce:
            return Const(0, DType.I64) if COMBINERS[node.kind].position else body
        return self.temporary(node.kind, body, reduce, node.span)
