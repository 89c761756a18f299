"""Check of a graph at the least sizes of its dims.

Extents are fitted to sizes near the greatest ones. `x[:3]` has three rows there, and fewer where `x` is short:
its number of rows, the lesser of two sizes, is another affine extent there. Sizes of models are convex or concave, so
extents that hold at both ends of a range hold between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ...ir import (
    Array,
    Clamp,
    CutsError,
    DimLayout,
    Graph,
    GraphError,
    InRange,
    Program,
    SizeSamples,
    distinct,
    indices,
    least_sizes,
    primaries,
    quote,
    reads,
)
from ..language import Instances
from .extrapolation import graph_form
from .products import fit_products

#: Graphs at the ends of a range.
Ends: TypeAlias = Sequence[tuple[Mapping[str, int], Graph]]
BEGIN_ABOVE = "begin the range of sizes above this one, or fix them with --shape (shapes= of cuts.build)"


def graphs_at_least(
    samples: SizeSamples, least: Mapping[str, int], graph_at: Callable[[Mapping[str, int]], Graph]
) -> Iterator[tuple[Mapping[str, int], Graph]]:
    """Yield the graphs at a range's ends but the greatest sizes.

    Where it has none for a size of 0, which many operations refuse, it is the graph at 1. Raises `GraphError` where it
    has none for the least sizes.
    """
    for sizes in least_sizes(samples, least):
        try:
            yield sizes, graph_at(sizes)
        except CutsError as error:
            raised = {name: max(1, size) for name, size in sizes.items()}
            if raised == sizes:
                raise GraphError(f"{error.message}, at {_text(sizes)}", error.span, BEGIN_ABOVE) from error
            yield raised, graph_at(raised)


def check_range(
    graphs: Sequence[Graph],
    samples: SizeSamples,
    layouts: Mapping[str, Sequence[DimLayout]],
    ends: Ends,
    instances: Instances,
) -> None:
    """Raise `GraphError` where layouts do not hold for a range.

    `graphs` are those at the samples, `ends` those at other ends of the range.
    """
    _check_room(layouts, samples)
    for sizes, graph in ends:
        _check_least_sizes(graphs, samples, layouts, sizes, graph, instances)


def _check_room(layouts: Mapping[str, Sequence[DimLayout]], samples: SizeSamples) -> None:
    """Raise `GraphError` where a value is larger at smaller sizes.

    Memory has no room for `12 - n` elements but at the greatest n.
    """
    for name, layout in layouts.items():
        for factor in (factor for dim in layout for factor in dim):
            if (most := factor.extent.max_size(samples.dims)) > factor.capacity:
                raise GraphError(
                    f"value {quote(name)}: expected at most {factor.capacity} of a dim, as at the greatest sizes, "
                    f"found {factor.extent}, which is up to {most} for {', '.join(map(str, samples.varying))}",
                    hint="fix the sizes with --shape (shapes= of cuts.build), or leave one of these dims fixed",
                )


def _check_least_sizes(
    graphs: Sequence[Graph],
    samples: SizeSamples,
    layouts: Mapping[str, Sequence[DimLayout]],
    sizes: Mapping[str, int],
    least: Graph,
    instances: Instances,
) -> None:
    """Raise `GraphError` where the graph `least` does not follow.

    Shapes follow from `layouts`, and programs have no more conditions than at the samples, where some always hold.
    A graph with other nodes, as at size 1, is compared by its results.
    """
    first, same = graphs[0], graph_form(least) == graph_form(graphs[-1])
    pairs = [(name, name) for name in layouts if name in least.types]
    if not same:
        pairs = list(zip(first.outputs, least.outputs, strict=False))
    for name, own in pairs:
        shape = tuple(prod(factor.extent.at(sizes) for factor in layout) for layout in layouts[name])
        if least.types[own].shape != shape:
            raise _other_form(f"value {quote(name)}", shape, least.types[own].shape, sizes)
    for name, array in least.constants.items() if same else ():
        if not _is_part(array, [graph.constants[name] for graph in graphs], samples, sizes):
            raise _other_form(f"constant {quote(name)}", "elements", "others", sizes)
    for number, node in enumerate(least.nodes if same else ()):
        for name, value in node.attributes.items():
            found = [graph.nodes[number].attributes.get(name) for graph in graphs]
            if (expected := _value_at(found, value, samples, sizes)) != value:
                where = f"node {quote(node.origin or node.name)}: attribute {quote(name)}"
                raise _other_form(where, expected, value, sizes)
        count, own_count = (_condition_count(instances.of_node(g.nodes[number], g).program) for g in (first, least))
        if own_count > count:
            where = f"node {quote(node.origin or node.name)} ({node.op}): number of conditions"
            raise _other_form(where, count, own_count, sizes)


def _condition_count(program: Program) -> int:
    """Return the number of bounds that indices of a program are held to."""
    bodies = [statement.body for statement in program.statements]
    guards = [guard for body in bodies for read in reads(body) for guard in read.guards]
    tests = [each for body in bodies for each in distinct(body) if isinstance(each, InRange)]
    guards += [guard for each in tests for guard in each.guards]
    clamps = [p for body in bodies for index in {*indices(body)} for p in primaries(index) if isinstance(p, Clamp)]
    return len(guards) + len(clamps)


def _is_part(own: Array, found: Sequence[Array], samples: SizeSamples, sizes: Mapping[str, int]) -> bool:
    """Return whether a constant begins those at the samples, or is a size as they are."""
    if all(array.size == 1 for array in found) and any(array.tobytes() != found[0].tobytes() for array in found):
        extent = samples.fit(tuple(int(array.item()) for array in found))
        return extent is not None and extent.at(sizes) == own.item()
    part = found[0][tuple(slice(0, size) for size in own.shape)]
    return np.ascontiguousarray(part).tobytes() == np.ascontiguousarray(own).tobytes()


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
    expected, found = (list(each) if isinstance(each, tuple) else each for each in (expected, found))
    return GraphError(
        f"{what} at {_text(sizes)}: expected {expected}, which follows from greater sizes, found {found}",
        hint=BEGIN_ABOVE,
    )


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
