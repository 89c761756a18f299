"""Contractions of a chain in registers: products, copies of factors, stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from ....ir import (
    LANES,
    PERSISTENT,
    Barrier,
    BulkCopy,
    BulkFetch,
    DType,
    Expr,
    Guard,
    Index,
    Item,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Producer,
    ProductCommit,
    SharedBuffer,
    Value,
    Var,
    as_index,
    done_variable,
    expr_variables,
    operands,
    turn_variable,
)
from ...geometry import PRODUCER_REGISTERS, persistent_blocks, producer_share
from ..k_loop import (
    EMPTY,
    FULL,
    BulkPipeline,
    Multiplication,
    SharedPipeline,
    bulk_tiles,
    declared_pipeline,
    multiplication,
    staged_tiles,
    tile_load,
)
from ..layout import BlockLayout, Tile
from ..segment_state import SegmentState
from .mask_block_skipping import TakenParts, alternate_turns


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
        begins = bool(self.rows.tiles) or self.product.is_promoted
        return [*(self.product.step_in_place(number, begins) for number in steps), ProductCommit()]


@frozen
class PartStages:
    """Stages of a chain's parts, and their mbarriers.

    The last mbarrier is that of the rows' factors, which all parts read. Blocks of a persistent grid go on in the ring
    with their next tile, after `tiles` of `before` parts in all.
    """

    count: int
    tiles: Index = Index()
    before: Index = Index()

    @property
    def is_persistent(self) -> bool:
        """True in a persistent grid, where another tile may follow."""
        return self.tiles != Index()

    @property
    def variable(self) -> Var:
        """The variable that stands for the stage of a part."""
        return stage_variable(self.count)

    def stage(self, number: Index) -> Index:
        """Return the stage of a part."""
        return (self.before + number) % self.count

    def wait(self, number: Index) -> MbarrierWait:
        """Return the wait for a part."""
        return MbarrierWait(FULL, self.stage(number), (self.before + number) // self.count % 2)

    @property
    def wait_rows(self) -> MbarrierWait:
        """The wait for the rows' factors."""
        return MbarrierWait(FULL, Index(self.count), self.tiles % 2)

    def release(self, number: Index, when: tuple[Guard, ...] = ()) -> MbarrierArrive:
        """Return the release of a part's stage."""
        return MbarrierArrive(EMPTY, self.stage(number), when)

    @property
    def release_rows(self) -> list[Item]:
        """The release of the rows' factors, where another tile may follow."""
        return [MbarrierArrive(EMPTY, Index(self.count))] if self.is_persistent else []

    def fetch(self, number: Index, nbytes: int, copies: tuple[BulkCopy, ...]) -> tuple[Item, ...]:
        """Return the copies of a part, after the release of its stage.

        The first part of all finds it free.
        """
        place = self.before + number
        free = MbarrierWait(EMPTY, self.stage(number), (place // self.count + 1) % 2)
        fetch = BulkFetch(FULL, self.stage(number), nbytes, copies)
        return (fetch,) if place.is_const else (free, fetch)

    def fetch_rows(self, rows: Sequence[BulkPipeline]) -> list[Item]:
        """Return the copies of the rows' factors."""
        copies = tuple(copy for p in rows for copy in p.copies(Index(), Index()))
        free = [MbarrierWait(EMPTY, Index(self.count), (self.tiles + 1) % 2)] if self.is_persistent else []
        return [*free, BulkFetch(FULL, Index(self.count), sum(p.nbytes for p in rows), copies)]

    def declare(self, layout: BlockLayout, items: Sequence[Item], held: int, registers: int) -> None:
        """Declare the mbarriers, and the producer of some items.

        The threads beside it hold so many numbers each.
        """
        own, others = map(int, producer_share(layout.schedule.threads, held, registers))
        layout.producer.append(Producer(tuple(items), own, PRODUCER_REGISTERS if others else 0, others))
        layout.buffers |= {name: SharedBuffer(name, DType.U64, self.count + 1) for name in (FULL, EMPTY)}
        layout.opening += [MbarrierInit(FULL, 1), MbarrierInit(EMPTY, layout.schedule.threads // LANES), Barrier()]


def part_stages(layout: BlockLayout, taken: TakenParts, count: int) -> PartStages:
    """Return the stages of the parts that a block takes.

    Where tiles have different numbers of parts, long and short ones alternate.
    """
    blocks, until, extent = layout.schedule.blocks, taken.until, taken.part.extent
    turn = turn_variable(blocks, layout.launched or blocks)
    if turn.extent == 1:
        return PartStages(count)
    if until is None:
        return PartStages(count, as_index(turn), as_index(turn) * extent)
    alternate_turns(layout)
    done = done_variable(turn.extent, until.extent - 1)
    return PartStages(count, as_index(turn), as_index(done) + as_index(turn) * (extent + 1 - until.extent))


def stage_variable(count: int) -> Var:
    """Return the variable that stands for the stage of a part."""
    return Var("stage", count)


def chain_product(
    state: SegmentState, number: int, start: Index, parts: tuple[Var, Var, Index], column: Var | None,
    staged_again: Callable[[Var, Index], dict[Expr, Value]] | None = None,
) -> ChainProduct:  # fmt: skip
    """Return contraction `number` of a segment, and declare its tiles.

    Its K block begins at `start` K blocks. `parts` number parts, and parts in the order of computation, and are the
    stage of a part. A factor without the axis `column` is copied once. `staged_again` returns factors that other
    products have staged, at a place of the K block and a stage.
    """
    frame, (part, step, slot) = state.frame, parts
    reduction, schedule = frame.segment.reductions[number], frame.schedule.reductions[number]
    (dim,), prefix = schedule.dims, f"{frame.prefix}r{number}"
    local = Var(f"{prefix}k0", dim.block_k)
    binding = state.bind((dim,), (local,), (start * dim.block_k,))
    once = {e for e in operands(reduction, (reduction.name,)) if column and column not in expr_variables(e)}
    tiles = staged_tiles(state, reduction, schedule, binding, prefix, once)
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
        SharedPipeline(state, schedule, ring, step, prefix, early=True),
        SharedPipeline(state, evolve(schedule, stages=1), rows, step, f"{prefix}q", early=True),
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
    layout, first = rings[0].state.layout, rings[0]
    if first.schedule.tma == PERSISTENT:
        layout.launched = persistent_blocks(layout.schedule.blocks, layout.target.NUM_SM)
    return [declared_pipeline(ring, own) for ring, own in zip(rings, tiles, strict=True)]
