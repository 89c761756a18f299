"""Chains in registers: online softmax between the fragments of two contractions.

    fragments of the rows' factor, to registers
    for each part of j:  wait for part;  barrier;  copy part + stages - 1 (cp.async)
                         p = q * k[part];  m' = max(m, max of p);  w = exp(p - m');  t = t * c + sum of w
                         y = y * c + w * v[part]
    y = y / t

The results p lie in the registers of a thread as the rows of four lanes, and the weights w as a first operand of the
second contraction (`geometry.row_sharing`): nothing but the second operands passes through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from attrs import define, evolve

from ....ir import (
    Accumulate,
    Barrier,
    Convert,
    DType,
    Index,
    Item,
    LaneExchange,
    Literal,
    Loop,
    Op,
    PassError,
    RegisterRead,
    RegisterWrite,
    Root,
    Test,
    Value,
    Var,
    Wait,
    as_index,
    reads,
)
from ...geometry import (
    RegisterChain,
    exchanges_lanes,
    mask_bounds,
    maximises_scores,
    reads_shared_matrices,
    register_chain,
    weighs_scores_alone,
)
from ..index_values import value_of
from ..layout import BlockLayout
from ..outputs import emit_outputs
from ..segment_state import SegmentState
from .chain_products import ChainProduct, bulk_pipelines, chain_product, part_stages, stage_variable
from .chained_contraction import instance_phase, part_copies, substitute_parts
from .mask_block_skipping import TakenParts, guard_copies, taken_parts
from .overlapped_parts import BulkParts, OverlappedParts
from .score_masks import ScoreMask, score_masks, split_masks
from .score_scale import ScaledScores, split_scale
from .streamed_rows import StreamedRows, weights_register


def lower_register_chain(layout: BlockLayout, states: Sequence[SegmentState]) -> list[Item]:
    """Return the items of three segments whose values stay in registers.

    Raises `PassError` where the group is no such chain.
    """
    chain = register_chain(layout.group)
    if chain is None:
        raise PassError("chains in registers: expected a contraction, rows of its results, and a product of these")
    return _Chain(layout, chain, *states).items()


@define
class _Chain:
    """Lowering of a chain in registers."""

    layout: BlockLayout
    chain: RegisterChain
    first: SegmentState
    rows: SegmentState
    last: SegmentState

    @property
    def part(self) -> Var:
        """The variable that numbers parts."""
        return self.layout.part or Var("part", 1)

    @property
    def statistics(self) -> StreamedRows:
        """The rows between the contractions."""
        return StreamedRows(self.layout, self.rows, self.chain, self.held_scores, bool(self._end_masks))

    @property
    def held_scores(self) -> ScaledScores:
        """The registers of a part's scores, without their factor.

        Rows whose maximum is of other values than the scores have scores as they are.
        """
        frame, dtype = self.rows.frame, self.layout.group.tensors[self.chain.scores].dtype
        local = Var(f"{frame.prefix}w", frame.schedule.reductions[0].dims[0].block_k)
        place = as_index(frame.tiles[self.chain.rows[1]]), as_index(local)
        return ScaledScores(RegisterRead(self._scores_register, place, dtype), self._score_parts[0])

    @property
    def _score_parts(self) -> tuple[float, Value, tuple[ScoreMask, ...]]:
        """The factor of scores, the rest of their epilogue, and masks on their indices."""
        first, (output,) = self.first, self.first.frame.segment.outputs
        value = _wide(value_of(output.body, first.context(first.bind((), (), ()), {})))
        alone = maximises_scores(self.rows.frame.segment, self.chain.scores)
        factor, value = split_scale(value) if alone else (1.0, value)
        value, masks = split_masks(value, first.frame.tiles)
        return factor, _wide(value), (*masks, *self._end_masks)

    @property
    def _end_masks(self) -> tuple[ScoreMask, ...]:
        """The masks of scores beyond the end of their row, where -inf stands for a missing score."""
        if not weighs_scores_alone(self.rows.frame.segment, self.chain.scores):
            return ()
        end = self.first.bind((), (), ()).valid.get(self.first.frame.tiles[self.chain.column])
        return score_masks((end,), self.first.frame.tiles) or () if end is not None else ()

    def items(self) -> list[Item]:
        """Return all items."""
        first, rows, last = self.first, self.rows, self.last
        for state in (first, rows, last):
            state.shares = {s.var: s for s in state.frame.shares}
        self._hold_elements()
        in_place = reads_shared_matrices(first.frame.schedule.reductions[0].mma)
        taken = taken_parts(self.layout, last, mask_bounds(self.layout.group), before=int(in_place))
        scores = self._product(first, Index(), taken.place)
        last.staged_elements = dict(first.staged_elements)
        sums = self._product(last, as_index(self.part), taken.place)
        begin: list[Item] = [
            instance_phase(rows, "begin", map(rows.initialise, rows.frame.segment.reductions)),
            instance_phase(last, "begin", map(last.initialise, last.frame.segment.reductions)),
        ]
        return [*begin, *self._loop(scores, sums, taken), *self._epilogue()]

    def _product(self, state: SegmentState, start: Index, place: Var) -> ChainProduct:
        """Return a contraction whose K block begins at a number of K blocks."""
        column = state.frame.segment.axes[self.chain.column if state is self.first else self.chain.width]
        schedule = state.frame.schedule.reductions[0]
        stage = stage_variable(schedule.stages) if reads_shared_matrices(schedule.mma) else place % schedule.stages
        return chain_product(state, 0, start, (self.part, place, as_index(stage)), column)

    def _loop(self, scores: ChainProduct, sums: ChainProduct, taken: TakenParts) -> list[Item]:
        """Return the loop over parts, with the second operands in a ring of stages."""
        if reads_shared_matrices(scores.product.schedule.mma):
            return self._overlapped_loop(scores, sums, taken)
        part, (early, late) = self.part, (scores.copies, sums.copies)
        commit, waits = early.commit, early.is_asynchronous

        def wait(pending: int) -> list[Item]:
            return [*([Wait(pending)] if waits else []), Barrier()]

        if part.extent == 1:
            copied = [*early.fetch(Index()).whole, *commit, *late.fetch(Index()).whole, *commit]
            head = [*scores.rows_loads, *copied, *wait(1), *self._scores(scores), *self.statistics.items()]
            return [*head, *wait(0), sums.product.with_held_rows(weights_register(self.chain))]

        place, until = taken.place, taken.until

        def copies(at: Index) -> list[Item]:
            every = (*early.fetch(as_index(place)).whole, *late.fetch(as_index(place)).whole)
            return [*guard_copies([part_copies(item, part, taken.values(at)) for item in every], at, until), *commit]

        rows = self.statistics
        work = [*self._scores(scores), *rows.maxima(), rows.rescale(self.last), *rows.weights()]
        work.append(sums.product.with_held_rows(weights_register(self.chain)))
        work = substitute_parts(work, taken.values(as_index(place)))
        distance = early.schedule.stages - 1
        begin = [*scores.rows_loads, *(item for n in range(distance) for item in copies(Index(n)))]
        loop = Loop(place, (*wait(distance - 1), *copies(as_index(place) + distance), *work), until)
        if until is None:
            return [*begin, loop]
        # A block without parts has copied its rows all the same.
        return [*begin, loop, *([Wait(0)] if waits else [])]

    def _overlapped_loop(self, scores: ChainProduct, sums: ChainProduct, taken: TakenParts) -> list[Item]:
        """Return the parts of products of warpgroups."""
        (reduction,), until = self.first.frame.segment.reductions, taken.until
        zero = instance_phase(self.first, "zero", [self.first.initialise(reduction)])
        last = as_index(until) if until is not None else Index(self.part.extent - 1)
        pipelines = bulk_pipelines((scores.rows, scores.copies, sums.copies))
        stages = part_stages(self.layout, taken, scores.copies.schedule.stages)
        bulk = None if pipelines is None else BulkParts(pipelines[0], (pipelines[1], pipelines[2]), taken, stages)
        parts = OverlappedParts(
            scores, sums, self.statistics, self.last, taken, last, zero, self._score_epilogue(),
            weights_register(self.chain), stages, bulk,
        )  # fmt: skip
        return parts.items()

    def _scores(self, scores: ChainProduct) -> list[Item]:
        """Return the products of a part, and their epilogue into registers."""
        (reduction,) = self.first.frame.segment.reductions
        zero = instance_phase(self.first, "zero", [self.first.initialise(reduction)])
        return [zero, *scores.steps, *self._score_epilogue()]

    def _score_epilogue(self) -> list[Item]:
        """Return the phases that leave the scores of a part in registers."""
        (row, column), frame, value = (self.chain.rows[0], self.chain.column), self.first.frame, self._score_parts[1]
        at = as_index(frame.tiles[row]), as_index(frame.tiles[column])
        shape = frame.schedule.dims[row].thread, frame.schedule.dims[column].thread
        kept = RegisterWrite(self._scores_register, at, shape, value, DType.F32)
        found: list[Item] = [instance_phase(self.first, "scores", [kept])]
        held = RegisterRead(self._scores_register, at, DType.F32)
        for number, mask in enumerate(self._score_parts[2]):
            masked = Op("select", (Test((mask.bound,)), held, Literal(-inf, DType.F32)), DType.F32)
            phase = instance_phase(self.first, f"mask{number}", [evolve(kept, value=masked)])
            found.append(evolve(phase, when=(*phase.when, *mask.when)))
        return found

    @property
    def _scores_register(self) -> str:
        return f"{self.chain.scores}.held"

    def _hold_elements(self) -> None:
        """Let rows and the last segment read the registers of the segments before them."""
        chain, rows, last = self.chain, self.rows, self.last
        for read in {r for body in rows.frame.segment.expressions for r in reads(body) if r.tensor == chain.scores}:
            rows.held[read] = self.held_scores.value
        for read in {r for body in last.frame.segment.expressions for r in reads(body)}:
            if read.tensor == chain.weights:
                at = as_index(last.frame.tiles[chain.rows[2]]), Index()
                last.held[read] = self._narrow(RegisterRead(weights_register(chain), at, DType.F32), read.tensor)
            elif read.tensor in self.layout.group.shared:
                held = self.statistics.row_register(f"{read.tensor}.held", last)
                last.held[read] = self._narrow(held, read.tensor)

    def _narrow(self, value: Value, tensor: str) -> Value:
        dtype = self.layout.group.tensors[tensor].dtype
        return value if dtype is DType.F32 else Convert(value, dtype)

    def _epilogue(self) -> list[Item]:
        """Return the division by a number of each row, and the outputs."""
        rows, last, found = self.rows, self.last, list[Item]()
        context = rows.context(rows.bind((), (), ()), {})
        if (scale := self.held_scores.factor) != 1:
            found.append(self.statistics.rescaled_maximum(scale))
        if self.chain.divisor is not None:
            name, (reduction,) = f"{self.chain.weights}.divisor", last.frame.segment.reductions
            divisor = _wide(value_of(self.chain.divisor, context))
            found.append(self._keep(name, Op("div", (Literal(1.0, DType.F32), divisor), DType.F32)))
            tiles, factor = tuple(map(as_index, last.frame.tiles)), self.statistics.row_register(name, last)
            divided: Root = Accumulate(reduction.name, tiles, "prod", factor, (), DType.F32)
            found.append(instance_phase(last, "divided", [divided]))
        (results,), loop = last.frame.segment.reductions, last.frame.schedule.reductions[0]
        if exchanges_lanes(results, loop, last.frame.schedule.dims, [results.name]):
            found.append(LaneExchange(results.name, loop.columns))
        passed = [o for o in rows.frame.segment.outputs if o.tensor in self.layout.group.shared]
        for output in (o for o in passed if not o.extra):
            found.append(self._keep(f"{output.tensor}.held", _wide(value_of(output.body, context))))
        emit_outputs(rows, [o for o in rows.frame.segment.outputs if o not in passed])
        emit_outputs(last, last.frame.segment.outputs)
        return [*found, *rows.items, *last.items]

    def _keep(self, name: str, value: Value) -> Item:
        """Return the phase that keeps a number of each row."""
        frame = self.rows.frame
        at, shape = tuple(map(as_index, frame.tiles)), tuple(d.thread for d in frame.schedule.dims)
        return instance_phase(self.rows, name.rpartition(".")[2], [RegisterWrite(name, at, shape, value, DType.F32)])


def _wide(value: Value) -> Value:
    """Return a value as registers hold it."""
    return value if value.dtype is DType.F32 else Convert(value, DType.F32)
