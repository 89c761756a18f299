"""Parts of a chain in registers: products of warpgroups overlapped with rows.

    copy part 0 and the next ones;   wait;   scores of part 0;   its rows
    for each further part j:   wait for part j;   barrier;   issue the scores of j, and the sums of j - 1
                               copy part j + stages - 1;   wait for the scores;   rows of j
                               wait for the sums;   scale them;   pack the weights of j
    wait for the last part;   barrier;   sums of the last part

The products of two parts are unfinished at a time. The stages that are refilled were read by the scores of part j - 1
and the sums of part j - 2, which all warps have waited for before the barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import evolve, frozen

from ....ir import (
    Barrier,
    Guard,
    Index,
    Item,
    Loop,
    Phase,
    ProductFence,
    ProductWait,
    ProxyFence,
    Var,
    Wait,
    as_index,
    substitute,
)
from ...geometry import chained_numbers
from ..k_loop import BulkPipeline, SharedPipeline, guard_fetch
from ..segment_state import SegmentState
from .chain_products import ChainProduct, PartStages
from .chained_contraction import part_copies, substitute_parts
from .mask_block_skipping import TakenParts
from .streamed_rows import StreamedRows


@frozen
class BulkParts:
    """Bulk copies of a chain's factors, which a producer issues.

    A stage has both second factors of a part.
    """

    rows: BulkPipeline
    pipelines: tuple[BulkPipeline, BulkPipeline]
    taken: TakenParts
    stages: PartStages

    def declare(self, step: Var) -> None:
        """Declare the producer, which counts the parts after the first in `step`."""
        state = self.rows.ring.state
        loop = [Loop(step, self._fetch(as_index(step) + 1), self.taken.until)] if self.taken.part.extent > 1 else []
        items: list[Item] = [*self.stages.fetch_rows([self.rows]), *self._fetch(Index()), *loop]
        held = (prod(d.thread for d in p.ring.state.frame.schedule.dims) for p in self.pipelines)
        self.stages.declare(state.layout, items, chained_numbers(*held), state.target.registers_per_sm)

    def _fetch(self, number: Index) -> tuple[Item, ...]:
        stage = self.stages.stage(number)
        (scores, sums), values = self.pipelines, self.taken.values(number)
        copies = tuple(
            evolve(copy, coordinates=tuple(substitute(c, values) for c in copy.coordinates))
            for copy in (*scores.copies(Index(), stage), *sums.copies(values[self.taken.part], stage))
        )
        return self.stages.fetch(number, sum(pipeline.nbytes for pipeline in self.pipelines), copies)


@frozen
class OverlappedParts:
    """Parts of two products and the rows between them.

    `taken` are the parts, those after the first `last` in number. `zero` initialises the scores of a part, `epilogue`
    are the items after their products, `weights` the registers that these leave.
    """

    scores: ChainProduct
    sums: ChainProduct
    rows: StreamedRows
    sums_state: SegmentState
    taken: TakenParts
    last: Index
    zero: Phase
    epilogue: Sequence[Item]
    weights: str
    stages: PartStages
    bulk: BulkParts | None = None

    def items(self) -> list[Item]:
        """Return all items."""
        extent = self.taken.part.extent
        sums, ring, step = self.sums.product, self.scores.copies, Var("step", max(extent - 1, 1))
        in_scores, in_sums, steps = self.scores.product.accumulator, sums.accumulator, range(sums.steps)
        packed = [name for number in steps for name in sums.held_rows(number)]
        at, distance = as_index(step), min(max(ring.schedule.stages - 1, 1), extent)
        rows = [*self.epilogue, *self.rows.maxima(), *self.rows.weights()]
        pack = [sums.load_held_rows(number, [sums.results(self.weights)]) for number in steps]
        promoted = sums.is_promoted
        ended = [self.rows.promote(self.sums_state, in_sums, "late")] if promoted else []
        begin: list[Item] = [] if self.bulk else self._first_copies()
        for number in range(distance):
            begin += self._copies(Index(number))
        if self.bulk is not None:
            self.bulk.declare(step)
            begin = [self.stages.wait_rows]
        begin += [
            *sums.initialise_partial(), *self._arrival(distance, Index()), self.zero, ProductFence((in_scores,)),
            *self._of_part(self.scores.unfinished, Index()), ProductWait(0, (in_scores,)),
            *self._of_part([*rows, *pack], Index()),
        ]  # fmt: skip
        body = [
            *self._arrival(distance - 1, at + 1), ProductFence((in_sums, *packed)),
            *self._of_part(self.scores.unfinished, at + 1),
            *self._of_part(self.sums.unfinished, at),
            *self._copies(at + distance), *([self.rows.hold_scale()] if promoted else ()),
            ProductWait(1, (in_scores,)), *self._of_part(rows, at + 1),
            ProductWait(0, (in_sums, *packed), self.rows.part_sums),
            *([self.stages.release(at)] if self.bulk else ()),
            *(ended if promoted else [self.rows.rescale(self.sums_state)]), *pack,
        ]  # fmt: skip
        end = [
            *(self.stages.release_rows if self.bulk else self._arrival(0, self.last)), ProductFence((in_sums, *packed)),
            *self._of_part(self.sums.unfinished, self.last), ProductWait(0, (in_sums,)),
            *([self.rows.promote(self.sums_state, in_sums, "scale")] if promoted else ()),
            *([self.stages.release(self.last)] if self.stages.is_persistent else ()),
        ]  # fmt: skip
        return [*begin, *([Loop(step, tuple(body), self.taken.until)] if extent > 1 else []), *end]

    def _first_copies(self) -> list[Item]:
        """Return the copies of rows, and those for the scores of the first part, as a group."""
        first = self._of_part(self.scores.copies.fetch(Index()).whole, Index())
        return [*self.scores.rows_loads, *first, *self.scores.copies.commit]

    def _copies(self, number: Index) -> list[Item]:
        """Return the copies for the sums of a part, and for the scores of the next one, as a group."""
        if self.bulk is not None:
            return []
        late, early = self._fetch(self.sums.copies, number), self._fetch(self.scores.copies, number + 1)
        return [*early, *late, *self.scores.copies.commit]

    def _fetch(self, ring: SharedPipeline, number: Index) -> list[Item]:
        """Return the copies of a part, guarded by its existence."""
        part, values = self.taken.part, self.taken.values(number)
        if number.is_const and number.const >= part.extent:
            return []
        exists = Guard(self.last - number, 0, part.extent)
        copies = (part_copies(item, part, values) for item in ring.fetch(as_index(self.taken.place)).whole)
        return [guard_fetch(item, exists) for item in copies if isinstance(item, Phase)]

    def _arrival(self, pending: int, number: Index) -> list[Item]:
        """Return the wait for a part, the oldest `pending` copies; products may read it afterwards."""
        if self.bulk is not None:
            return [self.stages.wait(number)]
        return [*([Wait(pending)] if self.scores.copies.is_asynchronous else ()), ProxyFence(), Barrier()]

    def _of_part(self, items: Sequence[Item], at: Index) -> list[Item]:
        """Return the items of the part at a place."""
        return substitute_parts(items, {**self.taken.values(at), self.stages.variable: self.stages.stage(at)})
