"""Atomic updates: the guard of the updated element, and the call."""

from __future__ import annotations

from math import prod

from ...ir import Op, Store, Var, as_index, indirects, linearise, row_major
from .index_ctext import guard_text, index_text, place_text
from .scope import KernelNames, Writer


def print_atomic_update(node: Store, value: str, rest: tuple[Var, ...], names: KernelNames, out: Writer) -> None:
    """Print the atomic operation that combines a value with memory.

    Those of a box first compute all their addresses, -1 for none, then run one after another.
    """
    exists, place = _exists(node, names), index_text(node.address, names.pointers)
    if not rest:
        out.line((f"if ({exists}) " if exists else "") + _call(node, value, place, names))
        return
    places = names.fresh()
    at = index_text(linearise([as_index(v) for v in rest], row_major(tuple(v.extent for v in rest))), {})
    out.line(f"int {places}[{prod(v.extent for v in rest)}];")
    with out.loops(rest):
        out.line(f"{places}[{at}] = {f'{exists} ? {place} : -1' if exists else place};")
    with out.loops(rest):
        condition = f"if ({places}[{at}] >= 0) " if exists else ""
        out.line(condition + _call(node, value, f"{places}[{at}]", names))


def _exists(node: Store, names: KernelNames) -> str:
    """Return the condition that the element of a value exists, empty where it always does."""
    parts = [guard_text(node.guards, names.pointers)] if node.guards else []
    parts += [place_text(place, names.pointers) for place in dict.fromkeys(indirects(node.address)) if place.wraps]
    return " && ".join(parts)


def _call(node: Store, value: str, place: str, names: KernelNames) -> str:
    """Return the call that combines a value with an element; some functions of magnitudes have their own."""
    helper = "into" if node.space == "global" else "meet"
    magnitude = f"{node.into}_abs" if isinstance(node.value, Op) and node.value.fn == "abs" else ""
    name = magnitude if f"{magnitude}_{node.dtype}" in names.dialect.atomics.native else node.into
    return f"cuts_{helper}_{name}_{node.dtype}(&{names.buffer(node.space, node.buffer)}[{place}], {value});"
