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
    LANES,
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
    Phase,
    Producer,
    ProductFence,
    ProductWait,
    ProxyFence,
    SharedBuffer,
    Var,
    Wait,
    as_index,
    substitute,
)
from ...geometry import PRODUCER_REGISTERS, chained_numbers, producer_share
from ..k_loop import EMPTY, FULL, BulkPipeline, SharedPipeline, guard_fetch
from ..segment_state import SegmentState
from ..substitute_phase import substitute_phase
from .chain_products import ChainProduct
from .chained_contraction import part_copies
from .streamed_rows import StreamedRows

#: The mbarrier of the rows' factor.
ROWS = "rows"


@frozen
class BulkParts:
    """Bulk copies of a chain's factors, which a producer issues.

    A stage has both second factors of a part.
    """

    rows: BulkPipeline
    pipelines: tuple[BulkPipeline, BulkPipeline]
    part: Var

    @property
    def _stages(self) -> int:
        return self.pipelines[0].ring.schedule.stages

    def declare(self, turn: Var, until: Var | None) -> None:
        """Declare the producer, which counts the parts after the first in `turn`."""
        layout, at = self.rows.ring.state.layout, as_index(turn) + 1
        free = MbarrierWait(EMPTY, at % self._stages, (at // self._stages + 1) % 2)
        rows = BulkFetch(ROWS, Index(), self.rows.nbytes, self.rows.copies(Index(), Index()))
        loop: list[Item] = [Loop(turn, (free, self._fetch(at)), until)] if self.part.extent > 1 else []
        held = (prod(d.thread for d in p.ring.state.frame.schedule.dims) for p in self.pipelines)
        target = self.rows.ring.state.target
        own, others = map(int, producer_share(layout.schedule.threads, chained_numbers(*held), target.registers_per_sm))
        items: tuple[Item, ...] = rows, self._fetch(Index()), *loop
        layout.producer.append(Producer(items, own, PRODUCER_REGISTERS if others else 0, others))
        layout.buffers |= {
            name: SharedBuffer(name, DType.U64, count)
            for name, count in ((FULL, self._stages), (EMPTY, self._stages), (ROWS, 1))
        }
        warps = layout.schedule.threads // LANES
        inits = MbarrierInit(FULL, 1), MbarrierInit(EMPTY, warps), MbarrierInit(ROWS, 1)
        layout.opening += [*inits, Barrier()]

    def _fetch(self, number: Index) -> BulkFetch:
        stage = number % self._stages
        scores, sums = self.pipelines
        copies = tuple(
            evolve(copy, coordinates=tuple(substitute(c, {self.part: number}) for c in copy.coordinates))
            for copy in (*scores.copies(Index(), stage), *sums.copies(number, stage))
        )
        return BulkFetch(FULL, stage, sum(pipeline.nbytes for pipeline in self.pipelines), copies)

    def wait(self, number: Index) -> MbarrierWait:
        """Return the wait for a part."""
        return MbarrierWait(FULL, number % self._stages, number // self._stages % 2)


@frozen
class OverlappedParts:
    """Parts of two products and the rows between them.

    `part` numbers parts; those after the first are `last` in number, or up to a definition `until`. `zero` initialises
    the scores of a part, `epilogue` are the items after their products, `weights` the registers that these leave.
    """

    scores: ChainProduct
    sums: ChainProduct
    rows: StreamedRows
    sums_state: SegmentState
    part: Var
    last: Index
    until: Var | None
    zero: Phase
    epilogue: Sequence[Item]
    weights: str
    bulk: BulkParts | None = None

    def items(self) -> list[Item]:
        """Return all items."""
        sums, ring, turn = self.sums.product, self.scores.copies, Var("turn", max(self.part.extent - 1, 1))
        in_scores, in_sums, steps = self.scores.product.accumulator, sums.accumulator, range(sums.steps)
        packed = [name for number in steps for name in sums.held_rows(number)]
        at, distance = as_index(turn), min(max(ring.schedule.stages - 1, 1), self.part.extent)
        rows = [*self.epilogue, *self.rows.maxima(), *self.rows.weights()]
        pack = [sums.load_held_rows(number, [sums.results(self.weights)]) for number in steps]
        begin: list[Item] = [] if self.bulk else [*self.scores.rows_loads, *ring.fetch(Index()).whole, *ring.commit]
        for number in range(distance):
            begin += self._copies(Index(number))
        if self.bulk is not None:
            self.bulk.declare(turn, self.until)
            begin = [MbarrierWait(ROWS, Index(), Index())]
        begin += [
            *self._arrival(distance, Index()), self.zero, ProductFence((in_scores,)),
            *_substitute_part(self.scores.unfinished, self.part, Index()), ProductWait(0, (in_scores,)),
            *_substitute_part([*rows, *pack], self.part, Index()),
        ]  # fmt: skip
        body = [
            *self._arrival(distance - 1, at + 1), ProductFence((in_sums, *packed)),
            *_substitute_part(self.scores.unfinished, self.part, at + 1),
            *_substitute_part(self.sums.unfinished, self.part, at),
            *self._copies(at + distance),
            ProductWait(1, (in_scores,)), *_substitute_part(rows, self.part, at + 1),
            ProductWait(0, (in_sums, *packed), self.rows.part_sums),
            *([MbarrierArrive(EMPTY, at % ring.schedule.stages)] if self.bulk else ()),
            self.rows.rescale(self.sums_state), *pack,
        ]  # fmt: skip
        end = [
            *([] if self.bulk else self._arrival(0, self.last)), ProductFence((in_sums, *packed)),
            *_substitute_part(self.sums.unfinished, self.part, self.last), ProductWait(0, (in_sums,)),
        ]  # fmt: skip
        return [*begin, *([Loop(turn, tuple(body), self.until)] if self.part.extent > 1 else []), *end]

    def _copies(self, number: Index) -> list[Item]:
        """Return the copies for the sums of a part, and for the scores of the next one, as a group."""
        if self.bulk is not None:
            return []
        late, early = self._fetch(self.sums.copies, number), self._fetch(self.scores.copies, number + 1)
        return [*early, *late, *self.scores.copies.commit]

    def _fetch(self, ring: SharedPipeline, number: Index) -> list[Item]:
        """Return the copies of a part, guarded by its existence."""
        if number.is_const and number.const >= self.part.extent:
            return []
        exists = Guard(self.last - number, 0, self.part.extent)
        copies = (part_copies(item, self.part, number) for item in ring.fetch(as_index(self.part)).whole)
        return [guard_fetch(item, exists) for item in copies if isinstance(item, Phase)]

    def _arrival(self, pending: int, number: Index) -> list[Item]:
        """Return the wait for a part, the oldest `pending` copies; products may read it afterwards."""
        if self.bulk is not None:
            return [self.bulk.wait(number)]
        return [*([Wait(pending)] if self.scores.copies.is_asynchronous else ()), ProxyFence(), Barrier()]


def _substitute_part(items: Sequence[Item], part: Var, number: Index) -> list[Item]:
    """Return the items of a part, without phases whose condition no such part satisfies."""
    found = [substitute_phase(item, {part: number}) if isinstance(item, Phase) else item for item in items]
    return [i for i in found if not isinstance(i, Phase) or not any(g.index.is_const for g in i.when)]
