"""Software-pipelined K loop with multi-stage shared-memory buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import evolve, frozen

from ....ir import (
    HALF_BYTES,
    MATH_MODES,
    WIDEST_BYTES,
    Barrier,
    Commit,
    Expr,
    Guard,
    Index,
    Item,
    Load,
    Loop,
    MathMode,
    Phase,
    ProxyFence,
    Reduction,
    ReductionSchedule,
    Root,
    SharedBuffer,
    Store,
    Value,
    Var,
    Wait,
    as_index,
    call,
    clamp,
    dtype_of,
    operands,
)
from ...geometry import MIN_COPY_BYTES, matrix_tile, promotion_depth, reads_shared_matrices
from ..fetch import fetch_phase
from ..layout import AxisBinding, Tile, stage
from ..segment_state import SegmentState
from ..substitute_phase import substitute_phase
from .multiply import Multiplication
from .register_staging import load_before_computing, register_staging_phases, split_element_moves


def staged_tiles(
    state: SegmentState,
    reduction: Reduction,
    schedule: ReductionSchedule,
    binding: AxisBinding,
    prefix: str,
    once: Collection[Expr] = (),
) -> dict[Expr, tuple[Tile, SharedBuffer]]:
    """Lay out the tile of each staged operand, and declare its buffer.

    Operands that are staged `once` have one stage.
    A barrier separates segments, so that the buffers of one reuse the memory of another.
    """
    own, alone = [r.name for r in state.frame.segment.reductions], len(state.group.segments) == 1
    parts = operands(reduction, own)
    shapes = {t: kind.steps for t, kind in state.group.tensors.items()}
    tiles: dict[Expr, tuple[Tile, SharedBuffer]] = {}
    for choice in schedule.staging:
        operand = parts[choice.operand]
        dims = state.frame.schedule.dims
        matrix = matrix_tile(reduction, schedule, dims, choice, own, alone) if schedule.mma else None
        boxed = bool(schedule.mma) and not alone and matrix is None
        tile = stage(operand, shapes, binding, choice, f"{prefix}c{choice.operand}_", matrix, boxed)
        name, dtype = f"{prefix}s{choice.operand}", dtype_of(operand, state.group.tensors)
        elements = tile.size * (1 if operand in once else schedule.stages)
        if len(state.group.segments) > 1 and matrix is None:
            name, tile = f"staged_{dtype}", evolve(tile, base=state.staged_elements.get(dtype, 0))
            together = WIDEST_BYTES // dtype.size
            elements = state.staged_elements[dtype] = tile.base + -(-elements // together) * together
            known = state.layout.buffers.get(name)
            elements = max(elements, known.elements if known else 0)
        buffer = SharedBuffer(name, dtype, elements)
        if matrix is not None:
            layout = matrix.layout
            buffer = SharedBuffer(name, dtype, elements, layout.extent, layout.depth, layout.swizzle, layout.deep)
        rounded = schedule.tma and len(MATH_MODES[reduction.math].parts) == 1 if reduction.math else False
        if matrix is not None and reduction.math and (rounded or not matrix.held):
            found = _part_tiles(operand, tile, buffer, MATH_MODES[reduction.math])
        else:
            found = {operand: (tile, buffer)}
        state.layout.buffers |= {b.name: b for _, b in found.values()}
        tiles |= found
    return tiles


def _part_tiles(
    operand: Expr, tile: Tile, buffer: SharedBuffer, mode: MathMode
) -> dict[Expr, tuple[Tile, SharedBuffer]]:
    """Return the tiles of an operand's parts in a math mode, each a matrix of its own."""
    return {
        call(fn, operand): (evolve(tile, value=call(fn, tile.value)), evolve(buffer, name=buffer.name + "p" * number))
        for number, fn in enumerate(mode.parts)
    }


def tile_load(tile: Tile, buffer: SharedBuffer, slot: Index) -> Value:
    """Return the load of a staged operand from one pipeline stage."""
    return Load("shared", buffer.name, slot * tile.size + tile.address(tile.uses), buffer.dtype)


@frozen
class FetchPhases:
    """Phases that fill a pipeline stage.

    Tiles are copied, or loaded into registers and stored from there (register staging).
    """

    copied: tuple[Phase, ...]
    loaded: tuple[Phase, ...] = ()
    stored: tuple[Phase, ...] = ()

    @property
    def whole(self) -> tuple[Phase, ...]:
        """All phases in order."""
        return (*self.copied, *self.loaded, *self.stored)


