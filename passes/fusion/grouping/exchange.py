"""Fusion of pointwise segments whose threads exchange values through shared memory.

A pass of a fast Fourier transform reads results of many threads of the pass before. Where both go through the same
rows, a block computes whole rows of the first, leaves them in shared memory, and reads them in another order:

    h[b, k, j] = f(x[b, j], x[b, j + 16], ...);    y[b, k + 16 * q] = g(h[b, k, 0], h[b, k, 1], ...)
      ->  segment (b, j): h, shared     segment (b, k): y

Any number of segments may follow one another. Blocks divide the axes that all of them have in common (`owned_axes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod

from attrs import evolve

from ....ir import FusedGroup, Segment, TensorType, expr_indirects, indirects, owned_axes, reads, replaced_exchanges
from ..legality import Policy
from ..normalise import Illegal


def exchange_level(forms: Sequence[FusedGroup], policy: Policy) -> FusedGroup | Illegal:
    """Return groups of one pointwise segment each as one group.

    Each segment reads results of the segment before. All outputs but those of the last group are read by nothing else.
    """
    segments = _without_unread_outputs([form.segments[0] for form in forms])
    written = {o.tensor for segment in segments for o in segment.outputs}
    read = {t for segment in segments for t in segment.tensors_read}
    shared = tuple(t for form in forms[:-1] for t in form.outputs if t in written)
    if reason := _reason(segments, shared):
        return Illegal(reason)
    tensors = {t: type_ for form in forms for t, type_ in form.tensors.items() if t in written | read}
    sizes = [_row_bytes(number, segments, shared, tensors) for number in range(len(segments) - 1)]
    nbytes = max(sizes) if replaced_exchanges(segments, shared, tensors) else sum(sizes)
    if nbytes > policy.shared_bytes:
        return Illegal(f"one row needs {nbytes} bytes, shared memory has {policy.shared_bytes}")
    inputs = dict.fromkeys(t for form in forms for t in form.inputs if t in read and t not in shared)
    constants = {t: table for form in forms for t, table in form.constants.items()}
    return FusedGroup(segments, tensors, tuple(inputs), forms[-1].outputs, shared, constants)


def _without_unread_outputs(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments of an exchange without the tensors that none of them reads.

    A normal form may have lost its read of a tensor, as of the places of a single written slice.
    """
    read = {t for segment in segments for t in segment.tensors_read}
    passed = (evolve(s, outputs=tuple(o for o in s.outputs if o.tensor in read)) for s in segments[:-1])
    return (*passed, segments[-1])


def _reason(segments: Sequence[Segment], shared: Sequence[str]) -> str:
    """Return the reason why threads of a block cannot exchange values, "" where they can."""
    for number, segment in enumerate(segments):
        if segment.reductions or any(o.extra or o.into for o in segment.outputs):
            return "segments that exchange values are pointwise"
        if any(i.tensor in shared for body in segment.expressions for i in expr_indirects(body)):
            return "exchanged values are indices"
        places = [r.indices for body in segment.expressions for r in reads(body) if r.tensor in shared]
        if any(map(indirects, chain(*places, *(o.write for o in segment.outputs if o.tensor in shared)))):
            return "data determines the places of exchanged values"
        before = {o.tensor for o in segments[number - 1].outputs} if number else set[str]()
        found = {r.tensor for body in segment.expressions for r in reads(body) if r.tensor in shared}
        if found - before:
            return f"{min(found - before)} is read by a later segment than the next"
        if number and not found:
            return "a segment reads nothing of the one before"
    owned = owned_axes(tuple(segments), tuple(shared))
    if any(len(o) == sum(a.extent > 1 for a in s.axes) for s, o in zip(segments, owned, strict=True)):
        return "an instance reads only its own results"
    return ""


def _row_bytes(number: int, segments: Sequence[Segment], shared: Sequence[str], tensors: dict[str, TensorType]) -> int:
    """Return the shared memory that one value of the owned axes needs for the results of a segment."""
    owned = owned_axes(tuple(segments), tuple(shared))[number]
    rows = prod(segments[number].axes[n].extent for n in owned)
    return sum(tensors[t].nbytes // rows for t in dict.fromkeys(o.tensor for o in segments[number].outputs))
