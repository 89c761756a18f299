"""What expressions cost whatever the schedule: operations of a node, and the least work and traffic of a whole group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from ..ir.expr import Call, Expr, Read, children, expr_variables, reads
from ..ir.functions import FUNCTIONS
from ..ir.segment import FusedGroup
from .footprint import Cover, elements, product


@frozen
class Work:
    """What one expression node costs: floating-point operations and issue slots."""

    flops: int
    issue: int


def node_cost(expr: Expr) -> Work:
    """Return the cost of one node, its operands apart."""
    if isinstance(expr, Call):
        function = FUNCTIONS[expr.fn]
        return Work(function.flops, function.issue)
    return Work(0, 0)


def nodes(expr: Expr, stop: Sequence[Expr] = ()) -> Iterator[Expr]:
    """Yield the distinct nodes of an expression, not entering those in `stop`."""
    seen: set[Expr] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in seen or node in stop:
            continue
        seen.add(node)
        yield node
        stack.extend(children(node))


def memory_reads(body: Expr, own: Sequence[str]) -> list[Read]:
    """Return the reads that are not values of earlier reductions."""
    return [r for r in reads(body) if r.tensor not in own]


def group_work(group: FusedGroup) -> tuple[float, float]:
    """Return what no schedule can avoid: useful floating-point operations, and bytes of distinct elements read and written."""
    flops = 0.0
    touched: dict[str, float] = {}
    for segment in group.segments:
        own = [r.name for r in segment.reductions]
        for reduction in segment.reductions:
            cover = Cover.of([(a,) for a in segment.axes + reduction.reduce], [a.extent for a in segment.axes + reduction.reduce])
            flops += float(product(cover.sizes)) + _useful(reduction.body, cover)
            _touch(group, reduction.body, cover, own, touched)
        for output in segment.outputs:
            cover = Cover.of([(a,) for a in segment.axes + output.extra], [a.extent for a in segment.axes + output.extra])
            flops += _useful(output.body, cover)
            _touch(group, output.body, cover, own, touched)
            if output.tensor not in group.shared:
                touched[output.tensor] = float(product(cover.sizes)) * group.tensors[output.tensor].dtype.size
    return flops, sum(touched.values())


def _useful(body: Expr, cover: Cover) -> float:
    return float(sum(node_cost(n).flops * float(cover.dependent(expr_variables(n))) for n in nodes(body)))


def _touch(group: FusedGroup, body: Expr, cover: Cover, own: Sequence[str], touched: dict[str, float]) -> None:
    for read in memory_reads(body, own):
        if read.tensor not in group.shared:
            kind = group.tensors[read.tensor]
            bytes_ = float(elements(read, kind.shape, cover)) * kind.dtype.size
            touched[read.tensor] = max(touched.get(read.tensor, 0.0), bytes_)