@frozen
class SharedPipeline:
    """Shared-memory pipeline of a reduction's staged operands.

    The variable `step` numbers the K blocks, up to the definition `until`, where there is one. Copies of several stages
    are asynchronous; those of one where `early`, or where registers would hold their elements in another type. Copies
    pass L1, which serves a factor that blocks of products share: those load it.
    """

    state: SegmentState
    schedule: ReductionSchedule
    tiles: Mapping[Expr, tuple[Tile, SharedBuffer]]
    step: Var
    prefix: str
    early: bool = False
    until: Var | None = None

    @property
    def is_asynchronous(self) -> bool:
        """True where copies are asynchronous."""
        # Without lockstep there is no asynchronous-copy hardware, and no dialect prints such copies.
        return self.state.target.async_copy or not self.state.target.lockstep

    @property
    def prefetch_distance(self) -> int:
        """Prefetch distance in K blocks.

        Where products read stages in place, those of the K block before may be unfinished, unless sums are promoted or
        no stage is refilled.
        """
        stages, mma = self.schedule.stages, self.schedule.mma
        if not reads_shared_matrices(mma):
            return stages - 1
        unfinished = not promotion_depth(self.state.frame.segment.reductions[0], mma)
        return stages - 1 - unfinished if self.step.extent > stages else self.step.extent

    @property
    def commit(self) -> tuple[Item, ...]:
        """The item that closes the copy group of a K block."""
        return (Commit(),) if self.is_asynchronous else ()

    @property
    def wait(self) -> tuple[Item, ...]:
        """Wait and barrier before the oldest prefetched K block is read."""
        return (*((Wait(self.prefetch_distance - 1),) if self.is_asynchronous else ()), Barrier())

    def _copies_past_registers(self, tile: Tile, buffer: SharedBuffer) -> bool:
        """Return whether copies of a tile are asynchronous, where the target has such copies."""
        alone = len(self.state.group.segments) == 1 and not self.schedule.mma
        narrow = buffer.dtype.size < MIN_COPY_BYTES and alone
        return self.schedule.stages > 1 or self.early or tile.matrix is not None or narrow

    def exists(self, at: Index) -> Guard:
        """Return the condition that K block `at` exists."""
        if self.until is None:
            return Guard(at, 0, self.step.extent)
        return Guard(as_index(self.until) - at - 1, 0, self.until.extent)

    def fetch(self, at: Index) -> FetchPhases:
        """Return the phases that fill the stage of K block `at`."""
        slot = Var(f"{self.prefix}slot", self.schedule.stages)
        # The slot counts on past the last K block, beyond the proven range of `step`.
        moved = {self.step: at, slot: at % self.schedule.stages}
        kinds: tuple[list[Phase], ...] = ([], [], [])
        for number, (tile, buffer) in enumerate(self.tiles.values()):
            phases = self._phases(tile, buffer, as_index(slot), f"{self.prefix}fetch{number}")
            for kind, phase in zip(kinds[len(phases) - 1 :], phases, strict=False):
                kind.append(substitute_phase(phase, moved))
        return FetchPhases(*map(tuple, kinds))

    def _phases(self, tile: Tile, buffer: SharedBuffer, slot: Index, name: str) -> tuple[Phase, ...]:
        """Return the phases of one tile: two with register staging, as where a matrix transposes memory."""
        layout = self.state.layout
        context = self.state.context(AxisBinding({}, (), (), {}), {})
        carried = (
            register_staging_phases(tile, buffer, slot, context, layout.thread, name)
            if tile.staging.register_staged
            or (tile.matrix is not None and not tile.matrix.held and buffer.dtype.size != HALF_BYTES)
            else ()
        )
        return carried or (
            fetch_phase(
                tile,
                buffer,
                slot,
                context,
                layout.thread,
                name,
                self._copies_past_registers(tile, buffer) and self.is_asynchronous,
                bool(tile.staging.l1) or self.schedule.stages == 1,  # other blocks of the SM read the same tile
                self.state.target.vector_bytes,
                self.state.aligned,
            ),
        )

    def prologue(self) -> list[Item]:
        """Return the pipeline's prologue.

        It fetches as many K blocks as are prefetched; with register staging, one is stored and the next one loaded.
        """
        every = [self.fetch(Index(n)) for n in range(min(self.prefetch_distance, self.step.extent))]
        none = [()] * (self.prefetch_distance - len(every))
        copies = [tuple(guard_fetch(p, self.exists(Index(n))) for p in f.copied) for n, f in enumerate(every)]
        copied = [item for phases in (*copies, *none) for item in (*phases, *self.commit)]
        return [*every[0].loaded, *copied, *every[0].stored, *self.load_registers(Index(1))]

    def stage_registers(self, at: Index) -> tuple[Phase, ...]:
        """Return the register-staging phases after the barrier of K block `at`.

        They store the next K block and load the one after it, so that products lie between a load and its store. After
        the last K block they load that one again, unused: the loop has no branches, and no register is possibly unset.
        """
        return (*self.fetch(at + 1).stored, *self.load_registers(at + 2)) if self.step.extent > 1 else ()

    def load_registers(self, at: Index) -> tuple[Phase, ...]:
        """Return a K block's loads into registers, at most the last one's."""
        last = self.step.extent - 1
        return self.fetch(clamp(at, 0, last)).loaded if last else ()

    def loop(self, body: Sequence[Item]) -> list[Item]:
        """Return the K loop, or its body alone for one K block."""
        return [self.turns(body)] if self.step.extent > 1 else [*body]

    def turns(self, body: Sequence[Item]) -> Loop:
        """Return the loop over K blocks.

        One with barriers or matrix instructions runs at least once.
        """
        once = self.until is not None and not self.schedule.is_direct
        return Loop(self.step, tuple(body), self.until, once)


