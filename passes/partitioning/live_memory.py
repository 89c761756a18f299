"""Live memory of launches: bytes of values between launches.

A launch of many groups runs when the last of them can, so that values which the others read or write live longer:

    g1 -> w1, g2 -> w2, g3 -> w3   ->   one launch of w1, w2, w3: g1, g2 and g3 are live at a time

Outputs of the graph are live from their first launch to the last. Inputs and constants are live throughout and do not
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from ...ir import Target
from ..fusion import Group, Views
from .shared_launches import Launch, in_order

#: Most bytes of live values, as a multiple of those without shared launches, where they exceed the L2 cache.
MAX_LIVE_GROWTH = 1.125


@frozen
class LiveValues:
    """First and last launch of each buffer of launches in order."""

    spans: Mapping[str, tuple[int, int]]
    sizes: Mapping[str, int]
    peak: int = field(init=False)
    place: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        changes: dict[int, int] = {}
        for buffer, (first, last) in self.spans.items():
            changes[first] = changes.get(first, 0) + self.sizes[buffer]
            changes[last + 1] = changes.get(last + 1, 0) - self.sizes[buffer]
        total, found = 0, (0, 0)
        for place in sorted(changes):
            total += changes[place]
            found = max(found, (total, -place))
        object.__setattr__(self, "peak", found[0])
        object.__setattr__(self, "place", -found[1])

    def bytes_at_peak(self, group: Group, views: Views) -> int:
        """Return the bytes of a group's values at the peak."""
        touched = {views.storage(tensor).buffer for tensor in (*group.inputs, *group.outputs)} & self.spans.keys()
        return sum(self.sizes[b] for b in touched if self.spans[b][0] <= self.place <= self.spans[b][1])


def live_values(launches: Sequence[Sequence[Group]], views: Views) -> LiveValues:
    """Return the live values of launches in order."""
    types, outer = views.programs.types, _outer_buffers(views)
    kept = {views.storage(t).buffer for t in views.programs.graph.outputs if t in types}
    spans: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    for place, launch in enumerate(launches):
        for tensor in (t for group in launch for t in (*group.inputs, *group.outputs) if t in types):
            buffer = views.storage(tensor).buffer
            if buffer in outer:
                continue
            whole = types[buffer].nbytes if buffer in types else 0
            sizes[buffer] = max(sizes.get(buffer, 0), types[tensor].nbytes, whole)
            spans[buffer] = spans.get(buffer, (place, place))[0], len(launches) - 1 if buffer in kept else place
    return LiveValues(spans, sizes)


def limit_live_memory(
    launches: Sequence[Launch],
    single: Sequence[Launch],
    needs: Sequence[frozenset[int]],
    views: Views,
    target: Target,
) -> list[Launch]:
    """Return launches, halved until live values fit.

    Live values may take about as many bytes as without shared launches. The launch that keeps most of them alive is
    halved first.
    """

    def live_of(launches: Sequence[Launch]) -> LiveValues:
        return _live(in_least_memory(launches, needs, views), views)

    limit = max(MAX_LIVE_GROWTH * live_of(single).peak, target.l2_bytes)
    found = list(launches)
    while any(len(launch.groups) > 1 for launch in found):
        live = live_of(found)
        if live.peak <= limit:
            break
        several = (launch for launch in found if len(launch.groups) > 1)
        longest = max(several, key=lambda each: sum(live.bytes_at_peak(group, views) for group in each.groups))
        found.remove(longest)
        found += longest.halves()
    return found


def in_least_memory(launches: Sequence[Launch], needs: Sequence[frozenset[int]], views: Views) -> list[Launch]:
    """Return launches in order, some results last if that lowers the peak.

    These are results that nothing reads, such as the gradients or the updates of tables, where they are larger than the
    values that live longer for them.
    """
    read, types, outer = frozenset[int]().union(*needs), views.programs.types, _outer_buffers(views)
    ordered = [*in_order(launches, needs)]

    def size(tensors: Iterable[str]) -> int:
        values = {tensor for tensor in tensors if tensor in types and views.storage(tensor).buffer not in outer}
        return sum(types[tensor].nbytes for tensor in values)

    def grows(launch: Launch) -> bool:
        wanted = size(tensor for group in launch.groups for tensor in group.inputs)
        is_last = launch.groups[0].repeat is None and read.isdisjoint(launch.places)
        return is_last and size(tensor for group in launch.groups for tensor in group.outputs) > wanted

    delayed = sorted(ordered, key=grows)
    return min(ordered, delayed, key=lambda each: _live(each, views).peak)


def _live(launches: Iterable[Launch], views: Views) -> LiveValues:
    return live_values([launch.groups for launch in launches], views)


def _outer_buffers(views: Views) -> set[str]:
    """Return the buffers of inputs and constants."""
    graph, types = views.programs.graph, views.programs.types
    return {views.storage(tensor).buffer for tensor in (*graph.inputs, *graph.constants) if tensor in types}
