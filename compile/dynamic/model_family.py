"""Graphs of one model at sizes of its dims."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from ...ir import Dim, Graph, SymbolicExtent, SymbolicShapeError, UsageError, quote
from ..loading import ModelLike, Spec, is_torch_model, load_model
from .shapes import Extents, ShapeRequest


@frozen(eq=False)
class ModelFamily:
    """Graphs of a model by the sizes of its dims, imported once."""

    dims: tuple[Dim, ...]
    make: Callable[[Mapping[str, int]], Graph]
    known: dict[tuple[int, ...], Graph] = field(factory=dict)

    def at(self, sizes: Mapping[str, int]) -> Graph:
        """Return the graph at sizes of the dims."""
        key = tuple(sizes[dim.name] for dim in self.dims)
        if key not in self.known:
            self.known[key] = self.make(sizes)
        return self.known[key]


def load_at_sizes(model: ModelLike, spec: Spec, request: ShapeRequest, args: Sequence[Any] = ()) -> Graph | ModelFamily:
    """Return a model's graph, or its family where sizes vary."""
    if request.is_static:
        try:
            return load_model(model, spec, request.fixed, args)
        except SymbolicShapeError:  # an exported program with dims of its own
            pass
    family = model_family(model, spec, request, args)
    return family if family.dims else family.at({})


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

    def make(sizes: Mapping[str, int]) -> Graph:
        return load_model(model, spec, _shapes_at(inputs, sizes), args)

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
    return ModelFamily(tuple(dims.values()), lambda sizes: sized.graph_at(sizes, spec.instances.infer))


def _has(shape: Extents, dim: str) -> bool:
    return any(name == dim for extent in shape for name, _ in extent.terms)
