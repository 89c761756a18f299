"""Roofline quantities: work and traffic of expressions under any schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil, gcd

from attrs import frozen

from ...ir import FUNCTIONS, HALF_BYTES, Call, Expr, FusedGroup, Read, TensorType, dtype_of, expr_variables, reads
from ..geometry import Cover, data_end, elements, product


@frozen
class NodeCost:
    """Cost of one expression node: operations and issue slots."""

    flops: int
    issue: int


def node_cost(expr: Expr, tensors: Mapping[str, TensorType] | None = None) -> NodeCost:
    """Return the cost of one node without its operands.

    With the types of `tensors`, functions of half types take fewer instructions.
    """
    if isinstance(expr, Call):
        function = FUNCTIONS[expr.fn]
        half = function.issue_half and tensors is not None and dtype_of(expr.args[0], tensors).size == HALF_BYTES
        return NodeCost(function.flops, function.issue_half if half else function.issue)
    return NodeCost(0, 0)


@lru_cache(maxsize=1 << 14)
def nodes(expr: Expr, stop: tuple[Expr, ...] = ()) -> tuple[Expr, ...]:
    """Return the distinct nodes of an expression, none in `stop`."""
    seen: dict[Expr, None] = {}
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in seen or node in stop:
            continue
        seen[node] = None
        stack.extend(node.children)
    return tuple(seen)


def memory_reads(body: Expr, own: Sequence[str]) -> list[Read]:
    """Return the reads that are not values of earlier reductions."""
    return [r for r in reads(body) if r.tensor not in own]


def group_work(group: FusedGroup) -> tuple[float, float]:
    """Return a group's useful operations and distinct bytes.

    No schedule can avoid them: floating-point operations, and bytes of distinct elements read and written.
    """
    flops = 0.0
    touched: dict[str, float] = {}
    for segment in group.segments:
        own = [r.name for r in segment.reductions]
        for reduction in segment.reductions:
            every, ends = segment.axes + reduction.reduce, data_end(reduction, segment.axes, group.tensors)
            terms = [
                min(a.extent, max(1, ceil(ends.terms))) if ends and a in reduction.reduce else a.extent for a in every
            ]
            cover = Cover.of([(a,) for a in every], terms)
            flops += float(product(cover.sizes)) + _useful([reduction.body], cover)
            _touch(group, [reduction.body], cover, own, touched)
        for extra in dict.fromkeys(o.extra for o in segment.outputs):
            cover = Cover.of([(a,) for a in segment.axes + extra], [a.extent for a in segment.axes + extra])
            outputs = [o for o in segment.outputs if o.extra == extra]
            flops += _useful([o.body for o in outputs], cover)
            _touch(group, [o.body for o in outputs], cover, own, touched)
            for output in outputs:
                if output.tensor not in group.shared:
                    kind, count = group.tensors[output.tensor], float(product(cover.sizes))
                    written = (min(count, kind.size) if output.into or output.across else count) * kind.dtype.size
                    touched[output.tensor] = touched.get(output.tensor, 0.0) + written
    return flops, sum(touched.values())


def _useful(bodies: Sequence[Expr], cover: Cover) -> float:
    distinct = dict.fromkeys(n for body in bodies for n in nodes(body))
    return float(sum(node_cost(n).flops * float(cover.dependent(expr_variables(n))) for n in distinct))


def _touch(
    group: FusedGroup, bodies: Sequence[Expr], cover: Cover, own: Sequence[str], touched: dict[str, float]
) -> None:
    found = [r for body in bodies for r in memory_reads(body, own) if r.tensor not in group.shared]
    for read, lattices in translations(found):
        kind = group.tensors[read.tensor]
        bytes_ = min(lattices * float(elements(read, kind.shape, cover)), kind.size) * kind.dtype.size
        touched[read.tensor] = max(touched.get(read.tensor, 0.0), bytes_)


def translations(found: Iterable[Read], rows: bool = False) -> list[tuple[Read, int]]:
    """Return one read per set of translates, and its lattices.

    The reads of a set differ by constants only; they lie in so many disjoint lattices. `x[2*p]`, `x[2*p + 1]`, `x[2*p +
    2]` lie in two: the first and the last touch the same elements, except at a border. With `rows`, reads of one row
    count once, as they share sectors.
    """
    lattices: dict[object, dict[tuple[int, ...], Read]] = {}
    for read in found:
        shape = (read.tensor, tuple(i.terms for i in read.indices))
        steps = [gcd(*(f for _, f in i.terms)) for i in read.indices]
        place = [i.const % step if step else i.const for i, step in zip(read.indices, steps, strict=True)]
        if rows and place and steps[-1]:
            place[-1] = 0
        lattices.setdefault(shape, {}).setdefault(tuple(place), read)
    return [(next(iter(same.values())), len(same)) for same in lattices.values()]
