"""Sums of rows that keep axes.

    y[i, a, b] = f(x[i, a, b], acc[i]);   w[i, a] across sum = g(x[i, a, b], acc[i])

The loop over a row that stores other outputs adds up the terms of a thread, and lanes add up theirs. They leave partial
sums in shared memory; the threads of the block, a few for each sum, add up these:

    loop over trips:  y[...] = ...;   sums += g(...);   kept[vector] = sums of lanes
    barrier;   total = sum over vectors of a run of kept[vector];   w[i, a] = total
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod

from attrs import evolve, frozen

from ...ir import (
    COMBINERS,
    LANES,
    Accumulate,
    Barrier,
    Convert,
    DType,
    Guard,
    Index,
    Initialise,
    Item,
    LaneReduce,
    Literal,
    Load,
    Loop,
    Op,
    Output,
    Phase,
    ReduceDim,
    RegisterRead,
    Root,
    SharedBuffer,
    Store,
    Test,
    Value,
    Var,
    as_index,
    delinearise,
    linearise,
    row_major,
    substitute,
    substitute_guards,
    variables,
)
from ..geometry import geometry_of, kept_lanes, kept_slots, kept_sum_runs
from .index_values import Context, resolve, strides_of, value_of
from .layout import AxisBinding
from .row_cache import block_trips
from .segment_state import SegmentState

#: Most partial sums that a thread loads at once.
MAX_LOADS = 16


@frozen
class KeptSum:
    """Lowering of a kept sum over a row.

    Its `dim` has the row; `local` numbers a trip's elements.
    """

    state: SegmentState
    output: Output
    dim: ReduceDim
    local: Var

    @property
    def runs(self) -> tuple[int, int]:
        """Elements of a run, and sums of each."""
        return kept_sum_runs(self.state.frame.segment, self.state.group)

    @property
    def width(self) -> int:
        """Neighbours of a thread."""
        return self.state.frame.schedule.row_vector

    @property
    def vectors(self) -> bool:
        """Return whether each vector has a sum of its own."""
        return self.runs[1] == 1

    @property
    def name(self) -> str:
        return f"{self.output.tensor}.kept"

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of a thread, and its vectors or neighbours."""
        rows = (d.thread for d in self.state.frame.schedule.dims)
        step = self.state.frame.schedule.reduction_threads * self.width
        return (*rows, self.dim.block_k // step if self.vectors else self.width)

    @property
    def kind(self) -> DType:
        """Type of the sums."""
        return self.state.group.tensors[self.output.tensor].dtype.accumulator

    def register(self, *place: Index) -> RegisterRead:
        """Return a sum of each row of a thread."""
        return RegisterRead(self.name, (*map(as_index, self.state.frame.tiles), *place), self.kind)

    def begin(self) -> Initialise:
        """Return the identities that sums begin with."""
        return Initialise(self.name, self.shape, str(self.output.across), self.kind)

    def add(self, binding: AxisBinding, context: Context) -> Iterator[Root]:
        """Yield the additions of a trip's terms, without missing elements."""
        if self.vectors:
            yield self.begin()
        value: Value = value_of(self.output.body, context)
        value = value if value.dtype is self.kind else Convert(value, self.kind)
        if missing := tuple(binding.valid.values()):
            value = Op("select", (Test(missing), value, self._identity), self.kind)
        place = as_index(self.local) // self.width if self.vectors else as_index(self.local) % self.width
        held = self.register(place)
        yield Accumulate(held.name, held.at, str(self.output.across), value, (self.local,), held.dtype)

    @property
    def _identity(self) -> Literal:
        return Literal(COMBINERS[str(self.output.across)].identity(self.kind), self.kind)

    def reduce(self, threads: int, stride: int) -> LaneReduce:
        """Return the combination of some lanes' sums."""
        return LaneReduce(self.name, self.shape, str(self.output.across), self.kind, threads, stride=stride)

    def leave(self, first: Index, slots: int, folded: int, between: int) -> Store:
        """Return the store of partial sums by one of some lanes.

        They are `folded` lanes at a distance of `between`.
        """
        frame = self.state.frame
        lanes, lane = frame.schedule.reduction_threads, as_index(frame.lane)
        local = Var(f"{self.local.name}{'o' if self.vectors else 'i'}", self.shape[-1])
        place = lane // (folded * between) * between + lane % between
        place = first + as_index(local) * (lanes // folded) + place if self.vectors else place * self.width + local
        rows = tuple(d.block for d in frame.schedule.dims)
        address = linearise((place, *map(as_index, frame.tiles)), row_major((slots, *rows)))
        guard = Guard(lane // between % folded, 0, 1)
        guards = () if guard.always else (guard,)
        return Store("shared", self.buffer, address, self.register(as_index(local)), self.kind, guards)

    @property
    def buffer(self) -> str:
        """Name of the partial sums in shared memory."""
        return f"{self.state.frame.prefix}kept{self.state.frame.segment.kept_sums.index(self.output)}"

    def load(self, address: Index, guards: Sequence[Guard], step: Var) -> Accumulate:
        """Return the addition of some partial sums."""
        own = tuple(guard for guard in guards if not guard.always)
        value = Load("shared", self.buffer, address, self.kind, own, float(self._identity.value))
        return Accumulate(self.total, (Index(),), str(self.output.across), value, (step,), self.kind)

    @property
    def total(self) -> str:
        """Name of the register of a whole sum."""
        return f"{self.output.tensor}.total"

    def store(self, places: AxisBinding, tiles: Mapping[Var, Index], guards: Sequence[Guard]) -> Store:
        """Return the store of a whole sum."""
        context, dtype = self.state.context(places, {}), self.state.group.tensors[self.output.tensor].dtype
        at = [resolve(substitute(substitute(w, places.places), tiles), context) for w in self.output.write]
        inside = substitute_guards(tuple(g for v, g in places.valid.items() if v in tiles), tiles)
        value: Value = RegisterRead(self.total, (Index(),), self.kind)
        value = value if dtype is self.kind else Convert(value, dtype)
        address = linearise(at, strides_of(self.output.tensor, context))
        return Store("global", self.output.tensor, address, value, dtype, (*inside, *guards))


def leave_sums(state: SegmentState, sums: Sequence[KeptSum], start: Index) -> Phase:
    """Return the phase that leaves sums in shared memory.

    They are those of a trip from `start` on, or of a row.
    """
    first, frame = sums[0], state.frame
    geometry = geometry_of(state.group, state.layout.schedule)[-1]
    folded, stride, slots = map(int, (*kept_lanes(geometry), kept_slots(geometry)))
    between = max(1, first.runs[1] // first.width)
    rows = prod(d.block for d in frame.schedule.dims)
    for each in sums:
        state.layout.buffers[each.buffer] = SharedBuffer(each.buffer, each.kind, rows * slots)
    begin = (start - frame.rank * _own_elements(first)) // (first.width * folded)
    roots: list[Root] = [each.reduce(folded, stride) for each in sums if folded > 1]
    roots += [each.leave(begin, slots, folded, between) for each in sums]
    unrolled = [v for root in roots if isinstance(root, Store) for v in variables(root.address)]
    own = tuple(dict.fromkeys(v for v in unrolled if v.name in (f"{first.local.name}o", f"{first.local.name}i")))
    return state.phase("compute", f"{first.local.name}kept", roots, own, {s.var: s for s in frame.shares})


def _own_elements(first: KeptSum) -> int:
    """Return the elements of a block's part of a row."""
    return block_trips(first.state.frame.schedule, first.dim) * first.dim.block_k


def add_up_sums(state: SegmentState, sums: Sequence[KeptSum]) -> Iterator[Item]:
    """Yield the items in which threads add up partial sums."""
    first, frame, threads = sums[0], state.frame, state.layout.schedule.threads
    length, inner = first.runs
    own = min(_own_elements(first), prod(v.extent for v in first.dim.axes))
    shape = (*(d.block for d in frame.schedule.dims), own // length, inner)
    geometry = geometry_of(state.group, state.layout.schedule)[-1]
    folded, _, slots = map(int, (*kept_lanes(geometry), kept_slots(geometry)))
    terms = length // (first.width * folded) if first.vectors else slots // inner
    together = gcd(LANES, threads, 1 << (terms - 1).bit_length())
    thread, groups, count = as_index(state.layout.thread), threads // together, prod(shape)
    turn = Var(f"{frame.prefix}sums", -(-count // groups))
    steps = -(-terms // together)
    step = Var(f"{frame.prefix}term", min(steps, MAX_LOADS))
    outer = Var(f"{frame.prefix}terms", -(-steps // step.extent))
    number, lane = as_index(turn) * groups + thread // together, thread % together
    *rows, run, within = delinearise(number, shape)
    term = (as_index(outer) * step.extent + step) * together + lane
    address = linearise(((run * terms + term) * inner + within, *rows), row_major((slots, *shape[:-2])))
    exists = Guard(number, 0, count)
    loads = [each.load(address, (exists, Guard(term, 0, terms)), step) for each in sums]
    begin = [Initialise(each.total, (1,), str(each.output.across), each.kind) for each in sums]
    lanes = [LaneReduce(each.total, (1,), str(each.output.across), each.kind, together) for each in sums]
    one = Var(f"{frame.prefix}w", 1)
    start = frame.rank * _own_elements(first) + run * length + within
    binding = state.bind((evolve(first.dim, block_k=1),), (one,), (start,))
    tiles = dict(zip(frame.tiles, rows, strict=True))
    once = tuple(guard for guard in (exists, Guard(lane, 0, 1)) if not guard.always)
    stores = [each.store(binding, tiles, once) for each in sums]
    added = state.phase("compute", "terms", loads, (step,), {})
    body: list[Item] = [Phase("compute", f"{frame.prefix}begin", tuple(begin), ())]
    body += [Loop(outer, (added,)) if outer.extent > 1 else added]
    body += [Phase("compute", f"{frame.prefix}lanes", tuple(lanes), ())] if together > 1 else []
    body += [Phase("exit", f"{frame.prefix}totals", tuple(stores), ())]
    yield Barrier()
    yield from (Loop(turn, tuple(body)),) if turn.extent > 1 else body
