"""The loop over the parts of a chain of two segments.

The products of a part are issued before the sums of the part before have ended. A stage is released, or filled again,
where the first products of the next part have ended. Warpgroups issue the sums of a part and the products of the next
one in turn, so that the tensor cores serve one while the others compute values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import define, evolve

from ....ir import (
    LANES,
    WARPGROUP,
    Barrier,
    BulkFetch,
    DType,
    Guard,
    Index,
    Item,
    Loop,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Producer,
    ProductCommit,
    ProductFence,
    ProductWait,
    ProxyFence,
    RegisterRead,
    SharedBuffer,
    TurnPass,
    TurnWait,
    Var,
    Wait,
    as_index,
    post_order,
    substitute,
)
from ...geometry import PRODUCER_REGISTERS, chained_numbers, producer_share, takes_turns
from ..k_loop import EMPTY, FULL, BulkPipeline, Multiplication, SharedPipeline, guard_fetch
from ..segment_state import SegmentState
from ..substitute_phase import substitute_phase
from .chain_products import ChainProduct
from .chained_contraction import substitute_parts
from .mask_block_skipping import TakenParts
from .overlapped_parts import ROWS
from .tile_numbers import ColumnNumbers


@define
class TileParts:
    """The loop over the parts of a chain.

    `turn` numbers the parts that are `taken`. `rows` are the pipelines of factors that all parts read, `rings` those of
    a part's, `bulk` their bulk copies, None where threads copy, `columns` the copies of numbers of columns. `values`
    are the items of each value, with the number of products that they follow.
    """

    first: SegmentState
    last: SegmentState
    taken: TakenParts
    turn: Var
    products: Sequence[ChainProduct]
    sums: Sequence[ChainProduct]
    rows: Sequence[SharedPipeline]
    rings: Sequence[SharedPipeline]
    bulk: tuple[list[BulkPipeline], list[BulkPipeline]] | None
    columns: Sequence[ColumnNumbers]
    values: Sequence[tuple[int, list[Item]]]

    @property
    def stages(self) -> int:
        """Stages of the parts' ring."""
        return self.first.frame.schedule.reductions[0].stages

    @property
    def warpgroups(self) -> int:
        """Warpgroups that take turns: all of a block, or none."""
        found = self.first.layout.schedule.threads // (WARPGROUP * LANES)
        return found if takes_turns(found, self.stages, self.bulk is not None) else 0

    def number(self, turn: Index) -> Index:
        """Return the part that a turn computes."""
        return self.taken.first + turn

    def items(self) -> list[Item]:
        """Return the copies ahead, the loop, and the wait for the sums."""
        turn, until = self.turn, self.taken.until
        ahead = min(max(self.stages - 1, 1), self.taken.part.extent)
        begin: list[Item] = []
        if self.bulk is not None:
            self._declare()
            begin.append(MbarrierWait(ROWS, Index(), Index()))
        else:
            begin += [item for ring in self.rows for item in ring.fetch(Index()).whole]
            begin += [item for n in range(ahead) for item in self._copies(Index(n))]
        body = self._turn(as_index(turn) if turn.extent > 1 else Index(), ahead)
        loop: list[Item] = [Loop(turn, tuple(body), until, until is not None)] if turn.extent > 1 else body
        names = tuple(s.product.accumulator for s in self.sums)
        if last := self.warpgroups:
            loop = [TurnPass(last - 1, last), TurnWait(), *loop, TurnPass(0, last - 1)]
        return [*begin, *loop, ProductWait(0, names)]

    def _turn(self, turn: Index, ahead: int) -> list[Item]:
        """Return the items of a part."""
        number = self.number(turn)
        accumulators = [p.product.accumulator for p in self.products]
        found: list[Item] = [*self._arrival(turn, ahead), ProductFence(tuple(accumulators))]
        for product in self.products:
            found += product.unfinished
        if self.warpgroups:
            found.append(TurnPass(0, self.warpgroups))
        done = 0
        for count, phases in self.values:
            if count > done:
                found.append(ProductWait(len(accumulators) - count, tuple(accumulators[done:count])))
                found += self._refill(turn, ahead) if done == 0 else []
                done = count
            found += phases
        return substitute_parts([*found, *self._issue_sums()], {self.taken.part: number, self.turn: turn})

    def _issue_sums(self) -> list[Item]:
        """Return the items that pack the rows of all sums and issue their products.

        Registers are packed when no product is unfinished: ptxas serialises products beside writes of such rows.
        """
        pack, issue, names = list[Item](), list[Item](), list[str]()
        for product in (s.product for s in self.sums):
            held, steps = product.results(_register(product)), range(product.steps)
            pack += [product.load_held_rows(number, [held]) for number in steps]
            names += [product.accumulator, *(name for number in steps for name in product.held_rows(number))]
            issue += [product.step_in_place(number, False) for number in steps]
        turn = [TurnWait()] * (self.warpgroups > 0)
        return [*pack, *turn, ProductFence(tuple(names)), *issue, ProductCommit()]

    def _arrival(self, turn: Index, ahead: int) -> list[Item]:
        """Return the wait for the factors of a part."""
        if self.bulk is not None:
            return [MbarrierWait(FULL, turn % self.stages, turn // self.stages % 2)]
        copies = self.rings[0]
        return [*([Wait(ahead - 1)] if copies.is_asynchronous else ()), ProxyFence(), Barrier()]

    def _refill(self, turn: Index, ahead: int) -> list[Item]:
        """Return the release of the part before, whose sums have ended, or the copies that take its place."""
        stages, extent = self.stages, self.taken.part.extent
        if extent == 1:
            return []
        if self.bulk is None:
            return [Barrier(), *self._copies(turn + ahead)]
        return [MbarrierArrive(EMPTY, (turn + stages - 1) % stages, (Guard(turn, 1, extent),))]

    def _copies(self, turn: Index) -> list[Item]:
        """Return the copies of all threads for a part, where it exists, as a group."""
        found = list[Item]()
        exists = Guard(turn, 0, self.taken.part.extent)
        if self.taken.until is not None:
            exists = Guard(as_index(self.taken.until) - turn - 1, 0, self.taken.until.extent)
        for ring in self.rings:
            for item in ring.fetch(turn).whole:
                moved = substitute_phase(item, {self.taken.part: self.number(turn)})
                found.append(guard_fetch(moved, exists))
        return [*found, *self.rings[0].commit]

    def _declare(self) -> None:
        """Declare the producer, which copies the rows and all parts."""
        assert self.bulk is not None
        layout, (rows, rings), stages, turn = self.first.layout, self.bulk, self.stages, self.turn
        copied = tuple(copy for p in rows for copy in p.copies(Index(), Index()))
        fetch: list[Item] = [BulkFetch(ROWS, Index(), sum(p.nbytes for p in rows), copied)]
        at = as_index(turn) if turn.extent > 1 else Index()
        copies = tuple(
            evolve(copy, coordinates=tuple(substitute(c, {self.taken.part: self.number(at)}) for c in copy.coordinates))
            for p in rings
            for copy in p.copies(self.number(at) if p.ring.state is self.last else Index(), at % stages)
        )
        copies += tuple(c.copy(at % stages, {self.taken.part: self.number(at)}) for c in self.columns)
        nbytes = sum(p.nbytes for p in rings) + sum(c.map.nbytes for c in self.columns)
        part = BulkFetch(FULL, at % stages, nbytes, copies)
        free = MbarrierWait(EMPTY, at % stages, (at // stages + 1) % 2)
        fetch += [Loop(turn, (free, part), self.taken.until)] if turn.extent > 1 else [part]
        held = chained_numbers(*(
            prod(d.thread for d in s.frame.schedule.dims) * len(s.frame.segment.reductions)
            for s in (self.first, self.last)
        ))  # fmt: skip
        own, others = map(int, producer_share(layout.schedule.threads, held, self.first.target.registers_per_sm))
        layout.producer.append(Producer(tuple(fetch), own, PRODUCER_REGISTERS if others else 0, others))
        sizes = ((FULL, stages), (EMPTY, stages), (ROWS, 1))
        layout.buffers |= {name: SharedBuffer(name, DType.U64, count) for name, count in sizes}
        warps = layout.schedule.threads // LANES
        layout.opening += [MbarrierInit(FULL, 1), MbarrierInit(EMPTY, warps), MbarrierInit(ROWS, 1), Barrier()]


def _register(product: Multiplication) -> str:
    """Return the register that holds the rows of a sum."""
    (held,) = {n for n in post_order([product.a]) if isinstance(n, RegisterRead)}
    return held.name
