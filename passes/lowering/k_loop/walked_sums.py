"""Sums over instances beside rows that threads walk.

    h[b, d, n, r] = f(h[b, d, n, r - 1]);   y[r, b, d] across sum = h[b, d, n, r] * c[r, b, n]

A block has all terms of a sum. A thread adds up those of its own tile, element by element of a K block; the threads of
other instances along the summed dims then exchange the sums of the block, so that each of them gets, and stores, those
of some elements. Warps exchange theirs through shared memory. Sums along the row, too, take the whole walk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attrs import evolve, frozen

from ....ir import (
    COMBINERS,
    SCAN_MODES,
    Accumulate,
    Convert,
    Guard,
    Index,
    Initialise,
    LaneReduce,
    Literal,
    Op,
    Output,
    ReduceDim,
    RegisterRead,
    SharedBuffer,
    Store,
    Test,
    Value,
    Var,
    as_index,
    linearise,
    substitute,
)
from ...geometry import dims_of_sum, sums_row
from ..index_values import Context, resolve, strides_of, value_of
from ..layout import AxisBinding
from ..outputs import column_register
from ..segment_state import SegmentState


@frozen
class WalkedSum:
    """Lowering of an output across instances of rows along `dim`."""

    state: SegmentState
    output: Output
    dim: ReduceDim

    @property
    def along(self) -> bool:
        """Return whether the sum is along the row, too."""
        return sums_row(self.output)

    @property
    def summed(self) -> tuple[int, ...]:
        """Positions of the dims that are summed."""
        frame = self.state.frame
        return dims_of_sum(frame.segment, self.output, [dim.axes for dim in frame.schedule.dims])

    @property
    def shape(self) -> tuple[int, ...]:
        """Sums of a thread: kept instances, elements of a K block."""
        kept = (d.thread for n, d in enumerate(self.state.frame.schedule.dims) if n not in self.summed)
        return (*kept, 1 if self.along else self.dim.block_k)

    def register(self, number: Index) -> RegisterRead:
        """Return the sum of an element of a K block."""
        kept = (as_index(u) for n, u in enumerate(self.state.frame.tiles) if n not in self.summed)
        dtype = self.state.group.tensors[self.output.tensor].dtype.accumulator
        return RegisterRead(column_register(self.output), (*kept, number), dtype)

    def begin(self) -> Initialise:
        """Return the identities that the sums begin with."""
        held = self.register(Index())
        return Initialise(held.name, self.shape, str(self.output.across), held.dtype)

    def add(self, number: int, binding: AxisBinding, context: Context) -> Accumulate:
        """Return the addition of a thread's terms, without missing instances."""
        held = self.register(Index(0 if self.along else number))
        value: Value = value_of(self.output.body, context)
        value = value if value.dtype is held.dtype else Convert(value, held.dtype)
        if missing := tuple(binding.valid.values()):
            identity = Literal(COMBINERS[str(self.output.across)].identity(held.dtype), held.dtype)
            value = Op("select", (Test(missing), value, identity), held.dtype)
        over = tuple(self.state.frame.tiles[d] for d in self.summed)
        return Accumulate(held.name, held.at, str(self.output.across), value, over, held.dtype)

    def exchanges(self) -> Iterator[LaneReduce]:
        """Yield the combinations along summed dims: of lanes, then of warps."""
        held, left = self.register(Index()), self.shape[-1]
        for d in self.summed:
            stride, lanes, warps = self.threads(d)
            for threads, distance, whole in ((lanes, stride, False), (warps, stride * lanes, True)):
                left = left if whole else left // lanes
                if threads > 1:
                    values = left * (1 if whole else lanes)
                    yield LaneReduce(held.name, self.shape, str(self.output.across), held.dtype, threads,
                                     extent=values, stride=distance, whole=whole)  # fmt: skip

    def threads(self, d: int) -> tuple[int, int, int]:
        """Return the stride of threads along a dim, their lanes and warps."""
        counts, warp = [dim.threads for dim in self.state.frame.schedule.dims], self.state.target.warp_size
        stride = prod(counts[d + 1 :])
        lanes = min(counts[d], max(1, warp // stride))
        return stride, lanes, counts[d] // lanes

    def scratch(self) -> SharedBuffer:
        """Return the shared memory of exchanges."""
        every, dtype = self.state.frame.schedule.threads, self.register(Index()).dtype
        values = (prod(e.shape[:-1]) * e.extent for e in self.exchanges() if e.whole)
        return SharedBuffer("lanes", dtype, every * max(values, default=1))

    def stores(self, block: Index) -> Iterator[Store]:
        """Yield the stores of a thread's part of a K block's sums."""
        left, first, guards = self.shape[-1], Index(), list[Guard]()
        for d in self.summed:
            _, lanes, warps = self.threads(d)
            thread = as_index(Var(f"{self.state.frame.prefix}t{d}", lanes * warps))
            left //= lanes
            first += thread % lanes * left
            guards.append(Guard(thread // lanes, 0, 1))
        for number in range(left):
            yield self.store(number, block, first + number, [g for g in guards if not g.always])

    def store(self, number: int, block: Index, place: Index, guards: Sequence[Guard]) -> Store:
        """Return the store of a sum at a place of the block."""
        frame, held = self.state.frame, self.register(Index(number))
        backwards = any(SCAN_MODES[r.along][0] for r in frame.segment.reductions if r.along)
        place = as_index(self.dim.block_k - 1) - place if backwards else place
        local = Var(f"{frame.prefix}w", 1)
        binding = self.state.bind((evolve(self.dim, block_k=1),), (local,), (block * self.dim.block_k + place,))
        summed = {frame.tiles[d]: Index() for d in self.summed}
        context = self.state.context(binding, {})
        places = [resolve(substitute(substitute(w, binding.places), summed), context) for w in self.output.write]
        inside = [g for v, g in binding.valid.items() if v not in summed and not (self.along and v == local)]
        kind = self.state.group.tensors[self.output.tensor].dtype
        value: Value = held if held.dtype is kind else Convert(held, kind)
        address = linearise(places, strides_of(self.output.tensor, context))
        return Store("global", self.output.tensor, address, value, kind, (*inside, *guards))
