"""Adding up the work of reductions: arithmetic, loads, fetch phases, traffic of a block, reductions across lanes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...ir import (
    MATH_MODES,
    ORDERS,
    Call,
    Expr,
    FusedGroup,
    Read,
    Reduction,
    Segment,
    Target,
    dtype_of,
    expr_variables,
    reads,
    variables,
    vector_widths,
)
from ..lowering import NARROWEST_COPY, kept_reads
from .access import (
    APART,
    Place,
    access_vector,
    copied_width,
    copy_cost,
    decoding_cost,
    depth_vector,
    divides,
    passed_vector,
    row_ways,
    tile_vector,
    unmoved,
    walks_evenly,
    warp_lines,
    wavefronts,
)
from .atom_work import AtomSide, atom_work, warps_of
from .counts import SUMS
from .footprint import Count, ceil_div, is_scattered, least, product, runs_of, scattered, segments_of
from .fragment_loads import filling_ways, fragment_loads
from .geometry import Geometry
from .joined import may_join
from .least_work import memory_reads, node_cost, nodes
from .meetings import VISITED, combining
from .registers import resident_row
from .tiles import StagedTile, own_order, own_pad

#: What a multiply-add counts for beside others of `alike` where both factors come from vectors along the depth: an
#: eighth, not a quarter, have three operands in one bank; filter gradients take no longer so than with tiles turned.
BOTH = 0.6
#: Tensor cores of an SM: each serves the warps of a quarter of it.
QUARTERS = 4.0
#: Clocks that an atom waits at least for the accumulator of the one before it, in those of dependent multiply-adds.
ATOM_CHAIN = 4.0
#: Bytes of sectors that L1 certainly keeps from one trip of a loop to the next, beside what shared memory takes.
KEPT = 32768.0


class Totals:
    """Sums that are gathered while walking a group; one instance per call of `count_features`."""

    def __init__(self, group: FusedGroup, target: Target) -> None:
        self.group = group
        self.target = target
        self.sums: dict[str, Count] = dict.fromkeys(SUMS, 0)
        self.traffic: dict[Read, Count] = {}
        self.seen: set[Expr] = set()
        self.repeat: Count = 1
        self.kept: dict[Read, Count] = {}
        self.copied: set[Read] = set()
        self.left: Count = 1

    def add(self, name: str, value: Count) -> None:
        """Add to the sum of a count that `counts.py` declares."""
        before = self.sums[name]
        self.sums[name] = value if type(before) is int and not before else before + value

    def begin(self, geometry: Geometry, again: bool, shared: bool = False) -> None:
        """Begin a statement, `again` after others of its segment: those over a row that lanes hold share what they load
        and compute, and so does one whose loop is `shared` with the statement before.
        """
        resident = resident_row(geometry)
        if not shared and (not again or not np.any(resident)):
            self.seen = set()
        self.repeat = np.where(resident | shared, 0, 1) if again else 1
        self.left = 1.0 - next(iter(self.kept.values())) if again and self.kept else 1

    def combine(self, segment: Segment, geometry: Geometry) -> None:
        """Count what a segment combines in memory, behind its values; where they meet in shared memory, tiles come in
        turns, and only what is left of them is stored.
        """
        found = combining(segment, self.group, geometry, self.target)
        if geometry.structure.meets >= 0:
            self.sums = {name: value * geometry.turns for name, value in self.sums.items()}
            self.sums["stored"] = found.nbytes
            self.add("barriers", 2.0)
            self.add("wavefronts", found.wavefronts)
            self.add("issue", VISITED * found.bins)
            self.add("stores", found.bins)
        self.add("combined", found.sectors)

    def keep(self, segment: Segment, geometry: Geometry) -> None:
        """Begin a segment: the part of what its statements read of a row that they find in shared memory."""
        self.kept, self.copied = {}, set()
        if geometry.structure.keeps:
            part = geometry.kept / (geometry.chunk[0] * geometry.trips[0])
            reads_ = kept_reads(segment, (*self.group.shared, *self.group.constants))
            self.kept = dict.fromkeys(reads_, part)

    def weight(self, node: Expr) -> Count:
        """Return how much of a node's cost a statement bears: none of what an earlier statement of its phase did."""
        return self.repeat if node in self.seen else 1

    def since(self, name: str, before: dict[str, Count]) -> Count:
        """Return how much a sum has grown since a copy of the sums was taken."""
        return self.sums[name] - before[name]

    def compute(self, expr: Expr, place: Place, stop: Collection[Expr], fused: bool = False) -> None:
        """Count the arithmetic of an expression in every thread;
        `fused` makes the top node one half of a multiply-add.
        """
        for node in nodes(expr, stop):
            work = node_cost(node)
            if not work.issue:
                continue
            used = expr_variables(node)
            once = place.thread.dependent(used)
            times = once * place.repeats(used) * self.weight(node) * 1.0
            self.seen.add(node)
            self.add("thread_flops", times * work.flops)
            self.add("flops", times * work.flops * place.threads)
            if not (fused and node == expr):
                self.add("issue", times * work.issue * place.threads)
                self.add("body", once * 1.0)

    def load(self, read: Read, place: Place, geometry: Geometry, lattices: int = 1) -> None:
        """Count the loads of one read by every thread, straight from global memory or from a tensor held in shared
        memory.

        `lattices` says for how many disjoint sets of elements the read's traffic stands, 0 where another one's stands
        for it.
        """
        used = frozenset[object]().union(*(variables(i) for i in read.indices))
        kind = self.group.tensors[read.tensor]
        again = place.repeats(used) * self.weight(read) * 1.0
        times = place.loads(read, kind.shape) * again
        self.seen.add(read)
        widest = self.target.vector_bytes // kind.dtype.size
        vector = access_vector(read, geometry, widest, place.rows)
        if read.tensor in self.group.shared:
            vector = np.maximum(vector, passed_vector(self.group, read, geometry, widest))
        self.add("thread_loads", times)
        least_times = place.distinct(read, kind.shape) * again
        self.at_least(used, least_times, widest, kind.dtype.size, geometry, place.threads)
        cycles = wavefronts(self.target, used, times / vector, vector * kind.dtype.size, geometry)
        if read.tensor in self.group.shared and geometry.structure.passes_rows:
            cycles = cycles * row_ways(geometry, self.target)
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
        self.add("divided_direct", times / vector * divides(read, geometry))
        self.add("fetched", times * place.threads * kind.dtype.size)
        self.block_traffic(read, place, lattices, left)
        self.add("decoding", times * decoding_cost(read, geometry) / vector * place.threads)
        self.touch(read, times, vector, place, geometry)

    def at_least(
        self, used: frozenset[object], loads: Count, widest: int, size: int, geometry: Geometry, threads: Count
    ) -> None:
        """Count what loads take at least: a compiler may merge neighbours into vectors where the schedule does not ask
        for it.
        """
        self.add("certain", loads / widest * threads)
        self.add("least_wavefronts", wavefronts(self.target, used, loads / widest, widest * size, geometry))

    def touch(self, read: Read, elements: Count, vector: Count, place: Place, geometry: Geometry) -> None:
        """Count the memory lines that a thread's accesses to so many elements touch, with its warp, and what of their
        sectors they do not move.
        """
        if not self.target.lockstep:
            return
        kind, warps = self.group.tensors[read.tensor], geometry.warps(self.target.warp_size)
        unit = max(1, int(self.target.shared_bandwidth) // kind.dtype.size)
        self.add("lines", elements / vector * warps * warp_lines(read, kind.shape, unit, place, geometry, self.target))
        if geometry.structure.atom:
            sector = max(1, self.target.sector_bytes // kind.dtype.size)
            left = unmoved(read, kind.shape, sector, geometry, self.target)
            self.add("partial", elements / vector * left * warps * kind.dtype.size)

    def block_traffic(self, read: Read, place: Place, lattices: int = 1, left: Count = 1.0) -> Count:
        """Count what a block must get of one read's tensor, in transactions and in bytes of whole sectors, but for the
        part `left` of it only where it reads it once more; return the bytes.
        """
        kind = self.group.tensors[read.tensor]
        size = kind.dtype.size
        runs, run = runs_of(read, kind.shape, place.whole)
        self.add("transactions", runs * ceil_div(run, self.target.TRANS_global) * float(lattices) * left)
        unit = max(1, self.target.sector_bytes // size)
        moved = runs * ceil_div(run, unit) * float(lattices * min(self.target.sector_bytes, unit * size))
        before = self.traffic.get(read, 0)  # a block may get what it reads twice from L1
        self.traffic[read] = np.maximum(before, moved)
        self.add("bytes", more := self.traffic[read] - before)
        apart = scattered(read, kind.shape, place.whole, unit) * min(self.target.sector_bytes, unit * size)
        self.add("missed", np.maximum(0.0, apart - moved) * self.repeat * left)
        self.add("again", np.minimum(before, moved) * self.repeat * left)
        used = frozenset[object]().union(*(variables(i) for i in read.indices))
        outer, *inner = (bool(used.intersection(d)) for d in (*place.thread.dims[: place.parallel], ()))
        if not outer:
            self.add("columns", more)
        elif not any(inner):
            self.add("rows", more)
        return more


#: Instructions that compare and choose between two words of 64 bits, and that bring one from another lane, at least.
WORD_COMPARED, WORD_MOVED = 3.0, 3.0


def add_reduction(
    totals: Totals,
    segment: Segment,
    reduction: Reduction,
    place: Place,
    staged: dict[Expr, StagedTile],
    geometry: Geometry,
    own: Sequence[str],
) -> None:
    """Add up one reduction."""
    if geometry.structure.atom:
        _add_atoms(totals, segment, place, staged, geometry)
        return
    body = reduction.body
    fused = reduction.combine == "sum" and isinstance(body, Call) and body.fn == "mul"
    parallel = product(place.thread.sizes[: place.parallel]) * 1.0
    reduced = product(place.thread.sizes[place.parallel :]) * 1.0
    steps = parallel * reduced * place.all_trips
    totals.add("flops", steps * place.threads)
    totals.add("thread_flops", steps)
    totals.add("issue", steps * place.threads)
    totals.add("body", parallel * reduced)
    totals.add("chain", reduced * place.all_trips)
    totals.compute(body, place, tuple(staged), fused)
    alike: Count = 0.0
    for expr, tile in staged.items():
        _fetch(totals, expr, tile, place, geometry)
        alike = alike + (np.not_equal(tile.turned, 0) & np.greater(depth_vector(expr, tile, geometry), 1))
    totals.add("alike", np.where(np.greater(alike, 1), BOTH, alike) * steps * place.threads)
    held = {r for e in staged for r in reads(e)}
    for read in memory_reads(body, own):
        if read not in held:
            totals.load(read, place, geometry)
    _wait(totals, staged, place, geometry)
    if geometry.structure.lanes:
        stretches = np.ceil(reduced / geometry.row_vector) if reduction.along else 1.0
        if reduction.along in ORDERS:
            _sort_lanes(totals, parallel * reduced, reduced * geometry.lanes, geometry)
        else:
            _combine_lanes(totals, parallel * stretches, geometry)


def _wait(totals: Totals, staged: Collection[Expr], place: Place, geometry: Geometry) -> None:
    """Count the rounds of a loop, and how often threads meet in it."""
    if staged:
        refilled = np.where(
            np.greater(place.all_trips, 1), 2.0 * place.all_trips, 1.0
        )  # a buffer that is read before it is filled again
        totals.add("barriers", np.where(np.greater(geometry.stages, 1), place.all_trips * 1.0, refilled))
    totals.add("rounds", place.all_trips * totals.repeat * totals.left * 1.0)


def _sectors(read: Read, place: Place, totals: Totals) -> Count:
    """Return the bytes of the sectors that a fetch touches in all trips: those of which it takes parts come again in
    later trips, unless L1 keeps a whole trip's.
    """
    kind = totals.group.tensors[read.tensor]
    unit = max(1, totals.target.sector_bytes // kind.dtype.size)
    touched = segments_of(read, kind.shape, place.block, unit) * float(totals.target.sector_bytes)
    return np.where(np.greater(touched, KEPT), touched * place.all_trips, 0.0)


def _add_atoms(
    totals: Totals, segment: Segment, place: Place, staged: dict[Expr, StagedTile], geometry: Geometry
) -> None:
    """Add up a reduction that atoms compute. Warps load their fragments, split what they hold into parts, multiply, and
    add partial sums where these are promoted.
    """
    work, warps, trips = atom_work(segment, geometry), warps_of(geometry), place.all_trips
    mode = MATH_MODES.get(segment.reductions[0].math)
    atoms = work.multiplications * trips * warps * 1.0
    totals.add("tensor", atoms * dict(totals.target.atoms).get(work.atom.name, 0.0) / QUARTERS)
    totals.add("issue", atoms * totals.target.warp_size)
    totals.add("body", work.multiplications * 1.0)
    totals.add("chain", work.steps * trips * work.products * ATOM_CHAIN)
    if mode is not None and mode.every:
        totals.add("issue", product(geometry.thread) * trips * geometry.threads * 1.0)
    for axis, side in enumerate(work.sides):
        size = dtype_of(side.expr, totals.group.tensors).size
        elements = side.atoms * side.elements * work.steps * 1.0
        totals.add("issue", elements * work.splitting * trips * geometry.threads)
        totals.add("body", elements * (1 + work.splitting))
        if side.expr in staged:
            _fill(totals, side.expr, staged[side.expr], place, geometry)
            _load_fragments(totals, segment, side, axis, size, side.atoms * work.steps * trips * 1.0, geometry)
        totals.add("thread_loads", elements * trips)
        totals.add("certain", elements * trips * geometry.threads * size / totals.target.vector_bytes)
        cycles = elements * trips * warps * (totals.target.warp_size * size / totals.target.shared_bandwidth)
        totals.add("least_wavefronts", cycles)
    _wait(totals, staged, place, geometry)
    if may_join(geometry):
        _join_warps(totals, segment, geometry)


def _join_warps(totals: Totals, segment: Segment, geometry: Geometry) -> None:
    """Count the exchange of sums of warps that divide the depth: every thread stores its own, and adds up those of a
    part of the results.
    """
    several = np.greater(geometry.lanes, 1)
    sums = np.where(several, product(geometry.block) * geometry.lanes, 0) * 1.0
    size = totals.group.tensors[segment.reductions[0].name].dtype.size
    cycles = 2.0 * sums * size / totals.target.shared_bandwidth
    totals.add("wavefronts", cycles)
    totals.add("least_wavefronts", cycles)
    totals.add("shared_loads", 2.0 * sums * size / totals.target.vector_bytes)
    totals.add("certain", 2.0 * sums * size / totals.target.vector_bytes)
    totals.add("issue", sums)
    totals.add("chain", np.where(several, geometry.lanes, 0) * 1.0)
    totals.add("barriers", np.where(several, 1.0, 0.0))
    totals.add("joined", np.log2(geometry.lanes))


def _load_fragments(
    totals: Totals, segment: Segment, side: AtomSide, axis: int, size: int, fragments: Count, geometry: Geometry
) -> None:
    """Count the loads of as many fragments of a staged operand by each warp, and what products wait of them: all, where
    they are not loaded ahead.
    """
    loads = fragment_loads(side.expr, axis, side.fragment, size, segment, geometry, totals.target)
    totals.add("shared_loads", fragments * loads.instructions * geometry.threads)
    cycles = fragments * loads.cycles * warps_of(geometry)
    totals.add("wavefronts", cycles)
    totals.add("waited", np.where(geometry.ahead, 0.0, cycles))
    (reduction,) = segment.reductions
    pad = own_pad(side.expr, reduction, geometry, size)
    turned = own_order(side.expr, reduction, geometry)
    d = (geometry.structure.rows, geometry.structure.columns)[axis]
    along, across = geometry.chunk[geometry.structure.reduces[0][0]], geometry.block[d]
    ways = filling_ways(np.where(turned, along, across), pad, size)
    moved = along * across * size / totals.target.shared_bandwidth
    totals.add("wavefronts", (ways - 1.0) * moved * product(geometry.trips))


def _combine_lanes(totals: Totals, parallel: Count, geometry: Geometry) -> None:
    """Count the reduction across lanes: shuffles within a warp, one exchange between warps for as many instances as a
    warp has lanes; a tree for each where a warp is no warp.
    """
    steps = np.log2(geometry.lanes)
    warp = totals.target.warp_size
    tree = np.logical_or(not totals.target.lockstep, geometry.threads % warp != 0)
    together = np.ceil(parallel / warp) * np.where(np.greater(geometry.lanes, warp), 2.0, 0.0)
    several = np.greater(geometry.lanes, 1)
    totals.add("barriers", np.where(several, np.where(tree, parallel * (steps + 2), together), 0.0))
    totals.add("issue", np.where(several, 2 * parallel * steps * geometry.threads, 0.0))
    totals.add("chain", np.where(several, parallel * steps, 0.0))


def _sort_lanes(totals: Totals, held: Count, row: Count, geometry: Geometry) -> None:
    """Count a network of comparisons over rows, of which a thread holds so many words: each step compares all of them,
    with words of its own, of its warp, or of another warp, through shared memory.
    """
    bits, near = np.log2(row), np.log2(geometry.row_vector)
    inside = np.log2(np.minimum(geometry.lanes, totals.target.warp_size))
    steps = bits * (bits + 1) / 2
    # Step d of a stage compares at bit d: what lies at bits `first` to `last` is compared once in each later stage.
    across = _steps_between(near + inside, near + np.log2(geometry.lanes), bits)
    shuffled = _steps_between(near, near + inside, bits)
    totals.add("issue", held * (steps * WORD_COMPARED + (shuffled + across) * WORD_MOVED) * geometry.threads)
    totals.add("chain", steps * WORD_COMPARED)
    totals.add("barriers", 2.0 * held * across)


def _steps_between(first: Count, last: Count, bits: Count) -> Count:
    """Return how many steps of a network of so many bits compare at a bit from `first` on, before `last`."""
    return (last - first) * bits - (last * (last - 1) - first * (first - 1)) / 2


def _fetch(totals: Totals, expr: Expr, tile: StagedTile, place: Place, geometry: Geometry) -> None:
    """Count a staged operand: fetched by all threads together, then loaded from shared memory by each."""
    size = dtype_of(expr, totals.group.tensors).size
    main = _fill(totals, expr, tile, place, geometry)
    used = expr_variables(expr)
    once = least(place.loads(main, totals.group.tensors[main.tensor].shape), place.thread.dependent(used))
    loads = once * place.repeats(frozenset(used)) * 1.0
    widest = totals.target.vector_bytes // size
    vector = least(tile_vector(expr, tile, geometry), widest)
    totals.add("thread_loads", loads)
    totals.at_least(used, loads, widest, size, geometry, place.threads)
    totals.add("shared_loads", loads / vector * place.threads)
    totals.add("wavefronts", wavefronts(totals.target, used, loads / vector, vector * size, geometry))


def _fill(totals: Totals, expr: Expr, tile: StagedTile, place: Place, geometry: Geometry) -> Read:
    """Count what fetching a staged operand takes; return the read that tells where its elements lie."""
    moved = tile.count * place.all_trips * 1.0
    for node in nodes(expr):
        work = node_cost(node)
        totals.add("flops", moved * work.flops)
        totals.add("issue", moved * work.issue)
    size = dtype_of(expr, totals.group.tensors).size
    together = max((4, *vector_widths(dtype_of(expr, totals.group.tensors))))
    main = max(reads(expr), key=lambda r: len(expr_variables(r)))
    # The constants of the estimate were fitted to scalar kernels of f32, whose copies count as wide ones everywhere.
    atom, narrow = bool(geometry.structure.atom), size < NARROWEST_COPY
    looked_at = totals.target.lockstep and (atom or narrow)
    shape = totals.group.tensors[main.tensor].shape
    width = copied_width(main, shape, geometry, together) if looked_at else None
    cost, ways = copy_cost(expr, tile, shape, geometry, together, width)
    past = (
        np.less_equal(cost, 1.0 / together) & np.greater(geometry.stages, 1) & np.equal(geometry.cached, 0)
        if totals.target.async_copy
        else np.bool_(False)
    )
    for read in reads(expr):
        kind = totals.group.tensors[read.tensor].dtype
        narrow = totals.target.async_copy or bool(vector_widths(kind))
        at_once = totals.target.vector_bytes // (min(4, kind.size) if narrow else 4)
        totals.add("global_loads", moved / at_once)
        totals.add("certain", moved / at_once)
        more = np.maximum(0.0, _sectors(read, place, totals) - moved * kind.size)
        totals.add("fetched", moved * kind.size + more)
        once = totals.block_traffic(read, place)
        totals.add("streamed", np.where(past, once, 0.0))
        totals.add("missed", more / 2.0)  # with what is asked for, as many bytes through L2
        if totals.target.lockstep and is_scattered(read):
            totals.add("lines", APART * moved)
        if atom:
            totals.add("missed", np.where(past, np.maximum(0.0, moved * kind.size - once), 0.0))
    totals.add("copies", moved * cost)
    if looked_at:
        carried = narrow & np.greater(cost * NARROWEST_COPY, size) | (atom and not isinstance(expr, Read))
        totals.add("carried", np.where(carried, moved * cost, 0.0))
    totals.add("scatter", moved * (ways - 1.0) / totals.target.warp_size)
    totals.add("wavefronts", moved * size / totals.target.shared_bandwidth)
    totals.add("least_wavefronts", moved * size / totals.target.shared_bandwidth)
    divided = moved * (cost if atom else np.where(tile.turned, cost, 1.0))
    if not atom:
        even = walks_evenly(main, shape, tile, geometry)
        divided = np.where(even, least(divided, geometry.threads * place.all_trips * 1.0), divided)
    totals.add("divided", divided * divides(main, geometry))
    return main
