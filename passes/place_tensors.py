"""Storage of tensors.

It has the order of their dims, packed constants, and movements that cost no kernel.
"""

from __future__ import annotations

from .context import CompileContext
from .fusion import Programs, find_views
from .layout import choose_layouts, order_sums, pack_constants
from .results import Algorithms, Layouts, Statements
from .rewrites import rewrite_all, with_programs


def order_dims(previous: Statements, context: CompileContext) -> Statements:
    """Return statements over tensors whose dims are stored in the kernels' order."""
    threads = context.record is None or context.record.ordered

    def order(programs: Programs) -> Programs:
        found = choose_layouts(programs, context.target, context.math, threads=threads, kept=previous.recomputed)
        return order_sums(programs, found) if context.target.invariant else found

    return context.once("layouts", previous, lambda: with_programs(previous, order(previous.programs)))


def pack(previous: Statements, context: CompileContext) -> Statements:
    """Return statements over constants in the layout in which units read them."""

    def find() -> Statements:
        return with_programs(previous, pack_constants(previous.programs, context.target, context.math))

    return context.once("pack", previous, find)


def place_tensors(previous: Statements, context: CompileContext) -> Layouts:
    """Return the storage of tensors."""

    def find() -> Layouts:
        views = find_views(previous.programs)
        return Layouts(previous, views, context.builder(views))

    return context.once("views", previous, find)


def place_programs(plan: Algorithms, context: CompileContext) -> Layouts:
    """Run the stages from a graph to the storage of its tensors."""
    return place_tensors(pack(order_dims(rewrite_all(plan, context), context), context), context)
