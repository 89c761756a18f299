"""Windows of packed words, each loaded once for several neighbours.

Numbers of fewer bits than a byte lie several in a word, so that a thread reads the word at a quotient of the variable
that enumerates its neighbours. The words of all of them are a window:

    acc += x[8*t + u] * f(w[4*t + u // 2], u % 2)  over u < 8
      ->   W[q] = w[4*t + q] over q < 4;   acc += x[8*t + u] * f(W[u // 2], u % 2)

The window's elements are neighbours in memory, and move as vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ....ir import (
    FloorDiv,
    Index,
    Item,
    Kernel,
    Load,
    Loop,
    Phase,
    Value,
    Var,
    Window,
    as_index,
    own_indices,
    own_variables,
    post_order,
    primaries,
    substitute,
    substitute_guards,
    with_operands,
)


def merge_quotients(kernel: Kernel) -> Kernel:
    """Return an extracted kernel that loads each word of several neighbours once."""
    return evolve(kernel, items=tuple(map(_item, kernel.items)))


def _item(item: Item) -> Item:
    if isinstance(item, Loop):
        return evolve(item, body=tuple(map(_item, item.body)))
    return _phase(item) if isinstance(item, Phase) and not item.asynchronous else item


def _phase(phase: Phase) -> Phase:
    every = post_order(phase.roots)
    shared = {node.load for node in every if isinstance(node, Window)}
    loads = (node for node in every if isinstance(node, Load) and node not in shared)
    found: dict[Value, Window] = {
        load: window for load in loads if (window := _window(load, phase.unrolled)) is not None
    }
    if not found:
        return phase
    done: dict[Value, Value] = dict(found)
    roots = tuple(with_operands(root, lambda operand: _replace(operand, done)) for root in phase.roots)
    added = dict.fromkeys(axis for window in found.values() for axis in window.axes)
    return evolve(phase, roots=roots, unrolled=(*phase.unrolled, *added))


def _window(load: Load, unrolled: Sequence[Var]) -> Window | None:
    """Return a load of integers as a window over the quotients of unrolled variables, None where it reads at none."""
    found: dict[Var, int] = {}
    moved = load
    for variable in unrolled if load.dtype.is_int else ():
        if variable in own_variables(moved) and (divisor := _divisor(moved, variable)):
            found[variable] = divisor
            moved = _substitute(moved, variable, as_index(_quotient(variable, divisor)) * divisor)
    axes = {_quotient(v, d): as_index(v) // d for v, d in found.items() if v.extent > d}
    return Window(moved, tuple(axes), tuple(axes.values())) if found else None


def _divisor(load: Load, variable: Var) -> int:
    """Return d > 1 where a load depends on a variable only by its quotient by d, else 0."""
    every = [p for index in own_indices(load) for p in primaries(index)]
    for divisor in sorted({p.den for p in every if isinstance(p, FloorDiv)}, reverse=True):
        if divisor > 1 and variable.extent % divisor == 0:
            rest = Var("rest", divisor)
            place = as_index(_quotient(variable, divisor)) * divisor + rest
            if rest not in own_variables(_substitute(load, variable, place)):
                return divisor
    return 0


def _quotient(variable: Var, divisor: int) -> Var:
    return Var(f"{variable.name}q{divisor}", variable.extent // divisor)


def _substitute(load: Load, variable: Var, place: Index) -> Load:
    at = {variable: place}
    return evolve(load, address=substitute(load.address, at), guards=substitute_guards(load.guards, at))


def _replace(node: Value, done: dict[Value, Value]) -> Value:
    if node not in done:
        done[node] = with_operands(node, lambda operand: _replace(operand, done))
    return done[node]
