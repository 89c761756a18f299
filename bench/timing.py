"""Timing of contenders side by side: cold caches, graphs, turns.

Every contender runs on several sets of tensors in turn, together at least four times the L2 cache, so that no run finds
its data there: at twice its size a cache that replaces lines at random still serves a fifth of the accesses, at four
times two in a hundred. One round over all sets is recorded as a graph; rounds of the contenders alternate, so that a
drifting clock hits each alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from cuts.backends.device import Device, Launch, Timing

#: Fewest and most sets of tensors.
FEWEST, MOST = 1, 128


@frozen
class Contender:
    """Something that computes a case: `replay` runs it on every set once."""

    name: str
    replay: Launch
    sets: int


def sets_for(nbytes: int, cache: int) -> int:
    """Return how many sets of tensors keep a cache cold: together four times its size."""
    return max(FEWEST, min(MOST, -(-4 * cache // max(1, nbytes))))


def in_turns(device: Device, contenders: list[Contender], rounds: int = 7, least: float = 2e-3) -> Mapping[str, Timing]:
    """Return the seconds of one run of each contender; a sample is a round over all sets, or a few until `least`
    seconds are full.
    """
    repeats: dict[str, int] = {}
    for each in contenders:
        first = device.time(each.replay, warmup=2, repeats=2).median
        repeats[each.name] = max(1, min(10, int(least / max(first, 1e-7))))
    samples: dict[str, list[float]] = {each.name: [] for each in contenders}
    for _ in range(rounds):
        for each in contenders:
            taken = device.time(each.replay, warmup=0, repeats=repeats[each.name]).samples
            samples[each.name].append(sum(taken) / len(taken) / each.sets)
    return {name: Timing(tuple(values)) for name, values in samples.items()}
