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
    own_variables,
    post_order,
    with_operands,
)
from ..substitute_phase import words_along


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
    windows = ((load, _window(load, phase.unrolled)) for load in loads)
    found: dict[Value, Window] = {load: window for load, window in windows if window is not None}
    if not found:
        return phase
    done: dict[Value, Value] = dict(found)
    roots = tuple(with_operands(root, lambda operand: _replace(operand, done)) for root in phase.roots)
    added = dict.fromkeys(axis for window in found.values() for axis in window.axes)
    return evolve(phase, roots=roots, unrolled=(*phase.unrolled, *added))


def _window(load: Load, unrolled: Sequence[Var]) -> Window | None:
    """Return a load as a window over the words along unrolled variables, None where it reads no words."""
    axes: dict[Var, Index] = {}
    moved = load
    for variable in unrolled:
        if variable in own_variables(moved) and (words := words_along(moved, variable)):
            moved, word = words
            axes[word] = as_index(variable) // (variable.extent // word.extent)
    places = {word: place for word, place in axes.items() if word.extent > 1}
    return Window(moved, tuple(places), tuple(places.values())) if axes else None


def _replace(node: Value, done: dict[Value, Value]) -> Value:
    if node not in done:
        done[node] = with_operands(node, lambda operand: _replace(operand, done))
    return done[node]
