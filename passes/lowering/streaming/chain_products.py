"""Contractions of a chain in registers: products, and copies of factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from ....ir import Expr, Index, Item, ProductCommit, SharedBuffer, Value, Var, as_index, expr_variables, operands
from ..k_loop import (
    BulkPipeline,
    Multiplication,
    SharedPipeline,
    bulk_tiles,
    declared_pipeline,
    multiplication,
    staged_tiles,
    tile_load,
)
from ..layout import Tile
from ..segment_state import SegmentState


@frozen
class ChainProduct:
    """A contraction of the chain.

    It has the copies of its second factor, and those of its first one, if that is staged; `tiles` are the tiles of both
    with their buffers.
    """

    product: Multiplication
    copies: SharedPipeline
    rows: SharedPipeline
    tiles: dict[Expr, tuple[Tile, SharedBuffer]]

    @property
    def steps(self) -> list[Item]:
        """The products of a part."""
        steps = range(self.product.steps)
        return [self.product.all_steps()] if self.rows.tiles else [self.product.step_of_rows(n) for n in steps]

    @property
    def rows_loads(self) -> list[Item]:
        """The loads of the first factor: to registers, or to shared memory."""
        steps = range(self.product.steps)
        return [*self.rows.fetch(Index()).whole] if self.rows.tiles else [self.product.load_rows(n) for n in steps]

    @property
    def unfinished(self) -> list[Item]:
        """The unfinished products of a part, and the end of their group."""
        steps = range(self.product.steps)
        begins = bool(self.rows.tiles)
        return [*(self.product.step_in_place(number, begins) for number in steps), ProductCommit()]


def chain_product(
    state: SegmentState, number: int, start: Index, parts: tuple[Var, Var], column: Var | None,
    staged_again: Callable[[Var, Index], dict[Expr, Value]] | None = None,
) -> ChainProduct:  # fmt: skip
    """Return contraction `number` of a segment, and declare its tiles.

    Its K block begins at `start` K blocks. `parts` number parts, and parts in the order of computation. A factor
    without the axis `column` is copied once. `staged_again` returns factors that other products have staged, at a place
    of the K block and a stage.
    """
    frame, (part, turn) = state.frame, parts
    reduction, schedule = frame.segment.reductions[number], frame.schedule.reductions[number]
    (dim,), prefix = schedule.dims, f"{frame.prefix}r{number}"
    local = Var(f"{prefix}k0", dim.block_k)
    binding = state.bind((dim,), (local,), (start * dim.block_k,))
    once = {e for e in operands(reduction, (reduction.name,)) if column and column not in expr_variables(e)}
    tiles = staged_tiles(state, reduction, schedule, binding, prefix, once)
    slot = as_index(turn) % schedule.stages
    staged: dict[Expr, Value] = {
        e: tile_load(tile, buffer, Index() if e in once else slot) for e, (tile, buffer) in tiles.items()
    }
    if staged_again is not None:
        staged |= staged_again(local, slot)
    covered = {operand: tile.covered for operand, (tile, _) in tiles.items()}
    product = multiplication(state, reduction, schedule, binding, local, part, staged, covered, prefix)
    ring, rows = ({e: t for e, t in tiles.items() if (e in once) == alone} for alone in (False, True))
    return ChainProduct(
        evolve(product, turned=staged_again is not None),
        SharedPipeline(state, schedule, ring, turn, prefix, early=True),
        SharedPipeline(state, evolve(schedule, stages=1), rows, turn, f"{prefix}q", early=True),
        tiles,
    )


def bulk_pipelines(rings: Sequence[SharedPipeline]) -> list[BulkPipeline] | None:
    """Return the bulk copies of all pipelines, declared; None where threads copy."""
    tiles, count = [], 0
    for ring in rings:
        own = bulk_tiles(ring, count)
        if own is None:
            return None
        tiles.append(own)
        count += len(own)
    return [declared_pipeline(ring, own) for ring, own in zip(rings, tiles, strict=True)]
