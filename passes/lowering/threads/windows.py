"""Sliding windows: merged loads of neighbouring outputs (DeepCuts section 5.1).

An accumulation over a filter reads `x[s*i + r]` for every output `i` of the thread and every tap `r`. As families over
(r, i) these loads are `R * I`; over the window position `w = s*i + r` they are `s*(I - 1) + R`:

    acc[i] += x[s*i + r] * f[r]   over r, i      ->      X[w] = x[w] over w;   acc[i] += X[s*i + r] * f[r]

Where a thread's last outputs lie beyond the end, `c + i < n`, elements that only these read are not loaded: `w < s*(n -
1 - c) + R`. Their values are unused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod

from attrs import evolve

from ....ir import (
    HALF_BYTES,
    Accumulate,
    DType,
    Guard,
    Index,
    Item,
    Kernel,
    Load,
    Loop,
    Phase,
    Root,
    Store,
    Value,
    Var,
    Window,
    as_index,
    own_indices,
    own_variables,
    phases,
    post_order,
    substitute,
    variables,
    with_operands,
)

#: Most elements of one window per thread: all live in registers at once. Those of half types stay pairs until they are
#: used, and a compiler loads most of them late.
MAX_WINDOW_ELEMENTS, MAX_WINDOW_HALVES = 64, 160


def max_window_elements(dtype: DType) -> int:
    """Return the most elements of a window of a type."""
    return MAX_WINDOW_HALVES if dtype.is_float and dtype.size == HALF_BYTES else MAX_WINDOW_ELEMENTS


def merge_windows(kernel: Kernel) -> Kernel:
    """Return an extracted kernel that loads each window element once."""
    tails = _tails(kernel)
    return evolve(kernel, items=tuple(_item(i, tails) for i in kernel.items))


def _tails(kernel: Kernel) -> frozenset[Guard]:
    """Return the guards of all stored results: values computed elsewhere are unused."""
    stored = [
        frozenset(r.guards) for p in phases(kernel.items) for r in p.roots if isinstance(r, Store) and p.kind == "exit"
    ]
    return frozenset.intersection(*stored) if stored else frozenset()


def _item(item: Item, tails: Collection[Guard]) -> Item:
    if isinstance(item, Loop):
        return evolve(item, body=tuple(_item(i, tails) for i in item.body))
    return _phase(item, tails) if isinstance(item, Phase) else item


def _phase(phase: Phase, tails: Collection[Guard]) -> Phase:
    roots: list[Root] = []
    added: dict[Var, None] = {}
    for root in phase.roots:
        if isinstance(root, Accumulate):
            merged = {load: _window(load, root.over, phase.unrolled, tails) for load in _loads(root)}
            changed = {load: window for load, window in merged.items() if window is not None}
            if changed:
                root = evolve(root, value=_replace(root.value, changed))
                added.update(dict.fromkeys(v for w in changed.values() for v in w.axes))
        roots.append(root)
    return evolve(phase, roots=tuple(roots), unrolled=(*phase.unrolled, *added)) if added else phase


def _loads(root: Accumulate) -> Iterable[Load]:
    return [n for n in post_order([root.value]) if isinstance(n, Load)]


def _window(load: Load, over: Sequence[Var], unrolled: Sequence[Var], tails: Collection[Guard]) -> Window | None:
    """Return a load as a window over every pair of a reduced and an output variable that index the same dimension; over
    the inner taps only, where all would be too many elements for registers.
    """
    for first in range(len(over)):
        window = _merge(load, over[first:], over, unrolled, tails)
        most = max_window_elements(load.dtype)
        if window is not None and _live_elements(window, over[first:], over, unrolled) <= most:
            return window
    return None


def _merge(
    load: Load, taps: Sequence[Var], over: Sequence[Var], unrolled: Sequence[Var], tails: Collection[Guard]
) -> Window | None:
    """Return a load as a window over pairs of one of some taps and an output variable, None where there are none."""
    axes: list[Var] = []
    at: list[Index] = []
    moved = load
    for tap in taps:
        for output in unrolled:
            if output in over or tap.extent == 1 or output.extent == 1:
                continue
            ends = tuple(g for g in moved.guards if g in tails and _ends(g, tap, output))
            stride = _stride(moved, tap, output, ends)
            extent = stride * (output.extent - 1) + tap.extent
            if stride and extent < tap.extent * output.extent:
                # The name identifies the pair; equal windows of two loads are one.
                window = Var(f"{tap.name}{output.name}", extent)
                moved = _shift(moved, tap, output, window, ends)
                axes.append(window)
                at.append(as_index(output) * stride + tap)
                break
    return Window(moved, tuple(axes), tuple(at)) if axes else None


def _live_elements(window: Window, taps: Sequence[Var], over: Sequence[Var], unrolled: Sequence[Var]) -> int:
    """Return the elements of a window over some taps that live in registers at once: outer taps read theirs one after
    another, inner taps all together.
    """
    own = own_variables(window.load)
    return prod(v.extent for v in own & {*unrolled, *window.axes} if v not in over or v in taps)


def _ends(guard: Guard, tap: Var, output: Var) -> bool:
    """Return whether a guard bounds an output alone, independently of the tap."""
    return guard.index.coefficient(output) == 1 and not variables(guard.index - as_index(output)) & {tap, output}


def _stride(load: Load, tap: Var, output: Var, ends: Collection[Guard]) -> int:
    """Return s where the load only depends on `s * output + tap` (s >= 1), else 0; guards of `ends` aside."""
    found: set[int] = set()
    for index in own_indices(evolve(load, guards=tuple(g for g in load.guards if g not in ends))):
        first, second = index.coefficient(tap), index.coefficient(output)
        inner = variables(index - as_index(tap) * first - as_index(output) * second)
        if tap in inner or output in inner:
            return 0
        if first or second:
            found.add(second // first if first and second % first == 0 else 0)
    (stride,) = found if len(found) == 1 else (0,)
    return max(0, stride)


def _shift(load: Load, tap: Var, output: Var, window: Var, ends: Collection[Guard]) -> Load:
    """Return the load over the window's positions: the tap's variable stands for the whole position; guards of `ends`
    become those of the last existing output.
    """
    stride = (window.extent - tap.extent) // (output.extent - 1)

    def shift_index(index: Index) -> Index:
        factor = index.coefficient(tap)
        return substitute(index, {output: 0}) + as_index(window) * factor - as_index(tap) * factor if factor else index

    def shift_guard(guard: Guard) -> Guard:
        if guard not in ends:
            return Guard(shift_index(guard.index), guard.low, guard.high)
        place = (guard.index - as_index(output)) * stride + as_index(window)
        return Guard(place, guard.low * stride, (guard.high - 1) * stride + tap.extent)

    kept = tuple(shift_guard(g) for g in load.guards if g not in ends)
    last = tuple(g for g in map(shift_guard, ends) if not any(_implies(other, g) for other in kept))
    return evolve(load, address=shift_index(load.address), guards=tuple(g for g in (*kept, *last) if not g.always))


def _implies(guard: Guard, other: Guard) -> bool:
    """Return whether a guard implies another one, whose index differs by a constant."""
    difference = other.index - guard.index
    return (
        not difference.terms
        and guard.low + difference.const >= other.low
        and guard.high + difference.const <= other.high
    )


def _replace(node: Value, changed: dict[Load, Window]) -> Value:
    return (
        changed.get(node, node)
        if isinstance(node, Load)
        else with_operands(node, lambda operand: _replace(operand, changed))
    )
