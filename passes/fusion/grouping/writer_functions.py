"""Elementwise functions of shared tensors, applied by their writer.

A later segment may read a tensor in shared memory several times, or as an operand that instructions load as it is:

    u[p, c] = f16(t[p, c]), shared;   y[p, o] = sum over c of f[o, c] * max(u[p, c], 0)
      ->  u[p, c] = max(f16(t[p, c]), 0), shared;   y[p, o] = sum over c of f[o, c] * u[p, c]
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from ....ir import Call, Const, Expr, FusedGroup, Read, dtype_of, reads

#: Functions whose results need no more digits than their operands.
EXACT_FUNCTIONS = ("max", "min", "neg", "abs")


def apply_by_writer(group: FusedGroup) -> FusedGroup:
    """Return a group whose first segment applies functions of shared tensors."""
    if len(group.segments) != 2:
        return group
    for tensor in (t for t in group.shared if t not in group.outputs):
        group = _apply_function(group, tensor)
    return group


def _apply_function(group: FusedGroup, tensor: str) -> FusedGroup:
    first, last = group.segments
    bodies = (*last.expressions, *(o.body for o in first.outputs if o.tensor == tensor))
    found = {each for body in last.expressions for each in _functions(body, tensor)}
    places, dtype = {read for each in found for read in reads(each)}, group.tensors[tensor].dtype
    if len(found) != 1 or len(places) != 1 or not found.isdisjoint(places):
        return group
    (function,), (read,) = found, places
    if read.guards or any(dtype_of(each, group.tensors) is not dtype for each in (function, bodies[-1])):
        return group
    outputs = (evolve(o, body=_replace(function, read, o.body)) if o.tensor == tensor else o for o in first.outputs)
    reductions = (evolve(r, body=_replace(r.body, function, read)) for r in last.reductions)
    results = (evolve(o, body=_replace(o.body, function, read)) for o in last.outputs)
    applied = evolve(last, reductions=tuple(reductions), outputs=tuple(results))
    segments = evolve(first, outputs=tuple(outputs)), applied
    return evolve(group, segments=segments)


def _functions(expr: Expr, tensor: str) -> Iterator[Expr]:
    """Yield the largest parts of an expression that compute with elements of a tensor and constants alone."""
    if _reads_alone(expr, tensor) and any(True for _ in reads(expr)):
        yield expr
        return
    for child in expr.children:
        yield from _functions(child, tensor)


def _reads_alone(expr: Expr, tensor: str) -> bool:
    if isinstance(expr, Read):
        return expr.tensor == tensor
    if isinstance(expr, Call) and expr.fn not in EXACT_FUNCTIONS:
        return False
    return isinstance(expr, (Call, Const)) and all(_reads_alone(child, tensor) for child in expr.children)


def _replace(expr: Expr, old: Expr, new: Expr) -> Expr:
    if expr == old:
        return new
    return expr.with_children(tuple(_replace(child, old, new) for child in expr.children)) if expr.children else expr
