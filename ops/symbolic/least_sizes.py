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
            raise _other_size(f"value {quote(name)}", list(least.types[own].shape), sizes)
    for number, node in enumerate(least.nodes if same else ()):
        for name, value in node.attributes.items():
            found = [graph.nodes[number].attributes.get(name) for graph in graphs]
            if not _follows(found, value, samples, sizes):
                raise _other_size(f"attribute {quote(name)} of node {quote(node.origin or node.name)}", value, sizes)


def _follows(found: Sequence[Any], value: Any, samples: SizeSamples, sizes: Mapping[str, int]) -> bool:
    """Return whether a value follows from those at the samples, or is of no kind that is known to."""
    if all(each == found[0] for each in found):
        return bool(value == found[0])
    several = [*found, value]
    if all(isinstance(each, tuple) and len(each) == len(value) for each in several):
        return all(_follows(each[:-1], each[-1], samples, sizes) for each in zip(*several, strict=True))
    if not all(isinstance(each, int) for each in several):
        return True
    fitted = fit_products(samples, found)
    return fitted is None or fitted.at(sizes) == value


def _other_size(what: str, found: Any, sizes: Mapping[str, int]) -> GraphError:
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return GraphError(
        f"{what} is {found} at the least sizes ({at}), which does not follow from those at greater ones",
        hint="let the sizes begin where the model has one form, or fix them with --shape (shapes= of cuts.build)",
    )
