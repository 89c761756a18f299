"""Warning about windows that are larger than their input.

They are legal, and almost never intended.
"""

from __future__ import annotations

import warnings

from ..ir import CutsWarning, Graph, quote
from .language import Registry, children, syntax


def warn_of_empty_results(graph: Graph, registry: Registry) -> None:
    """Warn of every reduction over operands with elements whose result has none.

    Data movement may select nothing; a reduction to no elements is a window that does not fit.
    """
    for node in graph.nodes:
        empty = [name for name in node.outputs if not graph.types[name].size]
        if not empty or not all(graph.types[name].size for name in node.operands):
            continue
        if any(_reduces(assignment.value) for assignment in registry.of(node).assignments):
            result = f"its result {quote(empty[0])} has no elements: {graph.types[empty[0]]}"
            given = ", ".join(f"{quote(name)}: {graph.types[name]}" for name in node.operands)
            place = f"{node.span.position}: " if node.span else ""
            text = f"{place}node {quote(node.name)} ({node.op}): {result}; its operands are too small for it: {given}"
            warnings.warn(text, CutsWarning, stacklevel=3)


def _reduces(expression: syntax.Expression) -> bool:
    """Return whether an expression has a reduction."""
    return isinstance(expression, syntax.Reduction) or any(map(_reduces, children(expression)))
