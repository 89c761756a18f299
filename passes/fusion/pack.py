"""Layout of constants: weights are stored so that the axes a block spreads its threads over are innermost.

    w[k, c, r, s] read by acc[.., k, ..] += x[..] * w[k, c, r, s]   ->   a constant stored as [c, r, s, k]

A fetch of a tile `[c*r*s][k]` then moves neighbours with one wide load and leaves them as compute phases want them.
Only operands of matrix-like contractions are changed: with few instances per weight (a matrix times a vector) a lane
wants neighbours along the reduction. So do the fragments of matrix atoms, where these load neighbours along the depth
together: any rows and columns then make an atom, and results leave as wide stores.

    b[k, n] read by acc[m, n] += a[m, k] * b[k, n], computed by atoms   ->   a constant stored as [n, k]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from attrs import evolve

from ...ir import (
    WIDEST_BYTES,
    Array,
    Expr,
    FusedGroup,
    Graph,
    Read,
    Reduction,
    Segment,
    TensorType,
    expr_variables,
    is_contraction,
    operands,
    reads,
    rebuild,
    variables,
)
from .groups import Group
from .views import Views

#: Instances that must share a constant's element for its layout to be worth changing.
REUSE = 16


def pack_constants(
    groups: Sequence[Group], views: Views, graph: Graph, multiplied: Callable[[FusedGroup], bool] = lambda form: False
) -> tuple[tuple[Group, ...], Views, Graph]:
    """Return groups that read constants in the layout they want, and views and graph that hold those constants;
    `multiplied` says whether atoms compute a group's contraction.
    """
    arrays: dict[str, Array] = {}
    types: dict[str, TensorType] = {}
    packed: list[Group] = []
    for group in groups:
        for tensor, order in _orders(group.form, multiplied).items():
            name = group.tensors[tensor]
            if name in graph.constants and name not in views.storages:
                new = f"{name} in order {', '.join(map(str, order))}"
                if new not in arrays:
                    arrays[new] = np.ascontiguousarray(np.transpose(graph.constants[name], order))
                    types[new] = TensorType(graph.types[name].dtype, arrays[new].shape)
                group = evolve(group, form=_permuted(group.form, tensor, order), tensors={**group.tensors, tensor: new})
        packed.append(group)
    graph = evolve(graph, constants={**graph.constants, **arrays}, types={**graph.types, **types})
    programs = evolve(views.programs, types={**views.programs.types, **types}, graph=graph)
    return tuple(packed), evolve(views, programs=programs), graph


def _orders(form: FusedGroup, multiplied: Callable[[FusedGroup], bool]) -> dict[str, tuple[int, ...]]:
    """Return the order of dims that each packable operand of the form's contractions wants."""
    found: dict[str, tuple[int, ...]] = {}
    every = [r for s in form.segments for body in s.expressions for r in reads(body)]
    for segment in form.segments:
        own = [r.name for r in segment.reductions]
        for reduction in segment.reductions:
            parts = operands(reduction, own) if is_contraction(reduction, own) else ()
            for part in parts:
                if (
                    isinstance(part, Read)
                    and part.tensor in form.inputs
                    and sum(r.tensor == part.tensor for r in every) == 1
                ):
                    deep = _deep(part, reduction, form.tensors[part.tensor])
                    order = deep if deep and multiplied(form) else _order(part, segment)
                    if order != tuple(range(len(order))):
                        found[part.tensor] = order
    return found


def _order(read: Read, segment: Segment) -> tuple[int, ...]:
    """Put the dims that only parallel axes index last, in their order, where enough instances share each element."""
    axes = frozenset(segment.axes)
    natural = tuple(range(len(read.indices)))
    inner = [d for d in natural if variables(read.indices[d]) and variables(read.indices[d]) <= axes]
    outer = [d for d in natural if d not in inner]
    reuse = prod(a.extent for a in axes - expr_variables(read))
    reduced = any(variables(read.indices[d]) for d in outer)
    return (*outer, *inner) if reduced and reuse >= REUSE else natural


def _deep(read: Read, reduction: Reduction, type_: TensorType) -> tuple[int, ...]:
    """Put the dims that reduced axes index last, in their order; nothing where these are no whole vectors."""
    natural = range(len(read.indices))
    inner = [d for d in natural if variables(read.indices[d]) & set(reduction.reduce)]
    whole = prod(type_.shape[d] for d in inner) * type_.dtype.size % WIDEST_BYTES == 0
    return (*(d for d in natural if d not in inner), *inner) if whole else ()


def _permuted(form: FusedGroup, tensor: str, order: Sequence[int]) -> FusedGroup:
    """Return a form that reads a tensor with its dims in another order."""

    def leaf(node: Expr) -> Expr:
        if isinstance(node, Read) and node.tensor == tensor:
            return evolve(node, indices=tuple(node.indices[d] for d in order))
        return node

    def segment(old: Segment) -> Segment:
        reductions = tuple(evolve(r, body=rebuild(r.body, leaf)) for r in old.reductions)
        return Segment(old.axes, reductions, tuple(evolve(o, body=rebuild(o.body, leaf)) for o in old.outputs))

    old = form.tensors[tensor]
    tensors: Mapping[str, TensorType] = {
        **form.tensors,
        tensor: TensorType(old.dtype, tuple(old.shape[d] for d in order)),
    }
    return evolve(form, segments=tuple(segment(s) for s in form.segments), tensors=tensors)
