"""Hoisted epilogue loads: operands of the epilogue, requested before the reductions.

The last phase of a segment reads a bias, a residual or the scale of a row from memory; after the K loop threads would
wait for it. Where all blocks of a kernel are resident at once, no other block hides that latency. So threads load such
operands into registers first, as long as they take few registers:

    loop; y[i] = acc[i] + bias[i]  ->  keep e[i] = bias[i]; loop; y[i] = acc[i] + e[i]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

from attrs import evolve

from ....ir import (
    Item,
    Load,
    Phase,
    RegisterRead,
    RegisterWrite,
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
from ..segment_state import SegmentState

#: Most registers of a thread for hoisted loads.
MAX_HOISTED_REGISTERS = 16


def hoist_loads(states: Sequence[SegmentState], parts: list[list[Item]]) -> list[Item]:
    """Hoist loads of the segments' last phases, and return them.

    The items in `parts` are changed in place.
    """
    schedule, target = states[0].layout.schedule, states[0].target
    if not is_resident_at_once(schedule.blocks, schedule.threads, target):
        return []
    left, found = MAX_HOISTED_REGISTERS, list[Item]()
    for state, items in zip(states, parts, strict=True):
        names = map(f"{state.frame.prefix}early{{}}".format, count())  # a segment may have several last phases
        for n, item in enumerate(items):
            if not isinstance(item, Phase) or item.kind != "exit" or (not n and state is states[0]):
                continue
            chosen = list(_select_loads(state, item, left, names))
            if chosen:
                left -= sum(prod(keep.shape) for keep in chosen)
                found.append(_loads(state, item, chosen))
                held: dict[Value, Value] = {k.value: RegisterRead(k.name, k.at, k.dtype) for k in chosen}
                items[n] = evolve(item, roots=tuple(_replace_in_root(root, held) for root in item.roots))
    return found


def is_resident_at_once(blocks: Any, threads: Any, target: Target) -> Any:
    """Return whether all blocks are resident at once.

    True only on a machine with lockstep warps; numbers may be arrays of them.
    """
    return (blocks * -(-threads // target.warp_size) <= target.NUM_SM * target.warps_per_sm) & target.lockstep


def _select_loads(state: SegmentState, phase: Phase, left: int, names: Iterator[str]) -> Iterator[RegisterWrite]:
    """Yield register writes for the loads of a phase, those of fewest registers first, while some are left."""
    tiles = dict(zip(state.frame.tiles, state.frame.schedule.dims, strict=True))
    others = {s.var for s in phase.shares}.union(phase.unrolled) - set(tiles)
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
        yield RegisterWrite(next(names), at, shape, load, load.dtype)


def _loads(state: SegmentState, phase: Phase, keeps: Sequence[RegisterWrite]) -> Phase:
    """Return the phase that fills the registers, with the tile division of the phase that uses them."""
    used = frozenset[Var]().union(*(variables(i) for keep in keeps for i in keep.at))
    shares = tuple(s for s in phase.shares if s.var in used)
    moving = frozenset[Var]().union(*(variables(s.value) for s in shares))
    unrolled = tuple(v for v in phase.unrolled if v in moving)
    return Phase("compute", f"{state.frame.prefix}early", tuple(keeps), unrolled, shares, phase.when)


def _replace_in_root(root: Root, held: Mapping[Value, Value]) -> Root:
    return evolve(root, value=_replace(root.value, held)) if isinstance(root, Store) else root


def _replace(value: Value, held: Mapping[Value, Value]) -> Value:
    return held[value] if value in held else with_operands(value, lambda operand: _replace(operand, held))
