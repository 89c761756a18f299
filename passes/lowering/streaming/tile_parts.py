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
    Guard,
    Index,
    Item,
    Loop,
    ProductCommit,
    ProductFence,
    ProductWait,
    ProxyFence,
    RegisterRead,
    TurnPass,
    TurnWait,
    Var,
    Wait,
    as_index,
    post_order,
    substitute,
)
from ...geometry import chained_numbers, takes_turns
from ..k_loop import BulkPipeline, Multiplication, SharedPipeline, guard_fetch
from ..segment_state import SegmentState
from ..substitute_phase import substitute_phase
from .chain_products import ChainProduct, PartStages
from .chained_contraction import substitute_parts
from .mask_block_skipping import TakenParts
from .tile_numbers import ColumnNumbers


@define
class TileParts:
    """The loop over the parts of a chain.

    `stages` are those of the parts that are `taken`. `rows` are the pipelines of factors that all parts read, `rings`
    those of a part's, `bulk` their bulk copies, None where threads copy, `columns` the copies of numbers of columns.
    `values` are the items of each value, with the number of products that they follow.
    """

    first: SegmentState
    last: SegmentState
    taken: TakenParts
    stages: PartStages
    products: Sequence[ChainProduct]
    sums: Sequence[ChainProduct]
    rows: Sequence[SharedPipeline]
    rings: Sequence[SharedPipeline]
    bulk: tuple[list[BulkPipeline], list[BulkPipeline]] | None
    columns: Sequence[ColumnNumbers]
    values: Sequence[tuple[int, list[Item]]]

    @property
    def step(self) -> Var:
        """The variable that numbers the parts that are taken."""
        return Var("step", self.taken.part.extent)

    @property
    def warpgroups(self) -> int:
        """Warpgroups that take turns: all of a block, or none."""
        found = self.first.layout.schedule.threads // (WARPGROUP * LANES)
        return found if takes_turns(found, self.stages.count, self.bulk is not None) else 0

    def number(self, step: Index) -> Index:
        """Return the part of a step."""
        return self.taken.first + step

    def items(self) -> list[Item]:
        """Return the copies ahead, the loop, and the wait for the sums."""
        step, until = self.step, self.taken.until
        ahead = min(max(self.stages.count - 1, 1), step.extent)
        begin: list[Item] = []
        if self.bulk is not None:
            self._declare()
            begin.append(self.stages.wait_rows)
        else:
            begin += [item for ring in self.rows for item in ring.fetch(Index()).whole]
            begin += [item for n in range(ahead) for item in self._copies(Index(n))]
        body = self._part(as_index(step) if step.extent > 1 else Index(), ahead)
        loop: list[Item] = [Loop(step, tuple(body), until, until is not None)] if step.extent > 1 else body
        names = tuple(s.product.accumulator for s in self.sums)
        if self.warpgroups:
            loop = [TurnWait(), *loop, TurnPass(0, self.warpgroups)]
        last = Index(step.extent - 1) if until is None else as_index(until) - 1
        ends = [self.stages.release(last)] if self.stages.is_persistent else []
        return [*begin, *loop, *self.stages.release_rows, ProductWait(0, names), *ends]

    def _part(self, step: Index, ahead: int) -> list[Item]:
        """Return the items of a part."""
        number, values = self.number(step), {self.step: step, self.stages.variable: self.stages.stage(step)}
        accumulators = [p.product.accumulator for p in self.products]
        found: list[Item] = [*self._arrival(step, ahead), ProductFence(tuple(accumulators))]
        for product in self.products:
            found += product.unfinished
        if self.warpgroups:
            found.append(TurnPass(0, self.warpgroups))
        done = 0
        for count, phases in self.values:
            if count > done:
                found.append(ProductWait(len(accumulators) - count, tuple(accumulators[done:count])))
                found += self._refill(step, ahead) if done == 0 else []
                done = count
            found += phases
        return substitute_parts([*found, *self._issue_sums()], {self.taken.part: number, **values})

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

    def _arrival(self, step: Index, ahead: int) -> list[Item]:
        """Return the wait for the factors of a part."""
        if self.bulk is not None:
            return [self.stages.wait(step)]
        copies = self.rings[0]
        return [*([Wait(ahead - 1)] if copies.is_asynchronous else ()), ProxyFence(), Barrier()]

    def _refill(self, step: Index, ahead: int) -> list[Item]:
        """Return the release of the part before, whose sums have ended, or the copies that take its place."""
        extent = self.taken.part.extent
        if extent == 1:
            return []
        if self.bulk is None:
            return [Barrier(), *self._copies(step + ahead)]
        return [self.stages.release(step + self.stages.count - 1, (Guard(step, 1, extent),))]

    def _copies(self, step: Index) -> list[Item]:
        """Return the copies of all threads for a part, where it exists, as a group."""
        found = list[Item]()
        exists = Guard(step, 0, self.taken.part.extent)
        if self.taken.until is not None:
            exists = Guard(as_index(self.taken.until) - step - 1, 0, self.taken.until.extent)
        for ring in self.rings:
            for item in ring.fetch(step).whole:
                moved = substitute_phase(item, {self.taken.part: self.number(step)})
                found.append(guard_fetch(moved, exists))
        return [*found, *self.rings[0].commit]

    def _declare(self) -> None:
        """Declare the producer, which copies the rows and all parts."""
        assert self.bulk is not None
        state, (rows, rings), step = self.first, self.bulk, self.step
        at = as_index(step) if step.extent > 1 else Index()
        stage, values = self.stages.stage(at), {self.taken.part: self.number(at)}
        copies = tuple(
            evolve(copy, coordinates=tuple(substitute(c, values) for c in copy.coordinates))
            for p in rings
            for copy in p.copies(self.number(at) if p.ring.state is self.last else Index(), stage)
        )
        copies += tuple(c.copy(stage, values) for c in self.columns)
        nbytes = sum(p.nbytes for p in rings) + sum(c.map.nbytes for c in self.columns)
        part = self.stages.fetch(at, nbytes, copies)
        loop = (Loop(step, part, self.taken.until),) if step.extent > 1 else part
        held = chained_numbers(*(
            prod(d.thread for d in s.frame.schedule.dims) * len(s.frame.segment.reductions)
            for s in (self.first, self.last)
        ))  # fmt: skip
        if last := self.warpgroups:
            state.layout.opening.append(TurnPass(last - 1, last))
        items = (*self.stages.fetch_rows(rows), *loop)
        self.stages.declare(state.layout, items, held, state.target.registers_per_sm)


def _register(product: Multiplication) -> str:
    """Return the register that holds the rows of a sum."""
    (held,) = {n for n in post_order([product.a]) if isinstance(n, RegisterRead)}
    return held.name
