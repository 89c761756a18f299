"""The loop over the chunks of a reduction: what is staged of them, fetched ahead into a ring of buffers, waited for."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import (
    Barrier,
    Commit,
    Expr,
    Guard,
    Index,
    Item,
    Load,
    Loop,
    Phase,
    Reduction,
    ReductionSchedule,
    SharedBuffer,
    Value,
    Var,
    Wait,
    as_index,
    dtype_of,
    operands,
)
from .extract import substitute_phase
from .fetch import fetch_phase
from .segment_state import SegmentState
from .staging import AxisBinding, Tile, stage


def staged_tiles(
    state: SegmentState, reduction: Reduction, schedule: ReductionSchedule, binding: AxisBinding, prefix: str
) -> dict[Expr, tuple[Tile, SharedBuffer]]:
    """Lay out the tile of each staged operand and declare its ring of buffers."""
    parts = operands(reduction, [r.name for r in state.frame.segment.reductions])
    shapes = {t: kind.shape for t, kind in state.group.tensors.items()}
    tiles: dict[Expr, tuple[Tile, SharedBuffer]] = {}
    for choice in schedule.staging:
        operand = parts[choice.operand]
        tile = stage(operand, shapes, binding, choice, f"{prefix}c{choice.operand}_")
        buffer = SharedBuffer(
            f"{prefix}s{choice.operand}", dtype_of(operand, state.group.tensors), tile.size * schedule.stages
        )
        state.layout.buffers[buffer.name] = buffer
        tiles[operand] = (tile, buffer)
    return tiles


def tile_load(tile: Tile, buffer: SharedBuffer, slot: Index) -> Value:
    """Return the load of a staged operand from one slot of its ring."""
    return Load("shared", buffer.name, slot * tile.size + tile.address(tile.uses), buffer.dtype)


def chunk_loop(
    state: SegmentState,
    schedule: ReductionSchedule,
    tiles: Mapping[Expr, tuple[Tile, SharedBuffer]],
    step: Var,
    compute: Phase,
    prefix: str,
) -> list[Item]:
    """Return the loop over chunks: fetch, barrier, compute, barrier; or a ring of `stages` buffers with one barrier per
    chunk.

    Nothing else uses the buffers of a reduction, so threads need not meet behind the last chunk.
    """
    # Without lockstep there is no machine of such copies, and no dialect prints any.
    behind = state.target.async_copy or not state.target.lockstep

    def fetch(at: Index, guarded: bool) -> list[Item]:
        found: list[Item] = []
        context = state.context(AxisBinding({}, (), (), {}), {})
        for number, (tile, buffer) in enumerate(tiles.values()):
            ring = schedule.stages > 1
            slot, name = as_index(step) % schedule.stages, f"{prefix}fetch{number}"
            phase = fetch_phase(
                tile,
                buffer,
                slot,
                context,
                state.layout.thread,
                name,
                ring and behind,
                state.target.vector_bytes,
                state.aligned,
                state.layout.tables,
            )
            found.append(_at_step(phase, step, at, guarded))
        return found

    if not tiles:
        return [Loop(step, (compute,))] if step.extent > 1 else [compute]
    if schedule.stages == 1:
        body = (*fetch(as_index(step), False), Barrier(), compute, Barrier())
        return [Loop(step, body)] if step.extent > 1 else [*body[: body.index(compute) + 1]]
    ahead = schedule.stages - 1
    items: list[Item] = []
    commit, wait = ((Commit(),), (Wait(ahead - 1),)) if behind else ((), ())
    for early in range(ahead):
        items += [*(fetch(Index(early), False) if early < step.extent else ()), *commit]
    following = fetch(as_index(step) + ahead, True)
    return [*items, Loop(step, (*wait, Barrier(), *following, *commit, compute))]


def _at_step(phase: Phase, step: Var, at: Index, guarded: bool) -> Phase:
    """Return a fetch phase for another chunk than the loop's own, skipped past the end."""
    moved = substitute_phase(phase, {step: at})
    guard = Guard(at, 0, step.extent)
    if not guarded or guard.always:
        return moved
    return Phase(
        moved.kind, moved.name, moved.roots, moved.unrolled, moved.shares, (*moved.when, guard), moved.asynchronous
    )
