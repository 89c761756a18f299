"""Graphs of one model at sizes of its dims."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import evolve, field, frozen

from ...ir import (
    CutsError,
    Dim,
    Graph,
    GraphError,
    SymbolicExtent,
    SymbolicShapeError,
    UsageError,
    VocabularyError,
    quote,
    size_samples,
)  # fmt: skip
from ...ops.language import Instances
from ...ops.symbolic import BoundedGraph, ComputedSizes, bounded_graph, graphs_at_least
from ..loading import ModelLike, Spec, is_torch_model, load_model
from .shapes import Extents, ShapeRequest

_LOG = logging.getLogger("cuts.frontends")


@frozen(eq=False)
class ModelFamily:
    """Graphs of a model by the sizes of its dims, imported once.

    Where it `computes` sizes, results may have numbers of rows that depend on values.
    """

    dims: tuple[Dim, ...]
    make: Callable[[Mapping[str, int], ComputedSizes | None], Graph]
    computes: bool = False
    known: dict[tuple[tuple[str, int], ...], Graph] = field(factory=dict)

    def at(self, sizes: Mapping[str, int], bounds: Mapping[str, int] | None = None) -> Graph:
        """Return the graph at sizes of the dims.

        `bounds` has the most rows of computed dims among them.
        """
        key = (*sizes.items(), *(bounds or {}).items())
        if key not in self.known:
            rows = {name: sizes[name] for name in bounds or {}}
            computed = ComputedSizes(rows, bounds or {}, bool(self.dims)) if self.computes else None
            self.known[key] = self.make(sizes, computed)
        return self.known[key]

    @property
    def greatest(self) -> dict[str, int]:
        """The greatest sizes."""
        return {dim.name: dim.high for dim in self.dims}

    def bounded_graph_at(self, sizes: Mapping[str, int], instances: Instances) -> BoundedGraph:
        """Return the graph for all sizes up to the greatest ones, `sizes`.

        Raises `GraphError` for one with state.
        """
        dims = tuple(Dim(dim.name, dim.low, sizes[dim.name]) for dim in self.dims)
        least = {dim.name: dim.low for dim in dims}
        samples = size_samples(dims, least)
        longest = {dim.name: max(each[dim.name] for each in samples.samples) for dim in dims}
        first = self.at(longest if self.computes else samples.capacity)
        rows = {producer.dim: producer.bound for producer in first.interface.producers}
        if rows:
            both = (*dims, *(Dim(name, 0, bound) for name, bound in rows.items()))
            samples = size_samples(both, {**least, **dict.fromkeys(rows, 0)})
        if first.interface.state:
            raise GraphError(
                f"graph {quote(first.name)} keeps state ({quote(next(iter(first.interface.state)))}), whose shape "
                "cannot be one of several buckets",
                hint="fix the sizes with --shape (shapes= of cuts.build)",
            )
        ends = tuple(graphs_at_least(samples, {d.name: d.low for d in samples.dims}, lambda each: self.at(each, rows)))
        return bounded_graph([self.at(each, rows) for each in samples.samples], samples, instances, ends)


def load_at_sizes(model: ModelLike, spec: Spec, request: ShapeRequest, args: Sequence[Any] = ()) -> Graph | ModelFamily:
    """Return a model's graph, or its family where sizes vary."""
    try:
        if request.is_static:
            with suppress(SymbolicShapeError):  # an exported program with dims of its own
                return load_model(model, spec, request.fixed, args)
        family = model_family(model, spec, request, args)
        graph = family.at(family.greatest)
    except VocabularyError as error:
        return _computing_family(model, spec, request, args, error)
    return family if family.dims else graph


def _computing_family(
    model: ModelLike, spec: Spec, request: ShapeRequest, args: Sequence[Any], cause: VocabularyError
) -> ModelFamily:
    """Return the family of a model with computed sizes; raises the `cause` where it has none that can be followed."""
    try:
        family = evolve(model_family(model, spec, request, args), computes=True)
        if family.bounded_graph_at(family.greatest, spec.instances).counts:
            return family
    except CutsError as error:
        _LOG.info("cuts: sizes that a model computes are not followed: %s", error)
    raise cause


