"""Sums over a group: arithmetic, loads, traffic of a block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from ....ir import (
    HALF_BYTES,
    DType,
    Expr,
    FusedGroup,
    Index,
    Read,
    Segment,
    Target,
    Var,
    expr_variables,
    indirects,
    is_exchange,
    owned_axes,
    reads,
    variables,
)
from ...geometry import (
    Count,
    Geometry,
    address_of,
    cached_reads,
    ceil_div,
    elements,
    is_scattered,
    least,
    places_of,
    product,
    random_groups,
    segments_of,
    shareable_loops,
    traffic_dim,
)
from ..feature_schema import SUMS
from ..mask_savings import MaskSavings
from ..memory_access import (
    EvaluationSite,
    access_vector,
    decoding_cost,
    evaluation_site,
    has_division,
    packed_vector,
    row_conflicts,
    shared_conflicts,
    shared_row_vector,
    unmoved_elements,
    warp_lines,
    wavefronts,
)
from ..roofline import node_cost, nodes
from ..row_registers import resident_row
from ..scatter_cost import BIN_INSTRUCTIONS, scatter_cost

#: Measured cycles of shared memory for each counted one, of rows that a cluster's blocks cache.
CACHED_ROW_CYCLES = 1.8
#: Instructions of a quotient and a remainder by a known number.
QUOTIENT_INSTRUCTIONS = 5.0


class Totals:
    """Sums over a group, one instance per call of `count_features`."""

    def __init__(self, group: FusedGroup, target: Target) -> None:
        self.group = group
        self.target = target
        self.sums: dict[str, Count] = dict.fromkeys(SUMS, 0)
        self.traffic: dict[Read, Count] = {}
        self.pitches: dict[str, tuple[Count, ...]] = {}
        self.threads: Count = 1
        self.blocks: Count = 1.0
        self.at_once: Count = np.bool_(False)
        self.seen: set[Expr] = set()
        self.repeat: Count = 1
        self.kept: dict[Read, Count] = {}
        self.copied: set[Read] = set()
        self.left: Count = 1
        self.first_dim = 0
        self.in_registers: frozenset[str] = frozenset()

    def add(self, name: str, value: Count) -> None:
        """Add to the sum of a count that `features.py` declares."""
        before = self.sums[name]
        self.sums[name] = value if type(before) is int and not before else before + value

    def begin(self, geometry: Geometry, again: bool, shared: bool = False) -> None:
        """Begin a statement, `again` after others of its segment.

        Statements over a row that reduction threads hold share loads and computations, and so does one whose loop is
        `shared` with the preceding statement.
        """
        resident = resident_row(geometry)
        if not shared and (not again or not np.any(resident)):
            self.seen = set()
        self.repeat = np.where(resident | shared, 0, 1) if again else 1
        self.left = 1.0 - next(iter(self.kept.values())) if again and self.kept else 1

    def combine(self, segment: Segment, geometry: Geometry) -> None:
        """Count the scatter of a segment, after its values.

        A privatised scatter takes several tiles, and stores only their combination.
        """
        found = scatter_cost(segment, self.group, geometry, self.target)
        if geometry.structure.scatter_dim >= 0:
            self.sums = {name: value * geometry.tiles for name, value in self.sums.items()}
            self.sums["stored"] = found.nbytes
            self.add("barriers", 2.0)
            self.add("wavefronts", found.wavefronts)
            self.add("issue", BIN_INSTRUCTIONS * found.bins)
            self.add("stores", found.bins)
        self.add("combined", found.sectors)

    def share_rows(self, segment: Segment, geometry: Geometry, before: Mapping[str, Count]) -> None:
        """Divide the counts from `before` on among a cluster's blocks.

        The first one has the most trips.
        """
        cluster, several = geometry.spread.cluster, np.greater(geometry.spread.cluster, 1)
        kept = ("body", "barriers", "shuffles")
        share = np.where(several, ceil_div(geometry.trips[0], cluster) / geometry.trips[0], 1.0)
        self.sums = {n: v if n in kept else before[n] + (v - before[n]) * share for n, v in self.sums.items()}
        cached = np.where(np.greater(geometry.spread.row_cache, 0), CACHED_ROW_CYCLES, 1.0)
        self.sums["wavefronts"] = before["wavefronts"] + self.since("wavefronts", before) * cached
        self.add("exchanged", np.where(several, 1.0 * shareable_loops(segment).count(False), 0.0))

    def add_quotients(self, segment: Segment, geometry: Geometry) -> None:
        """Count the divisions that find the axes of flattened dims.

        So are those of loops that lanes share. A thread divides once for each of its runs; it knows the terms of a loop
        that it unrolls.
        """
        if geometry.structure.mma:
            return
        own = {r.name for r in segment.reductions}
        found = [r for e in segment.expressions for r in reads(e) if r.tensor not in own]
        shared = np.greater(geometry.reduction_threads, 1)
        terms = [
            np.where(shared, ceil_div(prod(a.extent for a in loop), geometry.reduction_threads), 0)
            for loop in geometry.structure.loops
        ]
        runs = evaluation_site(geometry, []).groups
        for dim, times in zip((*geometry.structure.dims, *geometry.structure.loops), (*runs, *terms), strict=True):
            breaks = sum(
                any(_breaks(r, self.group.tensors[r.tensor].steps, *pair) for r in found) for pair in pairwise(dim)
            )
            self.add("quotients", QUOTIENT_INSTRUCTIONS * breaks * times * geometry.threads)

    def apply_mask(self, masked: MaskSavings) -> None:
        """Apply the savings of mask-block skipping."""
        self.sums = {name: value * masked.share(name) for name, value in self.sums.items()}

    def begin_segment(self, segment: Segment, geometry: Geometry) -> None:
        """Begin a segment, with the share of rows in its row cache."""
        self.kept, self.copied, self.first_dim = {}, set(), traffic_dim(segment, geometry.structure)
        if geometry.structure.caches_rows:
            row = geometry.block_k[0] * geometry.trips[0]
            part = np.minimum(1.0, geometry.spread.row_cache * geometry.spread.cluster / row)
            reads_ = cached_reads(segment, (*self.group.shared, *self.group.constants))
            self.kept = dict.fromkeys(reads_, part)

    def weight(self, node: Expr) -> Count:
        """Return the share of a node's cost that a statement bears.

        It is 0 for nodes of an earlier statement in its phase.
        """
        return self.repeat if node in self.seen else 1

    def since(self, name: str, before: Mapping[str, Count]) -> Count:
        """Return the growth of a sum since a copy of the sums."""
        return self.sums[name] - before[name]

    def compute(self, expr: Expr, place: EvaluationSite, stop: tuple[Expr, ...], fused: bool = False) -> None:
        """Count the arithmetic of an expression in every thread.

        `fused` makes the top node one half of a multiply-add.
        """
        known: dict[Hashable, tuple[Count, Count, Count]] = {}  # most nodes depend on the same variables
        for node in nodes(expr, stop):
            work = node_cost(node, self.group.tensors)
            if not work.issue:
                continue
            used, key = expr_variables(node), (expr_variables(node), work, node in self.seen)
            if key not in known:
                times = place.evaluations(used) * self.weight(node) * 1.0
                flops = times * work.flops
                known[key] = flops, flops * place.threads, times * work.issue * place.threads
            flops, every, issue = known[key]
            self.seen.add(node)
            self.add("thread_flops", flops)
            self.add("flops", every)
            if not (fused and node == expr):
                self.add("issue", issue)
                self.add("body", place.thread.dependent(used) * 1.0)
                if work.issue > 1:
                    self.add("functions", place.thread.dependent(used) * work.issue)

    def load(
        self, read: Read, place: EvaluationSite, geometry: Geometry, lattices: int = 1, scalar: bool = False
    ) -> None:
        """Count the loads of one read by every thread.

        They come straight from global memory, or from a tensor in shared memory. `lattices` is the number of disjoint
        sets of elements that the read's traffic stands for, 0 where another read's stands for it. Indices are read one
        by one (`scalar`).
        """
        if read.tensor in self.in_registers:
            self.seen.add(read)
            return
        used = places_of(read.indices)
        kind = self.group.tensors[read.tensor]
        again = place.repeats(used) * self.weight(read) * 1.0
        times = place.loads(read, kind) * again
        self.seen.add(read)
        widest = self.target.vector_bytes // kind.dtype.size
        vector = access_vector(read, kind.steps, geometry, widest, place.rows)
        if scalar:
            vector = np.ones_like(vector)
        elif kind.dtype.is_int:
            vector = np.maximum(vector, packed_vector(read, kind.steps, geometry, widest))
        if read.tensor in self.group.shared:
            vector = np.maximum(vector, shared_row_vector(self.group, read, geometry, widest))
        self.add("thread_loads", times)
        self.add_conversions(times * place.threads, kind.dtype)
        least_times = place.distinct(read, kind.steps) * again
        self.add_least_loads(used, least_times, widest, kind.dtype.size, geometry, place.threads)
        cycles = wavefronts(self.target, used, times / vector, vector * kind.dtype.size, geometry)
        if read.tensor in self.group.shared and geometry.structure.passes_rows:
            cycles = cycles * row_conflicts(geometry, self.target)
        elif read.tensor in self.pitches and self.target.lockstep:
            ways = shared_conflicts(read, self.pitches[read.tensor], kind.dtype.size, geometry, self.target)
            cycles = np.maximum(cycles, times / vector * ways * geometry.warps(self.target.warp_size))
        self.add("wavefronts", cycles)
        if read.tensor in self.group.shared:
            self.add("shared_loads", times / vector * place.threads)
            return
        part, left = self.kept.get(read, 0.0), 1.0
        if read in self.kept:
            self.add("shared_loads", part * times / vector * place.threads)
        if read in self.copied:
            left, times = 1.0 - part, times * (1.0 - part)
        elif read in self.kept:
            self.add("wavefronts", part * cycles)
            self.copied.add(read)
        self.add("global_loads", times / vector * place.threads)
        self.add("direct", times / vector)
        self.add("divided_direct", times / vector * has_division(read, geometry))
        self.add("fetched", times * place.threads * kind.dtype.size)
        self.block_traffic(read, place, lattices, left)
        self.add("decoding", times * decoding_cost(read, geometry) / vector * place.threads)
        self.add("quotients", times * self._divisions_of_loads(read, geometry) / vector * place.threads)
        self.touch(read, times, vector, place, geometry)
        self.touch_sectors(read, times / vector, place, geometry)

    def _divisions_of_loads(self, read: Read, geometry: Geometry) -> Count:
        """Return the instructions of divisions of each load, where the tail of a dim has a branch for it."""
        found: Count = 0
        for dim, block in zip(geometry.structure.dims, geometry.block, strict=True):
            breaks = sum(_breaks(read, self.group.tensors[read.tensor].steps, *pair) for pair in pairwise(dim))
            found = found + QUOTIENT_INSTRUCTIONS * breaks * np.not_equal(prod(a.extent for a in dim) % block, 0)
        return 0 if geometry.structure.mma else found

    def add_conversions(self, elements: Count, dtype: DType) -> None:
        """Count the conversions of elements of half types."""
        if dtype.is_float and dtype.size == HALF_BYTES:
            self.add("converted", elements)

    def add_least_loads(
        self, used: frozenset[object], loads: Count, widest: int, size: int, geometry: Geometry, threads: Count
    ) -> None:
        """Count the least cost of loads.

        A compiler may merge neighbours into vectors that the schedule does not ask for.
        """
        self.add("certain", loads / widest * threads)
        self.add("least_wavefronts", wavefronts(self.target, used, loads / widest, widest * size, geometry))

    def touch(self, read: Read, elements: Count, vector: Count, place: EvaluationSite, geometry: Geometry) -> None:
        """Count the memory lines and unmoved sector bytes of accesses.

        A thread accesses `elements` elements, with its warp.
        """
        if not self.target.lockstep:
            return
        kind, warps = self.group.tensors[read.tensor], geometry.warps(self.target.warp_size)
        unit = max(1, int(self.target.shared_bandwidth) // kind.dtype.size)
        weight = self.target.bounds.scattered_line
        lines = warp_lines(read, kind.steps, unit, place, geometry, self.target.warp_size, weight)
        self.add("lines", elements / vector * warps * lines)
        if geometry.structure.mma:
            sector = max(1, self.target.sector_bytes // kind.dtype.size)
            left = unmoved_elements(read, kind.steps, sector, geometry, self.target)
            self.add("partial", elements / vector * left * warps * kind.dtype.size)

    def touch_sectors(self, read: Read, loads: Count, place: EvaluationSite, geometry: Geometry) -> None:
        """Count the bytes of sectors that loads of warps touch."""
        if not self.target.lockstep or geometry.structure.mma:
            return
        kind, size = self.group.tensors[read.tensor], float(self.target.sector_bytes)
        unit = max(1, self.target.sector_bytes // kind.dtype.size)
        warp = warp_lines(read, kind.steps, unit, place, geometry, self.target.warp_size, 1.0)
        groups = random_groups if is_scattered(read) else segments_of
        if is_scattered(read):  # places along a loop are taken for neighbours
            used = variables(read.indices[-1])
            loads = loads / product(place.block.extents.get(v, 1) for row in place.rows for v in row if v in used)
        self.add("touched", loads * geometry.warps(self.target.warp_size) * warp * size)
        self.add("window", groups(read, kind.steps, place.block, unit) * size * self.repeat)

    def add_partial_stores(
        self, write: Read, stored: Count, vector: Count, place: EvaluationSite, geometry: Geometry
    ) -> None:
        """Count the bytes of touched sectors that stores leave.

        A thread stores `stored` elements with its warp. L2 takes each such sector as a whole. Neighbours are stored
        near each other where data name their places, too: those of one thread are not stored at once.
        """
        if not self.target.lockstep or geometry.structure.mma:
            return
        kind, lanes = self.group.tensors[write.tensor], product(geometry.lanes_along(self.target.warp_size))
        if place.rows:
            lanes = lanes * geometry.reduction_lanes(self.target.warp_size)
        unit = max(1, self.target.sector_bytes // kind.dtype.size)
        if is_scattered(write):
            near = product(geometry.vector) * (geometry.row_vector if place.rows else 1)
            touched = ceil_div(lanes * near, unit)
        else:
            touched = warp_lines(write, kind.steps, unit, place, geometry, self.target.warp_size, 1.0)
        left = least(touched, lanes * ceil_div(vector, unit)) * unit - lanes * vector
        pairs = segments_of(write, kind.steps, place.whole, 2 * unit) * (2.0 * unit)
        split = np.where(is_scattered(write), 0.0, pairs - elements(write, kind.steps, place.whole))
        self.add("split", np.maximum(0.0, split) * kind.dtype.size)
        times = stored / vector * geometry.warps(self.target.warp_size)
        self.add("partial_stores", np.maximum(0.0, left) * times * kind.dtype.size)

    def block_traffic(self, read: Read, place: EvaluationSite, lattices: int = 1, left: Count = 1.0) -> Count:
        """Count a block's traffic for one read, and return its bytes.

        Traffic is counted in transactions and in bytes of whole sectors. Of a repeated read only the share `left`
        counts.
        """
        kind = self.group.tensors[read.tensor]
        size = kind.dtype.size
        transactions = segments_of(read, kind.steps, place.whole, self.target.TRANS_global)
        self.add("transactions", transactions * float(lattices) * left)
        unit = max(1, self.target.sector_bytes // size)
        sectors = segments_of(read, kind.steps, place.whole, unit)
        moved = sectors * float(lattices * min(self.target.sector_bytes, unit * size))
        moved = moved * self._share_past_l1(read)
        before = self.traffic.get(read, 0)  # a block may get repeated reads from L1
        self.traffic[read] = np.maximum(before, moved)
        self.add("bytes", more := self.traffic[read] - before)
        random_bytes = random_groups(read, kind.steps, place.whole, unit) * min(self.target.sector_bytes, unit * size)
        self.add("missed", np.maximum(0.0, random_bytes - moved) * self.repeat * left)
        self.add("again", np.minimum(before, moved) * self.repeat * left)
        used = places_of(read.indices)
        dims = place.thread.dims[: place.parallel]
        outer, *inner = (bool(used.intersection(d)) for d in (*dims[self.first_dim :], ()))
        if not outer:
            self.add("columns", more)
        elif not any(inner):
            self.add("rows", more)
        elif (share := _distinct_share(read.indices, dims[self.first_dim])) < 1.0:
            self.add("columns", more * (1.0 - share))
        return more

    def _share_past_l1(self, read: Read) -> Count:
        """Return the share of blocks whose reads miss L1.

        In an exchange, tables serve all blocks of an SM from L1.
        """
        if not is_exchange(self.group):
            return 1.0
        owned = owned_axes(self.group.segments, self.group.shared)
        axes = {s.axes[n] for s, places in zip(self.group.segments, owned, strict=True) for n in places}
        return 1.0 if axes & places_of(read.indices) else least(1.0, self.target.NUM_SM / self.blocks)


def _breaks(read: Read, shape: Sequence[int], outer: Var, inner: Var) -> bool:
    """Return whether a read's address divides two neighbouring axes of a flattened dim."""
    if not places_of(read.indices) & {outer, inner}:
        return False
    steps: dict[object, int] = dict(address_of(read.indices, tuple(shape)).terms)
    return steps.get(outer, 0) != steps.get(inner, 0) * inner.extent or not steps.keys() & {outer, inner}


def _distinct_share(indices: Sequence[Index], axes: Sequence[Var]) -> float:
    """Return the share of distinct places along axes that only elements of integer tensors depend on."""
    looked_up = {i for index in indices for i in indirects(index) if variables(Index(0, ((i, 1),))) & {*axes}}
    direct = (p for index in indices for p, _ in index.terms if p not in looked_up)
    if any(variables(Index(0, ((p, 1),))) & {*axes} for p in direct):
        return 1.0
    return min(1.0, prod(i.extent for i in looked_up) / prod(a.extent for a in axes))
