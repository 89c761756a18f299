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

from attrs import define, evolve, frozen

from ....ir import (
    Accumulate,
    Barrier,
    Convert,
    DType,
    Index,
    Item,
    Literal,
    Loop,
    Op,
    PassError,
    RegisterRead,
    RegisterWrite,
    Root,
    SharedBuffer,
    Value,
    Var,
    Wait,
    as_index,
    expr_variables,
    operands,
    reads,
)
from ...geometry import RegisterChain, geometry_of, mask_bound, register_chain, skipped_elements
from ..index_values import value_of
from ..k_loop import Multiplication, SharedPipeline, multiplication, staged_tiles, tile_load
from ..layout import BlockLayout
from ..outputs import emit_output
from ..segment_state import SegmentState
from .chained_contraction import instance_phase, part_copies
from .mask_block_skipping import SKIPPED_SUMS_BUFFER, guard_copies, skipped_terms, streamed_loop_end
from .streamed_rows import StreamedRows, weights_register


def lower_register_chain(layout: BlockLayout, states: Sequence[SegmentState]) -> list[Item]:
    """Return the items of three segments whose values stay in registers.

    Raises `PassError` where the group is no such chain.
    """
    chain = register_chain(layout.group)
    if chain is None:
        raise PassError("chains in registers: expected a contraction, rows of its results, and a product of these")
    return _Chain(layout, chain, *states).items()


