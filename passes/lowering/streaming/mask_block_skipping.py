"""Mask-block skipping: the loop over row blocks ends at the mask bound.

    z[i, j] = s[i, j] if j - i <= offset else -inf;   m = max_j z;   t = sum_j exp(z - m);   y = sum_j exp(z - m) * v[j]
      ->  a block of rows i0 .. i1 takes the parts that begin at j <= i1 + offset

Where scores are -inf, the maximum of a row does not change, and the exponentials are 0, also for fully masked rows
(`streams.py`). But results are sums of products, and 0 times an infinity or NaN is NaN. So a loop after the main one
checks the other factors, without scores: each column of results gets the sum of 0 times its elements of the skipped
parts, the same for all rows of a block, which is 0 but for infinities and NaN.

The bound is an index of the block number alone, the same for all its threads, and blocks with most work begin first.
`edges.py` finds mask bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from attrs import evolve, frozen

from ....ir import (
    Accumulate,
    Barrier,
    Cast,
    Const,
    Define,
    Expr,
    Guard,
    Index,
    Initialise,
    Item,
    Load,
    Loop,
    Phase,
    Read,
    Reduction,
    RegisterRead,
    Root,
    Share,
    SharedBuffer,
    Store,
    Var,
    as_index,
    call,
    clamp,
    delinearise,
    dtype_of,
    expr_variables,
    factors,
    linearise,
    row_major,
)
from ...geometry import SKIPPED_VECTOR, mask_bound, skipped_rows
from ..k_loop import guard_fetch
from ..layout import BlockLayout
from ..reductions import accumulate
from ..segment_state import SegmentState

#: Most elements of skipped parts that a thread checks in one iteration.
MAX_CHECKED_ELEMENTS = 16
#: The buffer in which threads add their results where scores lie in registers.
SKIPPED_SUMS_BUFFER = "skipped"


def streamed_loop_end(layout: BlockLayout, last: SegmentState, before: int = 0) -> Var | None:
    """Return the variable that bounds the loop over parts.

    The loop begins after the parts that are taken `before` it. None where every block takes all of them.
    """
    edge, part = mask_bound(layout.group), layout.part
    dims = last.frame.schedule.dims
    place = next((d for d, dim in enumerate(dims) if edge and dim.axes == (edge.row,)), None)
    if edge is None or part is None or place is None:
        return None
    length = layout.part_length
    end = clamp(edge.end_of_rows(last.frame.starts[place], dims[place].block), before, part.extent * length)
    parts = (end + (length - 1)) // length - before
    if parts == as_index(part.extent - before):
        return None
    until = Var("parts", part.extent + 1 - before)
    if edge.slope > 0:
        _longest_first(layout, place)
    layout.defines.append(Define(until, parts))
    return until


def guard_copies(items: Sequence[Item], at: Index, until: Var | None) -> list[Item]:
    """Return the copies of a part, guarded by the loop's end."""
    if until is None:
        return [*items]
    exists = Guard(as_index(until) - at - 1, 0, until.extent)
    return [guard_fetch(item, exists) if isinstance(item, Phase) else item for item in items]


def _longest_first(layout: BlockLayout, place: int) -> None:
    """Number blocks so that those with the longest rows start first, for balance. `place` is the dim of rows."""
    counts = [d.blocks for d in layout.schedule.segments[-1].dims]
    names = [Var(f"b{d}", count) for d, count in enumerate(counts)]
    inner, rows, counts[place] = layout.schedule.blocks // counts[place], counts[place], 1
    values = dict(zip(names, delinearise(as_index(layout.block) % inner, counts), strict=True))
    values[names[place]] = as_index(rows - 1) - as_index(layout.block) // inner
    layout.defines = [evolve(d, value=values.get(d.var, d.value)) for d in layout.defines]


@frozen
class SkippedParts:
    """Sums of 0 times the skipped parts, for the last segment's sums."""

    state: SegmentState

    def begin(self) -> list[Item]:
        """Return the items before all checks."""
        return [terms.begin for terms in self._terms]

    def rest(self, until: Index) -> list[Item]:
        """Return the items that check the parts from `until` on."""
        return [item for terms in self._terms for item in terms.rest(until)]

    @property
    def _terms(self) -> Iterator[_Terms]:
        reductions = self.state.frame.segment.reductions
        return (_Terms(self.state, number, reduction) for number, reduction in enumerate(reductions))