def split_prologue(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the asynchronous prologue copies, and the items without them."""

    def copies(item: Item) -> bool:
        return isinstance(item, Phase) and item.kind == "fetch"

    begin = next((n for n, item in enumerate(items) if copies(item) or isinstance(item, Loop)), len(items))
    end = begin
    while end < len(items) and (copies(items[end]) or isinstance(items[end], Commit)):
        end += 1
    early = list(items[begin:end])
    if not all(item.asynchronous for item in early if isinstance(item, Phase)):
        return [], list(items)
    return early, [*items[:begin], *items[end:]]


def k_loop(pipeline: SharedPipeline, compute: Phase) -> list[Item]:
    """Return the K loop with one barrier per K block.

    A single buffer takes two: fetch, barrier, compute, barrier. Nothing else uses the buffers of a reduction, so that
    no barrier follows the last K block.
    """
    at = as_index(pipeline.step)
    if not pipeline.tiles:
        return pipeline.loop([compute])
    if pipeline.schedule.stages == 1:
        closing: tuple[Item, ...] = (Barrier(),) if pipeline.step.extent > 1 else ()
        phases = [part for phase in pipeline.fetch(at).whole for part in load_before_computing(phase)]
        waits = (Commit(), Wait(0)) if any(phase.asynchronous for phase in phases) else ()
        return pipeline.loop([*phases, *waits, Barrier(), compute, *closing])
    later = pipeline.fetch(at + pipeline.prefetch_distance).copied
    following = [guard_fetch(phase, pipeline.exists(at + pipeline.prefetch_distance)) for phase in later]
    if pipeline.schedule.mma:
        moves = [split_element_moves(phase) for phase in following]
        begun, stores = [phase for phase, *_ in moves], [phase for _, *rest in moves for phase in rest]
    else:
        begun, stores = [part for phase in following for part in load_before_computing(phase)], []
    turn = (*pipeline.wait, *pipeline.stage_registers(at), *begun, *pipeline.commit, compute, *stores)
    return [*pipeline.prologue(), pipeline.turns(turn)]


def warpgroup_k_loop(pipeline: SharedPipeline, multiplication: Multiplication) -> list[Item]:
    """Return the K loop of products that read the stages in place.

    The products of one K block are unfinished while those of the next one are issued:

        wait for block b; barrier; multiply block b; copy block b + stages - 2; wait for the products of block b - 1

    The stage that is refilled was read by the products of block b - 2, which all warps have waited for before the
    barrier. Elements that pass through registers are loaded a K block before they are stored; all single elements
    before any of them is stored. Partial sums that are promoted end with their K block, and copies are a
    K block further ahead.
    """
    at, distance = as_index(pipeline.step), pipeline.prefetch_distance
    end, promotion = multiplication.end_block()
    following: list[Item] = []
    loads: tuple[Phase, ...] = ()
    if pipeline.step.extent > distance:
        later, exists = pipeline.fetch(at + distance), pipeline.exists(at + distance)
        loads = pipeline.load_registers(at + distance + 1)
        moves = [split_element_moves(guard_fetch(phase, exists)) for phase in (*later.stored, *later.copied)]
        following = [*(phase for phase, *_ in moves), *(phase for _, *stores in moves for phase in stores)]
    filled = [
        tuple(guard_fetch(phase, pipeline.exists(Index(n))) for phase in pipeline.fetch(Index(n)).whole)
        if n < pipeline.step.extent
        else ()
        for n in range(distance)
    ]
    begin = [item for phases in filled for item in (*phases, *pipeline.commit)]
    begin += [*(pipeline.load_registers(Index(distance)) if loads else ()), *multiplication.initialise_partial()]
    *waiting, barrier = pipeline.wait
    arrival = (*waiting, ProxyFence())
    products = multiplication.issue_products((*following, *loads, *pipeline.commit))
    if promotion:  # the next K block arrives while products run
        return [*begin, *arrival, pipeline.turns((barrier, *products, *arrival, end, *promotion))]
    return [*begin, pipeline.turns((*arrival, barrier, *products, end)), *multiplication.end_products()]


def stepped_k_loop(pipeline: SharedPipeline, products: Multiplication) -> list[Item]:
    """Return the K loop that multiplies in steps.

    The fragments of each step are loaded, into registers of their own, before the preceding step is multiplied. The
    step after the last one of a K block is the first of the next K block: its wait and barrier come before the
    multiplication of the current last step, so that products hide the barrier, too. For two steps a K block:

        wait; barrier; fetch c + 2; multiply c
            ->  keep step 1 of c; multiply step 0; fetch c + 2; wait; barrier; keep step 0 of c + 1; multiply step 1

    Copies may begin with the first step, and are spread over all but the last one (`spread_copies`). Single elements
    are loaded before it, and stored before the wait.

    A stage is refilled after the barrier that follows all loads from it. After the last K block, its own first step is
    loaded once more, and copies of missing K blocks bring zeros: the loop has no branches.
    """
    at, chunks, steps = as_index(pipeline.step), pipeline.step.extent, products.steps
    items: list[Item] = [*pipeline.prologue(), *pipeline.wait, products.load_fragments(0, Index())]
    later = pipeline.fetch(at + pipeline.prefetch_distance).copied if chunks > pipeline.prefetch_distance else ()
    following = [_zero_filled(phase, at + pipeline.prefetch_distance, chunks) for phase in later]
    moves = [split_element_moves(phase) for phase in following]
    body: list[Item] = [products.load_fragments(1, at), *(phase for phase, *_ in moves), products.step(0)]
    for number in range(1, steps - 1):
        body += [products.load_fragments(number + 1, at), products.step(number)]
    body += [*(phase for _, *stores in moves for phase in stores), *pipeline.commit, *pipeline.wait]
    body += [products.load_fragments(0, clamp(at + 1, 0, chunks - 1)), products.step(steps - 1)]
    return [*items, *pipeline.loop(body), *((Wait(0),) if pipeline.is_asynchronous else ())]


def guard_fetch(phase: Phase, guard: Guard) -> Phase:
    """Return the fetch of a K block, guarded by its existence."""
    return phase if guard.always else evolve(phase, when=(*phase.when, guard))


def _zero_filled(phase: Phase, at: Index, chunks: int) -> Phase:
    """Return the fetch of a K block that brings zeros where there is no such K block, if a copy can, else skips it."""
    guard = Guard(at, 0, chunks)
    if guard.always or not phase.asynchronous:
        return guard_fetch(phase, guard)
    roots: list[Root] = []
    for root in phase.roots:
        if not isinstance(root, Store) or not isinstance(root.value, Load) or root.value.fill != 0:
            return guard_fetch(phase, guard)
        roots.append(evolve(root, value=evolve(root.value, guards=(*root.value.guards, guard))))
    return evolve(phase, roots=tuple(roots))