@frozen
class _Product:
    """A contraction of the chain, the copies of its second factor, and those of its first one, if it is staged."""

    product: Multiplication
    copies: SharedPipeline
    rows: SharedPipeline

    @property
    def steps(self) -> list[Item]:
        """The products of a part."""
        steps = range(self.product.steps)
        return [self.product.whole()] if self.rows.tiles else [self.product.step_of_rows(n) for n in steps]

    @property
    def rows_loads(self) -> list[Item]:
        """The loads of the first factor: to registers, or to shared memory."""
        steps = range(self.product.steps)
        return [*self.rows.fetch(Index()).whole] if self.rows.tiles else [self.product.load_rows(n) for n in steps]


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
        return StreamedRows(self.layout, self.rows, self.chain)

    def items(self) -> list[Item]:
        """Return all items."""
        first, rows, last = self.first, self.rows, self.last
        for state in (first, rows, last):
            state.shares = {s.var: s for s in state.frame.shares}
        self._hold_elements()
        scores = self._product(first, Index())
        last.staged_elements = dict(first.staged_elements)
        sums = self._product(last, as_index(self.part))
        begin: list[Item] = [
            instance_phase(rows, "begin", map(rows.initialise, rows.frame.segment.reductions)),
            instance_phase(last, "begin", map(last.initialise, last.frame.segment.reductions)),
            *scores.rows_loads,
        ]
        return [*begin, *self._loop(scores, sums), *self._epilogue()]

    def _product(self, state: SegmentState, start: Index) -> _Product:
        """Return a contraction whose K block begins at a number of K blocks."""
        (reduction,), (schedule,) = state.frame.segment.reductions, state.frame.schedule.reductions
        (dim,), prefix = schedule.dims, f"{state.frame.prefix}r0"
        local = Var(f"{prefix}k0", dim.block_k)
        binding = state.bind((dim,), (local,), (start * dim.block_k,))
        column = self.chain.column if state is self.first else self.chain.width
        once = {
            e
            for e in operands(reduction, (reduction.name,))
            if state.frame.segment.axes[column] not in expr_variables(e)
        }
        tiles = staged_tiles(state, reduction, schedule, binding, prefix, once)
        slot = as_index(self.part) % schedule.stages
        staged = {e: tile_load(tile, buffer, Index() if e in once else slot) for e, (tile, buffer) in tiles.items()}
        covered = {operand: tile.covered for operand, (tile, _) in tiles.items()}
        product = multiplication(state, reduction, schedule, binding, local, self.part, staged, covered, prefix)
        ring, rows = ({e: t for e, t in tiles.items() if (e in once) == alone} for alone in (False, True))
        return _Product(
            product,
            SharedPipeline(state, schedule, ring, self.part, prefix, early=True),
            SharedPipeline(state, evolve(schedule, stages=1), rows, self.part, f"{prefix}q", early=True),
        )

    def _loop(self, scores: _Product, sums: _Product) -> list[Item]:
        """Return the loop over parts, with the second operands in a ring of stages."""
        part, (early, late) = self.part, (scores.copies, sums.copies)
        commit, waits = early.commit, early.is_asynchronous

        def wait(pending: int) -> list[Item]:
            return [*([Wait(pending)] if waits else []), Barrier()]

        if part.extent == 1:
            copied = [*early.fetch(Index()).whole, *commit, *late.fetch(Index()).whole, *commit]
            head = [*copied, *wait(1), *self._scores(scores), *self.statistics.items()]
            return [*head, *wait(0), sums.product.with_held_rows(weights_register(self.chain))]

        until = streamed_loop_end(self.layout, self.last)
        if mask_bound(self.layout.group) is not None:
            elements = skipped_elements(geometry_of(self.layout.group, self.layout.schedule)[-1])
            self.layout.buffers[SKIPPED_SUMS_BUFFER] = SharedBuffer(SKIPPED_SUMS_BUFFER, DType.F32, int(elements))

        def copies(at: Index) -> list[Item]:
            every = (*early.fetch(as_index(part)).whole, *late.fetch(as_index(part)).whole)
            return [*guard_copies([part_copies(item, part, at) for item in every], at, until), *commit]

        work = [*self._scores(scores), *self.statistics.items(), self.statistics.rescale(self.last)]
        work.append(sums.product.with_held_rows(weights_register(self.chain)))
        distance = early.schedule.stages - 1
        begin = [item for n in range(distance) for item in copies(Index(n))]
        loop = Loop(part, (*wait(distance - 1), *copies(as_index(part) + distance), *work), until)
        if until is None:
            return [*begin, loop]
        # A block without parts has copied its rows all the same.
        return [*begin, loop, *([Wait(0)] if waits else []), *skipped_terms(self.last, until)]

    def _scores(self, scores: _Product) -> list[Item]:
        """Return the products of a part, and their epilogue into registers."""
        first, (row, column) = self.first, (self.chain.rows[0], self.chain.column)
        (reduction,), (output,), frame = first.frame.segment.reductions, first.frame.segment.outputs, first.frame
        value = _wide(value_of(output.body, first.context(first.bind((), (), ()), {})))
        at = as_index(frame.tiles[row]), as_index(frame.tiles[column])
        shape = frame.schedule.dims[row].thread, frame.schedule.dims[column].thread
        kept = RegisterWrite(self._scores_register, at, shape, value, DType.F32)
        return [
            instance_phase(first, "zero", [first.initialise(reduction)]),
            *scores.steps,
            instance_phase(first, "scores", [kept]),
        ]

    @property
    def _scores_register(self) -> str:
        return f"{self.chain.scores}.held"

    def _hold_elements(self) -> None:
        """Let rows and the last segment read the registers of the segments before them."""
        chain, rows, last = self.chain, self.rows, self.last
        place = as_index(rows.frame.tiles[chain.rows[1]]), as_index(self.statistics.local)
        for read in {r for body in rows.frame.segment.expressions for r in reads(body) if r.tensor == chain.scores}:
            rows.held[read] = self._narrow(RegisterRead(self._scores_register, place, DType.F32), read.tensor)
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
        if self.chain.divisor is not None:
            name, (reduction,) = f"{self.chain.weights}.divisor", last.frame.segment.reductions
            divisor = _wide(value_of(self.chain.divisor, context))
            found.append(self._keep(name, Op("div", (Literal(1.0, DType.F32), divisor), DType.F32)))
            tiles, factor = tuple(map(as_index, last.frame.tiles)), self.statistics.row_register(name, last)
            divided: Root = Accumulate(reduction.name, tiles, "prod", factor, (), DType.F32)
            found.append(instance_phase(last, "divided", [divided]))
        for number, output in enumerate(rows.frame.segment.outputs):
            if output.tensor not in self.layout.group.shared:
                emit_output(rows, output, f"out{number}")
            elif not output.extra:
                found.append(self._keep(f"{output.tensor}.held", _wide(value_of(output.body, context))))
        rows.flush("exit")
        for number, output in enumerate(last.frame.segment.outputs):
            emit_output(last, output, f"out{number}")
        last.flush("exit")
        return [*found, *rows.items, *last.items]

    def _keep(self, name: str, value: Value) -> Item:
        """Return the phase that keeps a number of each row."""
        frame = self.rows.frame
        at, shape = tuple(map(as_index, frame.tiles)), tuple(d.thread for d in frame.schedule.dims)
        return instance_phase(self.rows, name.rpartition(".")[2], [RegisterWrite(name, at, shape, value, DType.F32)])


def _wide(value: Value) -> Value:
    """Return a value as registers hold it."""
    return value if value.dtype is DType.F32 else Convert(value, DType.F32)
