"""Sibling fusion: groups that read one large tensor independently.

Algorithm 1 merges groups that an edge connects. Two sums over one tensor read it once where one kernel computes both:

    a[c] = sum_r x[r, c];   b[c] = sum_r x[r, c] * y[r, c]      ->      one pass over x and y

Examples are the sums of a norm's gradient, a mean beside a maximum, and several counts of one tensor. Elementwise
results of one shape likewise: the gradients of a product's factors, or both halves of a rotation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from math import prod

from ....ir import Reduction, Segment, is_tiled, reads
from .groups import Group

#: Fewest elements of a large tensor, and fewest terms for each result.
MIN_ELEMENTS, MIN_TERMS = 1 << 14, 32


def sibling_keys(group: Group) -> frozenset[Hashable]:
    """Return the keys by which groups are siblings.

    They are the large tensors that it reads, each with the numbers of results and of terms. A contraction has none: it
    reads its factors in tiles, and another one would need other tiles. Nor has a scatter that combines values: it may
    be privatised alone.
    """
    form = group.form
    (segment, *others) = form.segments
    if others or segment.holds_rows or group.repeat is not None:
        return frozenset()
    if not segment.reductions:
        if _results(segment) < MIN_ELEMENTS or any(output.into for output in segment.outputs):
            return frozenset()
        operands = {r.tensor for output in segment.outputs for r in reads(output.body)} & {*group.tensors}
        large = (t for t in operands if form.tensors[t].size >= MIN_ELEMENTS)
        return frozenset((group.tensors[t], _results(segment), 1) for t in large)
    own = [r.name for r in segment.reductions]
    if any(is_tiled(r, segment.axes, own) for r in segment.reductions):
        return frozenset()
    found = (
        (group.tensors[t], _results(segment), prod(axis.extent for axis in reduction.reduce))
        for reduction in segment.reductions
        for t in _read(reduction)
        if t in group.tensors and form.tensors[t].size >= max(MIN_ELEMENTS, MIN_TERMS * _results(segment))
    )
    return frozenset(found)


def sibling_pairs(groups: Iterable[Group], kin: dict[Group, frozenset[Hashable]]) -> Iterator[tuple[Group, Group]]:
    """Yield the pairs of groups that are siblings, in group order.

    `kin` has the keys of each group.
    """
    known: dict[Hashable, list[Group]] = {}
    for group in groups:
        before = dict.fromkeys(other for key in kin[group] for other in known.get(key, ()))
        yield from ((other, group) for other in before)
        for key in kin[group]:
            known.setdefault(key, []).append(group)


def _read(reduction: Reduction) -> tuple[str, ...]:
    return tuple(dict.fromkeys(read.tensor for read in reads(reduction.body)))


def _results(segment: Segment) -> int:
    return prod(axis.extent for axis in segment.axes)
