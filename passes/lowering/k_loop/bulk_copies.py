"""Pipeline stages that one thread fills by bulk copies (TMA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import evolve, frozen

from ....ir import (
    ALTERNATING,
    LANES,
    MMA_INSTRUCTIONS,
    PERSISTENT,
    TEAMS,
    WIDEST_BYTES,
    Barrier,
    BulkCopy,
    BulkFetch,
    Call,
    DType,
    Guard,
    Index,
    IndexLike,
    Item,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Producer,
    Read,
    SharedBuffer,
    TurnPass,
    TurnWait,
    Var,
    as_index,
    delinearise,
    done_variable,
    turn_variable,
)
from ...geometry import PRODUCER_REGISTERS, producer_share
from ..index_values import resolve
from ..layout import AxisBinding, TensorBox, WalkingBox, are_zero_at_ends, lines_of, operand_box
from .multiply import Multiplication
from .software_pipeline import SharedPipeline

#: The buffers of mbarriers, one for each stage: at which copies complete, and at which warps release the stage.
FULL, EMPTY = "full", "empty"


@frozen
class BulkTile:
    """Tile of an operand, of `lines` boxes along k.

    It has the elements of a stage, a buffer, and the row or column that a block begins with.
    """

    box: TensorBox | WalkingBox
    size: int
    buffer: SharedBuffer
    start: Index
    lines: int


@frozen
class BulkPipeline:
    """Shared-memory pipeline whose stages one thread fills."""

    ring: SharedPipeline
    tiles: tuple[BulkTile, ...]
    places: Mapping[Var, Index]

    @property
    def nbytes(self) -> int:
        """Bytes that fill a stage."""
        return sum(tile.box.map.nbytes * tile.lines * len(tile.box.rows) for tile in self.tiles)

    @property
    def turn(self) -> Var:
        """Number of tiles that a block of a persistent grid computed before."""
        layout = self.ring.state.layout
        return turn_variable(layout.schedule.blocks, layout.launched or layout.schedule.blocks)

    def place(self, at: IndexLike) -> Index:
        """Return the place of K block `at` among those of all tiles."""
        if self.turn.extent == 1:
            return as_index(at)
        turns, trips = self.turn.extent, self.ring.step.extent
        before = as_index(self.turn) * trips if self.ring.until is None else as_index(done_variable(turns, trips))
        return before + at

    def fetch(self, at: Index) -> BulkFetch:
        """Return the copies of K block `at`."""
        stage = self.place(at) % self.ring.schedule.stages
        return BulkFetch(FULL, stage, self.nbytes, self.copies(at, stage))

    def copies(self, at: Index, stage: Index) -> tuple[BulkCopy, ...]:
        """Return the copies of K block `at` to a stage."""
        deep = at * self.ring.schedule.dims[0].block_k
        return tuple(
            BulkCopy(
                tile.box.map.name,
                self._coordinates(tile, row, deep + line * (self.ring.schedule.dims[0].block_k // tile.lines)),
                tile.buffer.name,
                stage * tile.size + (line * len(tile.box.rows) + number) * tile.box.map.elements,
            )
            for tile in self.tiles
            for line in range(tile.lines)
            for number, row in enumerate(tile.box.rows)
        )

    def _coordinates(self, tile: BulkTile, row: int, deep: Index) -> tuple[Index, ...]:
        context = self.ring.state.context(AxisBinding({}, (), (), {}), {})
        return tuple(resolve(c, context) for c in tile.box.coordinates(tile.start + row, deep, self.places))

    def wait(self, at: Index) -> MbarrierWait:
        """Return the wait for K block `at`.

        Each turn of the stages has the other parity.
        """
        stages, place = self.ring.schedule.stages, self.place(at)
        return MbarrierWait(FULL, place % stages, place // stages % 2)


def bulk_pipeline(ring: SharedPipeline) -> BulkPipeline | None:
    """Return the pipeline of bulk copies, and declare its maps and mbarriers.

    None where the schedule does not ask for it, or where tensors lie in memory otherwise than their types say: then
    threads copy.
    """
    tiles = bulk_tiles(ring)
    if tiles is None:
        return None
    layout = ring.state.layout
    layout.buffers[FULL] = SharedBuffer(FULL, DType.U64, ring.schedule.stages)
    if ring.schedule.tma >= PERSISTENT:
        layout.launched = min(layout.schedule.blocks, ring.state.target.NUM_SM)
        several = layout.schedule.blocks > layout.launched and ring.until is None
        layout.teams = TEAMS if ring.schedule.tma == ALTERNATING and several else 1
    return declared_pipeline(ring, tiles)


def declared_pipeline(ring: SharedPipeline, tiles: Sequence[BulkTile]) -> BulkPipeline:
    """Return the pipeline of some tiles, and declare their maps."""
    state, schedule, frame = ring.state, ring.schedule, ring.state.frame
    state.layout.maps += [tile.box.map for tile in tiles]
    others = [d for d in range(len(frame.starts)) if d not in (schedule.rows, schedule.columns)]
    places = {
        axis: place for d in others for axis, place in _tile_coordinates(frame.schedule.dims[d].axes, frame.starts[d])
    }
    return BulkPipeline(ring, tuple(tiles), places)


def bulk_tiles(ring: SharedPipeline, first: int = 0) -> list[BulkTile] | None:
    """Return the tiles of bulk copies, None where threads copy.

    Their maps are numbered from `first` on.
    """
    state, schedule, frame = ring.state, ring.schedule, ring.state.frame
    if not schedule.tma:
        return None
    found: list[BulkTile] = []
    for value, (tile, buffer) in ring.tiles.items():
        operand = value.args[0] if isinstance(value, Call) else value  # a math mode's only part
        if tile.matrix is None or not isinstance(operand, Read) or state.aligned[operand.tensor] % WIDEST_BYTES:
            return None
        storage, kind = state.storages.get(operand.tensor), state.group.tensors[operand.tensor]
        if storage is not None and storage.by * kind.dtype.size % WIDEST_BYTES:
            return None
        pitches = kind.strides if storage is None else storage.strides
        box = operand_box(tile.matrix, operand, schedule, pitches, kind, f"map{first + len(found)}")
        if box is None:
            return None
        if operand is not value:
            box = evolve(box, map=evolve(box.map, rounded=MMA_INSTRUCTIONS[schedule.mma].format))
        start = frame.starts[(schedule.rows, schedule.columns)[tile.matrix.axis]]
        found.append(BulkTile(box, tile.size, buffer, start, lines_of(tile.matrix, schedule)[0]))
    return found if are_zero_at_ends(tile.box for tile in found) else None


def _tile_coordinates(axes: Sequence[Var], start: Index) -> list[tuple[Var, Index]]:
    return list(zip(axes, delinearise(start, [a.extent for a in axes]), strict=True))


def bulk_k_loop(pipeline: BulkPipeline, multiplication: Multiplication) -> list[Item]:
    """Return the K loop of products in place over bulk copies.

        wait for block b; barrier; multiply block b; copy block b + stages - 2; wait for the products of block b - 1

    As with copies of all threads, the products of block b - 2, which read the refilled stage, end before the barrier.
    Partial sums that are promoted end with their K block.
    """
    ring = pipeline.ring
    at, distance, trips = as_index(ring.step), ring.prefetch_distance, ring.step.extent
    first = [guard_bulk_fetch(pipeline.fetch(Index(n)), ring.exists(Index(n))) for n in range(min(distance, trips))]
    later = [guard_bulk_fetch(pipeline.fetch(at + distance), ring.exists(at + distance))] if trips > distance else []
    wait, promotion = multiplication.end_block()
    body = [pipeline.wait(at), Barrier(), *multiplication.issue_products(later), wait, *promotion]
    ring.state.layout.opening += [MbarrierInit(FULL, 1), Barrier()]
    return [*first, *multiplication.initialise_partial(), ring.turns(body), *multiplication.end_products()]


def produced_k_loop(pipeline: BulkPipeline, multiplication: Multiplication) -> list[Item]:
    """Return the K loop of products in place beside a producer.

    Warps meet at mbarriers only:

        producer    for each block b: wait for the release of block b - stages; copy block b
        others      for each block b: wait for block b; multiply it; wait for the products of block b - 1; release that

    Partial sums that are promoted end with their K block, which is then released. Blocks of a persistent grid go on in
    the ring with their next tile, and release all stages of a tile. Teams have the turn until all products of their
    tile are issued.
    """
    ring, layout = pipeline.ring, pipeline.ring.state.layout
    stages, trips, again = ring.schedule.stages, ring.step.extent, pipeline.turn.extent > 1
    at, place = as_index(ring.step), pipeline.place(ring.step)
    free = MbarrierWait(EMPTY, place % stages, (place // stages + 1) % 2)
    items = (ring.turns((free, pipeline.fetch(at))),)
    threads, sums = layout.schedule.threads, prod(dim.thread for dim in ring.state.frame.schedule.dims)
    sums *= 2 if multiplication.is_promoted else 1
    own, others = map(int, producer_share(layout.teams * threads, sums, ring.state.target.registers_per_sm))
    layout.producer.append(Producer(items, own, PRODUCER_REGISTERS if others else 0, others))
    layout.buffers[EMPTY] = SharedBuffer(EMPTY, DType.U64, stages)
    warps = layout.schedule.threads // LANES
    layout.opening += [MbarrierInit(FULL, 1), MbarrierInit(EMPTY, warps), Barrier()]
    wait, promotion = multiplication.end_block()
    unfinished = int(wait.pending > 0)
    begun = Guard(at, unfinished, trips)
    release = MbarrierArrive(EMPTY, (place + stages - unfinished) % stages, () if begun.always else (begun,))
    released = (release,) if trips > (unfinished if again else 1) else ()
    loop = ring.turns((pipeline.wait(at), *multiplication.issue_products(), wait, *released, *promotion))
    begin, passed = ((TurnWait(),), (TurnPass(0, 1),)) if layout.teams > 1 else ((), ())
    end = as_index(trips if ring.until is None else ring.until)
    last = MbarrierArrive(EMPTY, pipeline.place(end + stages - unfinished) % stages)
    ends = (last,) if again and unfinished else ()
    return [*multiplication.initialise_partial(), *begin, loop, *passed, *multiplication.end_products(), *ends]


def guard_bulk_fetch(fetch: BulkFetch, guard: Guard) -> BulkFetch:
    """Return the fetch of a K block, guarded by its existence."""
    return fetch if guard.always else evolve(fetch, when=(guard,))
