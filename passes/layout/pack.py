"""Layout of constants: a block's thread axes lie innermost in stored weights.

    w[k, c, r, s] read by acc[.., k, ..] += x[..] * w[k, c, r, s]   ->   a constant stored as [c, r, s, k]

A fetch of a tile `[c*r*s][k]` then moves neighbours with one wide load and leaves them as compute phases want them.
Only operands of matrix-like contractions are changed: with few instances per weight (a matrix times a vector) a lane
wants neighbours along the reduction. So do the fragments of matrix instructions, where these load neighbours along the
depth together: any rows and columns then form a fragment, and results leave as wide stores.

    b[k, n] read by acc[m, n] += a[m, k] * b[k, n], computed by atoms   ->   a constant stored as [n, k]

The pass runs ahead of grouping, so that a group is measured over the layout that it is launched with.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from math import prod

from ...ir import (
    WIDEST_BYTES,
    FusedGroup,
    Read,
    Reduction,
    Segment,
    Target,
    TensorType,
    expr_variables,
    is_contraction,
    operands,
    reads,
    variables,
)
from ..fusion import GroupBuilder, Order, Policy, Programs, Unit, Views, form_key
from ..schedule import is_mma_computable
from .constants import store_constants

#: Instances that must share a constant's element for its layout to be worth changing.
MIN_REUSE = 16


def pack_constants(programs: Programs, target: Target, math: str = "") -> Programs:
    """Return programs whose contractions read constants in their preferred order.

    `math` is the math mode of contractions of f32.
    """
    builder = GroupBuilder(Views(programs, {}), Policy(math=math))
    wanted = dict(_constant_orders(builder, programs.units, programs, target))
    for loop in programs.units:
        if loop.repeat is not None:
            wanted |= dict(_constant_orders(builder.iteration_builder(loop.name), loop.repeat.units, programs, target))
    return store_constants(programs, wanted) if wanted else programs


def _constant_orders(
    builder: GroupBuilder, units: tuple[Unit, ...], programs: Programs, target: Target
) -> Iterator[tuple[str, Mapping[str, Order]]]:
    """Yield the units that want constants in another order, and that order."""
    constants = programs.graph.constants.keys() - programs.orders.keys()
    known: dict[Hashable, Mapping[str, Order]] = {}
    for unit in units:
        if _multiplies(unit, programs) and builder.is_used(unit.name):
            group = builder.single(unit.name)
            if (key := form_key(group.form)) not in known:
                known[key] = _orders(group.form, target)
            orders = {group.tensors[t]: order for t, order in known[key].items()}
            own = {tensor: order for tensor, order in orders.items() if tensor in constants}
            if own:
                yield unit.name, own


def _multiplies(unit: Unit, programs: Programs) -> bool:
    """Return whether a unit adds up products of a constant."""
    sums = [s for s in unit.statements if s.reduce and len(s.reads) > 1]
    return any(t in programs.graph.constants for s in sums for t in s.tensors_read)


def _orders(form: FusedGroup, target: Target) -> dict[str, tuple[int, ...]]:
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
                    order = deep if deep and is_mma_computable(form, target) else _order(part, segment)
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
    return (*outer, *inner) if reduced and reuse >= MIN_REUSE else natural


def _deep(read: Read, reduction: Reduction, type_: TensorType) -> tuple[int, ...]:
    """Put the dims that reduced axes index last, in their order; nothing where these are no whole vectors."""
    natural = range(len(read.indices))
    inner = [d for d in natural if variables(read.indices[d]) & set(reduction.reduce)]
    whole = prod(type_.shape[d] for d in inner) * type_.dtype.size % WIDEST_BYTES == 0
    return (*(d for d in natural if d not in inner), *inner) if whole else ()