def model_family(model: ModelLike, spec: Spec, request: ShapeRequest, args: Sequence[Any]) -> ModelFamily:
    """Return the graphs of a model in the shapes of a request.

    The dims are those of the request, and those that the model names and the request bounds: symbolic dims of an
    exported program, and of an ONNX model.

    Raises `UsageError` for a dim that no input has, and for one without bounds.
    """
    if is_torch_model(model):
        return _torch_family(model, spec, request, args)
    inputs = {**_declared_shapes(model, request), **request.inputs}
    _check_used(request, inputs)

    def make(sizes: Mapping[str, int], computed: ComputedSizes | None) -> Graph:
        return load_model(model, spec, _shapes_at(inputs, sizes), args, computed)

    return ModelFamily(tuple(request.dims.values()), make)


def _shapes_at(inputs: Mapping[str, Extents], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(extent.at(sizes) for extent in shape) for name, shape in inputs.items()}


def _check_used(request: ShapeRequest, inputs: Mapping[str, Extents]) -> None:
    """Raise where a dim is one of no input."""
    used = {name for shape in inputs.values() for extent in shape for name, _ in extent.terms}
    unused = [name for name in request.dims if name not in used]
    if unused:
        known = ", ".join(map(quote, sorted(used))) or "none"
        raise UsageError(
            f"no input has a dim {quote(unused[0])}",
            hint=f"name it in a shape, as in shapes={{'x': ({unused[0]!r}, 3, 224, 224)}}; dims that are used: {known}",
        )


def _declared_shapes(model: ModelLike, request: ShapeRequest) -> dict[str, Extents]:
    """Return the shapes of an ONNX model's inputs one of whose symbolic dims has a range."""
    path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    if isinstance(model, Graph) or (path and not path.lower().endswith(".onnx")) or not request.dims:
        return {}
    from ...frontends.onnx import declared_shapes

    found = {}
    source: Any = model
    for name, shape in declared_shapes(source).items():
        if any(entry in request.dims for entry in shape):
            fixed = [1 if entry is None else entry for entry in shape]
            found[name] = tuple(
                SymbolicExtent(entry) if isinstance(entry, int)
                else SymbolicExtent(0, ((entry, 1),)) if entry in request.dims
                else SymbolicExtent(1)
                for entry in fixed
            )  # fmt: skip
    return found


def _torch_family(model: ModelLike, spec: Spec, request: ShapeRequest, args: Sequence[Any]) -> ModelFamily:
    from ...frontends.torch import MAX_UNBOUNDED_SIZE, exported_program, program_name, sized_program

    program = exported_program(model, args)
    found = sized_program(model, program, args, program_name(model))
    inputs = {**found.inputs, **request.inputs}
    unknown = [name for name in request.inputs if name not in found.names]
    if unknown:
        raise UsageError(
            f"--shape names {quote(unknown[0])}, which is no input",
            hint=f"inputs are: {', '.join(map(quote, found.names)) or 'none'}",
        )
    own = {dim.name: dim for dim in found.dims if any(_has(shape, dim.name) for shape in inputs.values())}
    dims = own | dict(request.dims)
    _check_used(request, inputs)
    open_ended = [dim.name for dim in dims.values() if dim.high == MAX_UNBOUNDED_SIZE]
    if open_ended:
        raise UsageError(
            f"dim {quote(open_ended[0])} of the program has no greatest size",
            hint=f"give a range: dims={{{open_ended[0]!r}: (1, 64)}}, or --dim {open_ended[0]}=1..64",
        )
    sized = evolve(found, inputs=inputs)
    return ModelFamily(
        tuple(dims.values()), lambda sizes, computed: sized.graph_at(sizes, spec.instances.infer, computed)
    )


def _has(shape: Extents, dim: str) -> bool:
    return any(name == dim for extent in shape for name, _ in extent.terms)
