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
    graph, types = views.programs.graph, views.programs.types
    outer = {views.storage(t).buffer for t in (*graph.inputs, *graph.constants) if t in types}
    kept = {views.storage(t).buffer for t in graph.outputs if t in types}
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
    limit = max(MAX_LIVE_GROWTH * _live(single, needs, views).peak, target.l2_bytes)
    found = list(launches)
    while any(len(launch.groups) > 1 for launch in found):
        live = _live(found, needs, views)
        if live.peak <= limit:
            break
        several = (launch for launch in found if len(launch.groups) > 1)
        longest = max(several, key=lambda each: sum(live.bytes_at_peak(group, views) for group in each.groups))
        found.remove(longest)
        found += longest.halves()
    return found


def delay_results(launches: Sequence[Launch], needs: Sequence[frozenset[int]], views: Views) -> list[Launch]:
    """Return launches in order, some results last if that lowers the peak.

    These are results that nothing reads, such as the gradients of tables, where they are larger than the operands,
    which live longer.
    """
    read, types = frozenset[int]().union(*needs), views.programs.types

    def size(tensors: Iterable[str]) -> int:
        return sum(types[tensor].nbytes for tensor in {*tensors} if tensor in types)

    def grows(launch: Launch) -> bool:
        wanted = size(tensor for group in launch.groups for tensor in group.inputs)
        is_last = launch.groups[0].repeat is None and read.isdisjoint(launch.places)
        return is_last and size(tensor for group in launch.groups for tensor in group.outputs) > wanted

    late = {launch for launch in launches if grows(launch)}
    found = [*(each for each in launches if each not in late), *(each for each in launches if each in late)]
    before, after = (live_values([launch.groups for launch in order], views).peak for order in (launches, found))
    return found if after < before else list(launches)


def _live(launches: Sequence[Launch], needs: Sequence[frozenset[int]], views: Views) -> LiveValues:
    return live_values([launch.groups for launch in in_order(launches, needs)], views)
