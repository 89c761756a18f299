"""What a point costs, counted from the accesses: the inputs of both performance models, for all points of a structure at once.

Counts are per block unless a name says otherwise, sums over the segments of the group. They follow how kernels are generated: every
element of a tile is computed (tails are predicated, not skipped), a value is computed and loaded once per box of the axes it depends
on, staged operands are computed in the fetch phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from attrs import frozen

from ..ir.expr import Call, Expr, Read, dtype_of, expr_variables, reads
from ..ir.index import variables
from ..ir.segment import FusedGroup, Segment, operands
from ..ir.target import Target
from .footprint import Count, ceil_div, least, product, segments_of
from .geometry import Geometry
from .place import Place, access_vector, place_of, tile_vector, wavefronts
from .tiles import StagedTile, staged_tiles
from .work import group_work, memory_reads, node_cost, nodes


@frozen
class PaperCounts:
    """What the paper's model knows of one segment: its predecessor's loads and transactions, the arithmetic of all its operations."""

    comp_block: Count
    comp_thread: Count
    loads: Count
    transactions: Count


@frozen
class Features:
    """Derived counts of a structure's points; every value broadcasts against the others.

    `flops` counts a multiply-add as two, `issue` as one slot; both for all threads of a block. `thread_flops` and `thread_loads` are
    `COMP_thread` and `N_load` of the paper. `shared_loads` are load instructions of all threads, `wavefronts` the least number of
    shared-memory or L1 cycles that all loads take. `transactions` are of `TRANS_global` elements, `bytes` of whole sectors a block must
    get at least, `fetched` the bytes it asks for, `stored` those it writes. `chain` is the longest chain of dependent operations of a
    thread, `body` the operations of its longest unrolled loop body, `tile` the elements of the smallest staged tile.
    """

    grid: Count
    threads: Count
    shared: Count
    registers: Count
    body: Count
    tile: Count
    flops: Count
    issue: Count
    thread_flops: Count
    thread_loads: Count
    shared_loads: Count
    wavefronts: Count
    global_loads: Count
    transactions: Count
    bytes: Count
    fetched: Count
    stores: Count
    stored: Count
    chain: Count
    barriers: Count
    rounds: Count
    stages: Count
    useful_flops: float
    unique_bytes: float
    segments: tuple[PaperCounts, ...]


class Totals:
    """Sums that are gathered while walking a group; one instance per call of `count_features`."""

    def __init__(self, group: FusedGroup, target: Target) -> None:
        self.group = group
        self.target = target
        self.sums: dict[str, Count] = dict.fromkeys(
            ("flops", "issue", "thread_flops", "thread_loads", "shared_loads", "wavefronts", "global_loads", "transactions", "bytes",
             "fetched", "stores", "stored", "chain", "barriers", "rounds", "body"), 0)  # fmt: skip

    def add(self, name: str, value: Count) -> None:
        """Add to one sum."""
        self.sums[name] = self.sums[name] + value

    def since(self, name: str, before: dict[str, Count]) -> Count:
        """Return how much a sum has grown since a copy of the sums was taken."""
        return self.sums[name] - before[name]

    def compute(self, expr: Expr, place: Place, stop: Sequence[Expr], fused: bool = False) -> None:
        """Count the arithmetic of an expression in every thread; `fused` makes the top node one half of a multiply-add."""
        for node in nodes(expr, stop):
            work = node_cost(node)
            if not work.issue:
                continue
            used = expr_variables(node)
            once = place.thread.dependent(used)
            times = once * place.repeats(frozenset(used)) * 1.0
            self.add("thread_flops", times * work.flops)
            self.add("flops", times * work.flops * place.threads)
            if not (fused and node == expr):
                self.add("issue", times * work.issue * place.threads)
                self.add("body", once * 1.0)

    def load(self, read: Read, place: Place, geometry: Geometry) -> None:
        """Count the loads of one read by every thread, straight from global memory or from a tensor held in shared memory."""
        used = frozenset[object]().union(*(variables(i) for i in read.indices))
        kind = self.group.tensors[read.tensor]
        times = place.loads(read, kind.shape) * place.repeats(used) * 1.0
        vector = access_vector(read, geometry, self.target.vector_bytes // kind.dtype.size)
        self.add("thread_loads", times)
        self.add("wavefronts", wavefronts(self.target, used, times / vector, vector * kind.dtype.size, geometry))
        if read.tensor in self.group.shared:
            self.add("shared_loads", times / vector * place.threads)
            return
        self.add("global_loads", times / vector * place.threads)
        self.add("fetched", times * place.threads * kind.dtype.size)
        self.block_traffic(read, place)

    def block_traffic(self, read: Read, place: Place) -> None:
        """Count what a block must get of one read's tensor, in transactions and in bytes of whole sectors."""
        kind = self.group.tensors[read.tensor]
        size = kind.dtype.size
        self.add("transactions", segments_of(read, kind.shape, place.whole, self.target.TRANS_global) * 1.0)
        unit = max(1, self.target.sector_bytes // size)
        self.add("bytes", segments_of(read, kind.shape, place.whole, unit) * float(min(self.target.sector_bytes, unit * size)))


def count_features(group: FusedGroup, geometry: Sequence[Geometry], target: Target) -> Features:
    """Return the counts of all points whose sizes are given, per segment."""
    totals = Totals(group, target)
    shared: Count = 0
    registers: Count = 0
    smallest: Count = np.inf
    parts: list[PaperCounts] = []
    for position, (segment, part) in enumerate(zip(group.segments, geometry, strict=True)):
        if position:
            totals.add("barriers", 1.0)
        tiles = staged_tiles(group, segment, part)
        for tile in tiles:
            smallest = least(smallest, tile.count)
        shared = shared + sum((t.bytes for t in tiles), 0) + held_bytes(group, segment, part)
        used, counts = _segment(totals, segment, part, tiles)
        registers = np.maximum(registers, used)
        parts.append(counts)
    threads: Count = 0
    for part in geometry:
        threads = np.maximum(threads, part.threads)
    last = geometry[-1]
    grid = product(ceil_div(prod(a.extent for a in d), b) * 1.0 for d, b in zip(last.structure.dims, last.block, strict=True))
    stages: Count = 1
    for part in geometry:
        stages = np.maximum(stages, part.stages)
    useful, unique = group_work(group)
    return Features(grid=grid, threads=threads, shared=shared, registers=registers, tile=smallest, stages=stages, useful_flops=useful,
                    unique_bytes=unique, segments=tuple(parts), **totals.sums)  # fmt: skip


def held_bytes(group: FusedGroup, segment: Segment, geometry: Geometry) -> Count:
    """Return the shared bytes of a tensor the segment leaves for later ones, and of the scratch of a reduction across lanes."""
    total: Count = 0
    if geometry.structure.shared:
        size = group.tensors[geometry.structure.shared].dtype.size
        total = ceil_div(product(geometry.block) * size, 16) * 16
    if geometry.structure.lanes:
        widest = max((group.tensors[r.name].dtype.size for r in segment.reductions), default=0)
        scratch = geometry.threads * widest
        total = total + np.where(np.greater(geometry.lanes, 1), ceil_div(scratch, 16) * 16, 0)
    return total


def _segment(totals: Totals, segment: Segment, geometry: Geometry, tiles: Sequence[StagedTile]) -> tuple[Count, PaperCounts]:
    """Add up one segment; return the estimate of its registers per thread, and its counts for the paper's model."""
    before = dict(totals.sums)
    own = [r.name for r in segment.reductions]
    instances = product(geometry.thread) * 1.0
    registers: Count = 24.0
    for position, reduction in enumerate(segment.reductions):
        place = place_of(geometry, geometry.structure.reduces[position])
        staged = {t.expr: t for t in tiles if t.reduction == position}
        registers = registers + instances + _reduce(totals, reduction.body, reduction.combine, place, staged, geometry, own)
        parts = operands(reduction, own)
        for part in parts:
            registers = registers + 2.0 * geometry.cover(geometry.thread).dependent(expr_variables(part)) * (len(parts) > 1)
    fetched = dict(totals.sums)
    for output in segment.outputs:
        which = [geometry.structure.loops.index(output.extra)] if output.extra in geometry.structure.loops else []
        place = place_of(geometry, which)
        totals.compute(output.body, place, ())
        per_thread = place.thread.dependent(frozenset(segment.axes + output.extra)) * place.all_trips * 1.0
        for read in memory_reads(output.body, own):
            totals.load(read, place, geometry)
        size = totals.group.tensors[output.tensor].dtype.size
        vector = access_vector(Read(output.tensor, output.write), geometry, totals.target.vector_bytes // size)
        totals.add("stores", per_thread / vector * geometry.threads)
        if output.tensor not in totals.group.shared:
            totals.add("stored", _stored(totals, output.tensor, geometry, which))
        if not segment.reductions:
            registers = registers + instances * (1 + len(memory_reads(output.body, own)))
    loaded = fetched if segment.reductions else totals.sums
    return registers, PaperCounts(
        totals.since("flops", before),
        totals.since("thread_flops", before),
        loaded["thread_loads"] - before["thread_loads"],
        loaded["transactions"] - before["transactions"],
    )


def _stored(totals: Totals, tensor: str, geometry: Geometry, which: Sequence[int]) -> Count:
    """Return the bytes a block writes of an output."""
    sizes = [least(b, prod(a.extent for a in d)) for d, b in zip(geometry.structure.dims, geometry.block, strict=True)]
    return product(sizes) * float(prod(geometry.extents(which))) * totals.group.tensors[tensor].dtype.size


def _reduce(
    totals: Totals, body: Expr, combine: str, place: Place, staged: dict[Expr, StagedTile], geometry: Geometry, own: Sequence[str]
) -> Count:
    """Add up one reduction; return the registers that a row held by the lanes takes."""
    fused = combine == "sum" and isinstance(body, Call) and body.fn == "mul"
    parallel = product(place.thread.sizes[: place.parallel]) * 1.0
    reduced = product(place.thread.sizes[place.parallel :]) * 1.0
    steps = parallel * reduced * place.all_trips
    totals.add("flops", steps * place.threads)
    totals.add("thread_flops", steps)
    totals.add("issue", steps * place.threads)
    totals.add("body", parallel * reduced)
    totals.add("chain", reduced * place.all_trips)
    totals.compute(body, place, tuple(staged), fused)
    for expr, tile in staged.items():
        _fetch(totals, expr, tile, place, geometry)
    held = {r for e in staged for r in reads(e)}
    for read in memory_reads(body, own):
        if read not in held:
            totals.load(read, place, geometry)
    if staged:
        totals.add("barriers", place.all_trips * np.where(np.greater(geometry.stages, 1), 1.0, 2.0))
    totals.add("rounds", place.all_trips * 1.0)
    if geometry.structure.lanes:
        _combine_lanes(totals, parallel, geometry)
    return np.where(np.greater(geometry.lanes, 1), reduced * parallel, 0.0)


def _combine_lanes(totals: Totals, parallel: Count, geometry: Geometry) -> None:
    """Count the reduction across lanes: shuffles within a warp, one exchange between warps; a tree where a warp is no warp."""
    steps = np.log2(geometry.lanes)
    warp = totals.target.warp_size
    tree = np.logical_or(totals.target.is_cpu, geometry.threads % warp != 0)
    exchanges = np.where(tree, steps + 2, np.where(np.greater(geometry.lanes, warp), 2.0, 0.0))
    several = np.greater(geometry.lanes, 1)
    totals.add("barriers", np.where(several, parallel * exchanges, 0.0))
    totals.add("issue", np.where(several, 2 * parallel * steps * geometry.threads, 0.0))
    totals.add("chain", np.where(several, parallel * steps, 0.0))


def _fetch(totals: Totals, expr: Expr, tile: StagedTile, place: Place, geometry: Geometry) -> None:
    """Count a staged operand: fetched by all threads together, then loaded from shared memory by each."""
    moved = tile.count * place.all_trips * 1.0
    for node in nodes(expr):
        work = node_cost(node)
        totals.add("flops", moved * work.flops)
        totals.add("issue", moved * work.issue)
    size = dtype_of(expr, totals.group.tensors).size
    for read in reads(expr):
        totals.add("global_loads", moved / (totals.target.vector_bytes // 4))
        totals.add("fetched", moved * totals.group.tensors[read.tensor].dtype.size)
        totals.block_traffic(read, place)
    totals.add("wavefronts", moved * size / totals.target.shared_bandwidth)
    used = expr_variables(expr)
    main = max(reads(expr), key=lambda r: len(expr_variables(r)))
    once = least(place.loads(main, totals.group.tensors[main.tensor].shape), place.thread.dependent(used))
    loads = once * place.repeats(frozenset(used)) * 1.0
    vector = least(tile_vector(expr, tile, geometry), totals.target.vector_bytes // size)
    totals.add("thread_loads", loads)
    totals.add("shared_loads", loads / vector * place.threads)
    totals.add("wavefronts", wavefronts(totals.target, used, loads / vector, vector * size, geometry))
