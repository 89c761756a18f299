"""Chains of contractions in registers, with elementwise values between them.

    copy the rows' factors;   copy parts 0 .. stages - 2
    for each part j:   wait for part j;   issue each product of the first segment
                       wait for each in turn;   values of the part, masked and packed;   issue the sums that read them
                       release part j - 1, or copy part j + stages - 1
    wait for the sums

Lanes hold the results of an instruction as the rows of another one, so values never leave the registers. A factor of a
sum that a product of the same part has read is read again in place, with its sides exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attrs import define, evolve, field

from ....ir import (
    Convert,
    DType,
    Expr,
    Guard,
    Index,
    Item,
    Literal,
    Load,
    Op,
    Output,
    PassError,
    RegisterRead,
    RegisterWrite,
    SharedBuffer,
    Test,
    Value,
    Var,
    as_index,
    post_order,
    reads,
    substitute_node,
)
from ...geometry import TileChain, mma_operands, tile_bounds, tile_chain
from ..index_values import value_of
from ..k_loop import SharedPipeline
from ..layout import BlockLayout, Tile
from ..outputs import emit_outputs
from ..segment_state import SegmentState
from .chain_products import ChainProduct, bulk_pipelines, chain_product, part_stages, stage_variable
from .chained_contraction import instance_phase
from .mask_block_skipping import taken_parts
from .score_masks import score_masks
from .tile_numbers import column_numbers, row_numbers
from .tile_parts import TileParts
from .tile_values import split_conditions, with_powers_of_two, without_rounding


def lower_tile_chain(layout: BlockLayout, states: Sequence[SegmentState]) -> list[Item]:
    """Return the items of two segments whose values stay in registers.

    Raises `PassError` where the group is no such chain.
    """
    chain = tile_chain(layout.group)
    if chain is None:
        raise PassError("chains in registers: expected contractions of elementwise results of contractions")
    return _TileChain(layout, chain, states[0], states[1]).items()


@define
class _TileChain:
    """Lowering of a chain of two segments in registers.

    `step` numbers the parts in the order in which they are computed, `tiles` has the staged operands of the first
    segment with their buffers; `numbers` are the values of a row or a column that registers or shared memory hold.
    """

    layout: BlockLayout
    chain: TileChain
    first: SegmentState
    last: SegmentState
    tiles: dict[tuple[int, Expr], tuple[Tile, SharedBuffer]] = field(factory=dict)
    rows: list[SharedPipeline] = field(factory=list)
    rings: list[SharedPipeline] = field(factory=list)
    numbers: dict[Expr, Value] = field(factory=dict)

    @property
    def part(self) -> Var:
        """The variable that numbers parts."""
        return self.layout.part or Var("part", 1)

    @property
    def step(self) -> Var:
        """The variable that numbers parts in the order of computation."""
        return Var("step", self.part.extent)

    @property
    def stage(self) -> Var:
        """The variable that stands for the stage of a part."""
        return stage_variable(self.first.frame.schedule.reductions[0].stages)

    def items(self) -> list[Item]:
        """Return all items."""
        first, last = self.first, self.last
        for state in (first, last):
            state.shares = {s.var: s for s in state.frame.shares}
        self._hold_weights()
        products = [self._product(first, n) for n in range(len(first.frame.segment.reductions))]
        last.staged_elements = dict(first.staged_elements)
        sums = [self._product(last, n) for n in range(len(last.frame.segment.reductions))]
        begin: list[Item] = [
            instance_phase(first, "zero", map(first.initialise, first.frame.segment.reductions)),
            instance_phase(last, "begin", map(last.initialise, last.frame.segment.reductions)),
        ]
        pipelines = bulk_pipelines((*self.rows, *self.rings))
        bulk = None if pipelines is None else (pipelines[: len(self.rows)], pipelines[len(self.rows) :])
        columns, self.numbers = column_numbers(first, self.chain, self.stage) if bulk else ([], {})
        rows, held = row_numbers(first, self.chain)
        self.numbers |= held
        bounds = tile_bounds(self.layout.group.segments, self.chain.column, self.chain.rows)
        taken = taken_parts(self.layout, last, bounds, least=1)
        stages = part_stages(self.layout, taken, self.stage.extent)
        parts = TileParts(
            first, last, taken, stages, products, sums, self.rows, self.rings, bulk, columns, self._values(),
        )  # fmt: skip
        found = [*begin, *rows, *parts.items()]
        emit_outputs(last, last.frame.segment.outputs)
        return [*found, *last.items]

    def _hold_weights(self) -> None:
        """Let the last segment read the registers of the first one's values."""
        for read in {r for body in self.last.frame.segment.expressions for r in reads(body)}:
            if read.tensor in self.chain.weights:
                at = as_index(self.last.frame.tiles[self.chain.rows[1]]), Index()
                held = self.layout.group.tensors[read.tensor].dtype
                self.last.held[read] = Convert(RegisterRead(f"{read.tensor}.held", at, DType.F32), held)

    def _product(self, state: SegmentState, number: int) -> ChainProduct:
        """Return a contraction of a part."""
        own, parts, staged_again = state is self.first, (self.part, self.step, as_index(self.stage)), None
        again = None if own else self.chain.again[number]
        if again is not None:
            staged_again = partial(self._staged_again, number, again)
        column = state.frame.segment.axes[self.chain.column] if own else None
        found = chain_product(state, number, Index() if own else as_index(self.part), parts, column, staged_again)
        if own:
            self.tiles |= {(number, e): tile for e, tile in found.tiles.items()}
        self.rows += [found.rows] if found.rows.tiles else []
        self.rings += [found.copies] if found.copies.tiles else []
        return found

    def _staged_again(self, number: int, again: int, local: Var, slot: Index) -> dict[Expr, Value]:
        """Return the factor of a sum that a product of the part has staged, its sides exchanged."""
        first, last = self.first.frame, self.last.frame
        rows, width = (last.segment.axes[n] for n in (self.chain.rows[1], self.chain.width))
        sides = first.segment.axes[self.chain.rows[0]], first.segment.axes[self.chain.column]
        here = mma_operands(last.segment.reductions[number], (rows,), (width,))
        there = mma_operands(first.segment.reductions[again], (sides[0],), (sides[1],))
        assert here is not None and there is not None, "a chain is made of products"
        tile, buffer = self.tiles[again, there[1]]
        assert tile.matrix is not None, "a warpgroup reads its factors in place"
        address = tile.matrix.address(as_index(local), as_index(last.tiles[self.chain.width]))
        return {here[1]: Load("shared", buffer.name, slot * tile.size + address, buffer.dtype)}

    def _values(self) -> list[tuple[int, list[Item]]]:
        """Return each value's items, with the number of products that they follow, in order."""
        first, frame = self.first, self.first.frame
        context, found = first.context(first.bind((), (), ()), self.numbers), list[tuple[Output, int, Value]]()
        names = [r.name for r in frame.segment.reductions]
        for output in frame.segment.outputs:
            value = value_of(output.body, context)
            read = {n.name for n in post_order([value]) if isinstance(n, RegisterRead)}
            found.append((output, 1 + max(names.index(name) for name in read & {*names}), value))
        known: dict[Value, Value] = {}
        items = []
        for output, count, value in sorted(found, key=lambda each: each[1]):
            plain, guards = split_conditions(without_rounding(_wide(value)))
            held = RegisterRead(f"{output.tensor}.held", self._place, DType.F32)
            phases = self._value_phases(output, held, substitute_node(plain, {}, dict(known)), guards)
            items.append((count, phases))
            known[plain] = held
        return items

    @property
    def _place(self) -> tuple[Index, Index]:
        tiles = self.first.frame.tiles
        return as_index(tiles[self.chain.rows[0]]), as_index(tiles[self.chain.column])

    def _value_phases(self, output: Output, held: RegisterRead, value: Value, guards: Sequence[Guard]) -> list[Item]:
        """Return the phases that leave a value of a part in registers, and set masked elements to 0."""
        frame, name = self.first.frame, f"{output.tensor}.held"
        shape = tuple(frame.schedule.dims[n].thread for n in (self.chain.rows[0], self.chain.column))
        write = RegisterWrite(name, self._place, shape, with_powers_of_two(value), DType.F32)
        number = frame.segment.outputs.index(output)
        found: list[Item] = [instance_phase(self.first, f"value{number}", [write])]
        end = self.first.bind((), (), ()).valid.get(frame.tiles[self.chain.column])
        every = (*guards, *(() if end is None else (end,)))
        masks = score_masks(every, frame.tiles)
        if masks is None:
            masked = Op("select", (Test(every), held, Literal(0.0, DType.F32)), DType.F32)
            return [*found, instance_phase(self.first, f"mask{number}", [evolve(write, value=masked)])]
        for n, mask in enumerate(masks):
            masked = Op("select", (Test((mask.bound,)), held, Literal(0.0, DType.F32)), DType.F32)
            phase = instance_phase(self.first, f"mask{number}_{n}", [evolve(write, value=masked)])
            found.append(evolve(phase, when=(*phase.when, *mask.when)))
        return found


def _wide(value: Value) -> Value:
    """Return a value as registers hold it."""
    return value if value.dtype is DType.F32 else Convert(value, DType.F32)
