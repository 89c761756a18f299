"""Loads that results take besides what is reduced, asked for before the reductions.

A bias, a residual, the scale of a row: what the last phase of a segment reads lies in memory, and behind the loop
threads would wait for it once more. Where all blocks of a kernel are on the machine at once, no other block works
meanwhile. So threads load it into registers first, as far as few of them are needed:

    loop; y[i] = acc[i] + bias[i]  ->  keep e[i] = bias[i]; loop; y[i] = acc[i] + e[i]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

from attrs import evolve

from ...ir import (
    Held,
    Item,
    Keep,
    Load,
    Phase,
    Root,
    Store,
    Target,
    Value,
    Var,
    as_index,
    post_order,
    variables,
    with_operands,
)
from .segment_state import SegmentState

#: Registers of a thread that are loaded early, at most.
EARLY = 16


def load_early(states: Sequence[SegmentState], parts: list[list[Item]]) -> list[Item]:
    """Take loads out of the last phases of segments, whose items are changed in place; return what loads them."""
    schedule, target = states[0].layout.schedule, states[0].target
    if not fits_at_once(schedule.blocks, schedule.threads, target):
        return []
    left, found = EARLY, list[Item]()
    for state, items in zip(states, parts, strict=True):
        names = map(f"{state.frame.prefix}early{{}}".format, count())  # a segment may have several last phases
        for n, item in enumerate(items):
            if not isinstance(item, Phase) or item.kind != "exit" or (not n and state is states[0]):
                continue
            chosen = list(_chosen(state, item, left, names))
            if chosen:
                left -= sum(prod(keep.shape) for keep in chosen)
                found.append(_loads(state, item, chosen))
                held: dict[Value, Value] = {k.value: Held(k.name, k.at, k.dtype) for k in chosen}
                items[n] = evolve(item, roots=tuple(_root(root, held) for root in item.roots))
    return found


def fits_at_once(blocks: Any, threads: Any, target: Target) -> Any:
    """Whether all blocks may be on a machine whose warps run in lockstep at once; numbers may be arrays of them."""
    return (blocks * -(-threads // target.warp_size) <= target.NUM_SM * target.warps_per_sm) & target.lockstep


def _chosen(state: SegmentState, phase: Phase, left: int, names: Iterator[str]) -> Iterator[Keep]:
    """Yield registers for the loads of a phase that take fewest, as long as some are left, by the next of the names."""
    tiles = dict(zip(state.frame.tiles, state.frame.schedule.dims, strict=True))
    others = {s.var for s in phase.shares} - set(tiles)
    found: list[tuple[int, Load, list[Var]]] = []
    for node in post_order(phase.roots):
        if isinstance(node, Load) and node.space == "global" and node.buffer in state.group.inputs:
            used = variables(node.address).union(*(variables(g.index) for g in node.guards))
            if not used & others:
                along = [tile for tile in tiles if tile in used]
                found.append((prod(tiles[t].thread for t in along), node, along))
    for needed, load, along in sorted(found, key=lambda each: each[0]):
        if needed > left:
            return
        left -= needed
        at = tuple(map(as_index, along)) or (as_index(0),)
        shape = tuple(tiles[t].thread for t in along) or (1,)
        yield Keep(next(names), at, shape, load, load.dtype)


def _loads(state: SegmentState, phase: Phase, keeps: Sequence[Keep]) -> Phase:
    """Return the phase that fills registers: as the phase that needs them divides its tile."""
    used = frozenset[Var]().union(*(variables(i) for keep in keeps for i in keep.at))
    shares = tuple(s for s in phase.shares if s.var in used)
    moving = frozenset[Var]().union(*(variables(s.value) for s in shares))
    unrolled = tuple(v for v in phase.unrolled if v in moving)
    return Phase("compute", f"{state.frame.prefix}early", tuple(keeps), unrolled, shares, phase.when)


def _root(root: Root, held: Mapping[Value, Value]) -> Root:
    return evolve(root, value=_replaced(root.value, held)) if isinstance(root, Store) else root


def _replaced(value: Value, held: Mapping[Value, Value]) -> Value:
    return held[value] if value in held else with_operands(value, lambda operand: _replaced(operand, held))
