"""Check of a graph at the least sizes of its dims.

Extents are fitted to sizes near the greatest ones. `x[:3]` has three rows at all of them, and fewer where `x` is short:
its number of rows, the lesser of two sizes, is another affine extent there. Sizes of models are convex or concave, so
extents that hold at both ends of a range hold between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from ...ir import CutsError, DimLayout, Graph, GraphError, SizeSamples, least_sizes, quote
from .extrapolation import graph_form
from .products import fit_products


def graphs_at_least(
    samples: SizeSamples, least: Mapping[str, int], graph_at: Callable[[Mapping[str, int]], Graph]
) -> Iterator[tuple[Mapping[str, int], Graph]]:
    """Yield a model's graphs at the ends of a range other than the greatest sizes.

    Where it has none for a size of 0, which many operations refuse, it is the graph at 1.
    """
    for sizes in least_sizes(samples, least):
        try:
            yield sizes, graph_at(sizes)
        except CutsError:
            if all(sizes.values()):
                raise
            raised = {name: max(1, size) for name, size in sizes.items()}
            yield raised, graph_at(raised)


def check_least_sizes(
    graphs: Sequence[Graph],
    samples: SizeSamples,
    layouts: Mapping[str, Sequence[DimLayout]],
    sizes: Mapping[str, int],
    least: Graph,
) -> None:
    """Raise `GraphError` where the graph at the least sizes, `least`, does not follow from those at the samples.

    Shapes follow from `layouts`. A graph with other nodes, as at size 1, is compared by its results.
    """
    first, same = graphs[0], graph_form(least) == graph_form(graphs[-1])
    pairs = [(name, name) for name in layouts if name in least.types]
    if not same:
        pairs = list(zip(first.outputs, least.outputs, strict=False))
    for name, own in pairs:
        shape = tuple(prod(factor.extent.at(sizes) for factor in layout) for layout in layouts[name])
        if least.types[own].shape != shape:
            raise _other_form(f"value {quote(name)}", shape, least.types[own].shape, sizes)
    for number, node in enumerate(least.nodes if same else ()):
        for name, value in node.attributes.items():
            found = [graph.nodes[number].attributes.get(name) for graph in graphs]
            if (expected := _value_at(found, value, samples, sizes)) != value:
                where = f"node {quote(node.origin or node.name)}: attribute {quote(name)}"
                raise _other_form(where, expected, value, sizes)


def _value_at(found: Sequence[Any], value: Any, samples: SizeSamples, sizes: Mapping[str, int]) -> Any:
    """Return the value at sizes that follows from those at the samples; `value` itself where none is known to."""
    if all(each == found[0] for each in found):
        return found[0]
    several = [*found, value]
    if all(isinstance(each, tuple) and len(each) == len(several[0]) for each in several):
        return tuple(_value_at(each[:-1], each[-1], samples, sizes) for each in zip(*several, strict=True))
    fitted = fit_products(samples, found) if all(isinstance(each, int) for each in several) else None
    return value if fitted is None else fitted.at(sizes)


def _other_form(what: str, expected: Any, found: Any, sizes: Mapping[str, int]) -> GraphError:
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    expected, found = (list(each) if isinstance(each, tuple) else each for each in (expected, found))
    return GraphError(
        f"{what} at {at}: expected {expected}, which follows from greater sizes, found {found}",
        hint="begin the range of sizes above this one, or fix them with --shape (shapes= of cuts.build)",
    )
