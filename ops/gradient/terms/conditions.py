"""Conditions of a gradient's terms: split off, and reattached at least cost.

A term is zero wherever a condition fails. A guard of a read that is 0 outside implies the same for a product, so it
needs no test of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import evolve

from ....ir import Call, Cast, Const, DType, Expr, Guard, InRange, Read, TensorType, Var, expr_variables, rebuild
from ..derivatives import multiply, negate, preserves_finiteness


def split(expr: Expr) -> tuple[list[Expr], Expr]:
    """Return an expression's necessary conditions and its value under them.

    The expression is zero where a condition fails.
    """
    if isinstance(expr, Call) and expr.fn == "select" and _is_zero(expr.args[2]):
        inner, core = split(expr.args[1])
        return [*_conjuncts(expr.args[0]), *inner], core
    if isinstance(expr, Call) and expr.fn == "mul":
        (left, a), (right, b) = map(split, expr.args)
        return [*left, *right], Call("mul", (a, b)) if left or right else expr
    if isinstance(expr, Call) and expr.fn == "div":
        found, a = split(expr.args[0])
        return found, Call("div", (a, expr.args[1])) if found else expr
    if isinstance(expr, Call) and expr.fn == "neg":
        found, a = split(expr.args[0])
        return found, Call("neg", (a,)) if found else expr
    return [], expr


def _conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, Call) and condition.fn == "and":
        return [part for arg in condition.args for part in _conjuncts(arg)]
    return [condition]


def attach(conditions: Sequence[Expr], guards: Sequence[Guard], core: Expr, dtype: DType) -> Expr:
    """Return the expression where all conditions hold, zero elsewhere."""
    left = tuple(g for g in dict.fromkeys(guards) if not vanishes(core, g))
    tests: list[Expr] = ([InRange(left)] if left else []) + list(dict.fromkeys(conditions))
    if not tests:
        return core
    test = tests[0]
    for other in tests[1:]:
        test = Call("and", (test, other))
    return Call("select", (test, core, Const(0.0 if dtype.is_float else 0, dtype)))


def hoist(expr: Expr, summed: frozenset[Var]) -> tuple[Expr, Callable[[Expr], Expr] | None]:
    """Split a product at the summed variables.

    Returns the factors that depend on them, and a function that applies the other factors to the sum.
    """
    if not isinstance(expr, Call) or expr.fn not in ("mul", "div", "neg", "select"):
        return expr, None
    first = expr.args[0]
    if expr.fn == "select":
        _, value, zero = expr.args
        if not _asks_an_element(first) or expr_variables(first) & summed or not _is_zero(zero):
            return expr, None
        inner, outer = hoist(value, summed)
        return inner, lambda total: Call("select", (first, total if outer is None else outer(total), zero))
    if expr.fn == "neg":
        inner, outer = hoist(first, summed)
        return inner, lambda total: negate(total if outer is None else outer(total))
    last = expr.args[1]
    if expr.fn == "mul" and not expr_variables(first) & summed:
        inner, outer = hoist(last, summed)
        return inner, lambda total: multiply(first, total if outer is None else outer(total))
    inner, outer = hoist(first, summed)
    if not expr_variables(last) & summed:
        return inner, lambda total: Call(expr.fn, (total if outer is None else outer(total), last))
    other, outside = hoist(last, summed) if expr.fn == "mul" else (last, None)
    if outer is None and outside is None:
        return expr, None
    rest = Call(expr.fn, (inner, other))
    return rest, lambda total: _compose(outer, outside, total)


def _asks_an_element(condition: Expr) -> bool:
    """Return whether a condition is that one element is not some constant."""
    read, *others = condition.children or (condition,)
    asks = isinstance(condition, Call) and condition.fn == "ne"
    return asks and isinstance(read, Read) and all(isinstance(other, Const) for other in others)


def _compose(first: Callable[[Expr], Expr] | None, second: Callable[[Expr], Expr] | None, total: Expr) -> Expr:
    total = total if first is None else first(total)
    return total if second is None else second(total)


def vanishes(expr: Expr, guard: Guard) -> bool:
    """Return whether an expression is zero wherever a guard fails.

    It is where an element that it reads is zero there.
    """
    if isinstance(expr, Read):
        return expr.fill == 0 and guard in expr.guards
    if isinstance(expr, Cast):
        return vanishes(expr.arg, guard)
    if not isinstance(expr, Call):
        return False
    if expr.fn == "neg":
        return vanishes(expr.args[0], guard)
    if expr.fn in ("add", "sub"):
        return all(vanishes(a, guard) for a in expr.args)
    if expr.fn == "mul":
        return any(vanishes(a, guard) and preserves_finiteness(b) for a, b in (expr.args, expr.args[::-1]))
    return False


def add_bounds_guards(expr: Expr, tensors: Mapping[str, TensorType]) -> Expr:
    """Give every read the guards that keep its indices in bounds."""

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read):
            return node
        needed = (Guard(i, 0, n) for i, n in zip(node.indices, tensors[node.tensor].shape, strict=True))
        guards = tuple(dict.fromkeys([*node.guards, *(g for g in needed if not g.always)]))
        return node if guards == node.guards else evolve(node, guards=guards, fill=node.fill if node.guards else 0.0)

    return rebuild(expr, leaf)


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value == 0