@frozen
class _Spread:
    """Division of a part's elements among threads.

    `together` threads have the same columns, numbered by `lane`; each has results of a `shape`.
    """

    together: int
    lane: Index
    shape: tuple[int, ...]
    shares: dict[Var, Share]
    unrolled: tuple[Var, ...]


@frozen
class _Terms:
    """The skipped part of one reduction: threads with the same columns divide the keys, and add their results in the
    shared memory of the scores, or in a buffer of their own.
    """

    state: SegmentState
    number: int
    reduction: Reduction

    @property
    def begin(self) -> Phase:
        """The phase that initialises a thread's results."""
        spread = self._division()
        return self._spread_phase("compute", f"nothing{self.number}", self._initialise(spread), (), spread)

    def rest(self, until: Index) -> list[Item]:
        """Return the items that check parts from `until` on, and add up."""
        frame, (looked, turn, blocks), spread = self.state.frame, self._check_phase(), self._division()
        begin = self._initialise(spread)
        skipped = Guard(as_index(turn) - until * blocks, 0, turn.extent)
        found: list[Item] = [Loop(turn, (evolve(looked, when=(*looked.when, skipped)),))]
        name = begin.name
        if spread.together > 1:
            found += self._exchange(begin, self._tiles, spread)
            name = f"{name}.all"
        held = RegisterRead(name, self._tiles, begin.dtype)
        added = Accumulate(self.reduction.name, tuple(map(as_index, frame.tiles)), "sum", held, (), begin.dtype)
        shares = {s.var: s for s in frame.shares}
        return [*found, self.state.phase("compute", f"rest{self.number}", [added], (), shares)]

    def _check_phase(self) -> tuple[Phase, Var, int]:
        """Return the phase that checks a block of keys, the variable that numbers blocks, and those of a part."""
        state, spread, length = self.state, self._division(), self.state.layout.part_length
        each, prefix = gcd(length // spread.together, MAX_CHECKED_ELEMENTS), f"{state.frame.prefix}n{self.number}"
        (dim,) = state.frame.schedule.reductions[self.number].dims
        dim = evolve(dim, block_k=spread.together * each)
        key, turn, own = Var(f"{prefix}k", dim.block_k), Var(f"{prefix}it", dim.trips), Var(f"{prefix}j", each)
        binding = state.bind((dim,), (key,), (as_index(turn) * dim.block_k,))
        terms = accumulate(state, evolve(self.reduction, body=self._body()), binding, (key,), {}, {})
        terms = evolve(terms, name=self._initialise(spread).name, at=self._tiles)
        share = Share(key, as_index(own) * spread.together + spread.lane, as_index(own))
        keyed = evolve(spread, shares=spread.shares | {key: share})
        return self._spread_phase("compute", f"none{self.number}", terms, (own,), keyed), turn, length // dim.block_k

    @property
    def _tiles(self) -> tuple[Index, ...]:
        """The place of a result: the tiles that the factors besides the weights depend on."""
        used = zip(self.state.frame.tiles, self._used_dims(), strict=True)
        return tuple(as_index(tile) if use else Index() for tile, use in used)

    def _initialise(self, spread: _Spread) -> Initialise:
        begin = self.state.initialise(self.reduction)
        return evolve(begin, name=f"{self.reduction.name}.none", shape=spread.shape)

    def _spread_phase(self, kind: str, name: str, root: Root, own: tuple[Var, ...], spread: _Spread) -> Phase:
        """Return a phase over a thread's elements of a part."""
        found = self.state.phase(kind, name, [root], (), spread.shares)
        return evolve(found, unrolled=(*(v for v in own if v.extent > 1), *spread.unrolled))

    def _division(self) -> _Spread:
        """Return how threads divide the elements of a part.

        Where results lie in registers, a thread takes neighbours that one load moves, of as many rows as there are
        threads for; else the columns of its own results.
        """
        state, used = self.state, self._used_dims()
        dims, length = state.frame.schedule.dims, state.layout.part_length
        shares = {s.var: s for s in state.frame.shares}
        shape = tuple(d.thread if use else 1 for d, use in zip(dims, used, strict=True))
        wide = [n for n, use in enumerate(used) if use and dims[n].block > 1]
        if len(wide) == 1 and self._buffer().name == SKIPPED_SUMS_BUFFER:
            (n,), columns, together = (
                wide,
                dims[wide[0]].block,
                int(skipped_rows(state.layout.schedule.threads, dims[wide[0]].block)),
            )
            if together and length % together == 0:
                element, thread = (
                    Var(f"{state.frame.prefix}n{self.number}e", SKIPPED_VECTOR),
                    as_index(state.layout.thread),
                )
                across = columns // SKIPPED_VECTOR
                place = thread % across * SKIPPED_VECTOR + element
                tile = state.frame.tiles[n]
                read = {t for t, use in zip(state.frame.tiles, used, strict=True) if use}
                shares = {v: s for v, s in shares.items() if v in read} | {tile: Share(tile, place, as_index(element))}
                shape = tuple(SKIPPED_VECTOR if d == n else count for d, count in enumerate(shape))
                return _Spread(together, thread // across, shape, shares, (element,))
        threads = [1 if use else d.threads for d, use in zip(dims, used, strict=True)]
        together = prod(threads) if self._fits(prod(threads)) else 1
        places = [Var(f"{state.frame.prefix}t{d}", count) for d, count in enumerate(threads)]
        lane = linearise(tuple(map(as_index, places)), row_major(tuple(threads))) if together > 1 else Index()
        return _Spread(together, lane, shape, shares, state.frame.unrolled)

    def _exchange(self, begin: Initialise, tiles: tuple[Index, ...], spread: _Spread) -> list[Item]:
        """Return the items that add the results of threads with the same columns."""
        state, buffer, used = self.state, self._buffer(), self._used_dims()
        dims, own = state.frame.schedule.dims, {s.var: s for s in state.frame.shares}
        sizes = tuple(d.block if use else 1 for d, use in zip(dims, used, strict=True))
        column, columns = linearise(tiles, row_major(sizes)), prod(sizes)
        other = Var(f"{state.frame.prefix}n{self.number}o", spread.together)
        held = RegisterRead(begin.name, tiles, begin.dtype)
        kept = Store("shared", buffer.name, spread.lane * columns + column, held, begin.dtype)
        there = Load("shared", buffer.name, as_index(other) * columns + column, begin.dtype)
        shape = tuple(d.thread if use else 1 for d, use in zip(dims, used, strict=True))
        every = evolve(begin, name=f"{begin.name}.all", shape=shape)
        total = Accumulate(every.name, tiles, "sum", there, (other,), begin.dtype)
        return [
            *([Barrier()] if self.number else []),
            self._spread_phase("exit", f"kept{self.number}", kept, (), spread),
            Barrier(),
            state.phase("compute", f"all{self.number}", [every, total], (other,), own),
        ]

    def _fits(self, together: int) -> bool:
        """Return whether so many threads may divide the keys of a part, and their results fit in the scores' buffer."""
        sizes = (d.block for d, use in zip(self.state.frame.schedule.dims, self._used_dims(), strict=True) if use)
        buffer, dtype = self._buffer(), self.state.group.tensors[self.reduction.name].dtype
        whole = self.state.layout.part_length % together == 0
        return whole and buffer.dtype is dtype and together * prod(sizes) <= buffer.elements

    def _buffer(self) -> SharedBuffer:
        scores = self.state.group.segments[1].reductions[0].body
        assert isinstance(scores, Read), "what has an edge"
        buffers = self.state.layout.buffers
        return buffers[scores.tensor] if scores.tensor in buffers else buffers[SKIPPED_SUMS_BUFFER]

    def _body(self) -> Expr:
        """Return 0 times the factors besides the weights."""
        tensors = self.state.group.tensors
        dtype = tensors[self.reduction.name].dtype
        body: Expr = Const(0.0, dtype)
        for part in factors(self.reduction.body):
            if not (isinstance(part, Read) and part.tensor in self.state.group.shared):
                body = call("mul", body, part if dtype_of(part, tensors) is dtype else Cast(dtype, part))
        return body

    def _used_dims(self) -> tuple[bool, ...]:
        """Return, per dim, whether the factors besides the weights depend on it."""
        found = expr_variables(self._body())
        return tuple(bool(found.intersection(dim.axes)) for dim in self.state.frame.schedule.dims)
