"""Schedules: points of the parameter space of a fusion group.

The space is that of DeepCuts Tables 3 and 4, generalised per axis. Every kernel has one shape: a grid over block tiles
of the output axes; per block, for each reduction, a K loop with a *fetch* and a *compute* phase; an epilogue; stores. A
schedule fixes the flattening and tiling of axes, the staging of operands in shared memory, the threads of a reduction,
the pipeline stages of the loop, and the order of blocks in the grid.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from attrs import frozen

from .affine import Var
from .segment import SCAN_MODES, Reduction, Segment
from .traversal import expr_variables, reads
from .types import DType

#: Value of `ReductionSchedule.tma` with which a producer beside the warps that compute issues bulk copies.
WITH_PRODUCER = 2
#: Value with which blocks of a persistent grid take tiles in turn, and the producer runs ahead from tile to tile.
PERSISTENT = 3
#: Value with which two warpgroups of such a block take tiles in turn: one multiplies during the other's epilogue.
ALTERNATING = 4
#: Warpgroups that take tiles in turn.
TEAMS = 2


@frozen(cache_hash=True)
class TileDim:
    """Output axes flattened row-major, with a block tile and a thread tile.

    Tiles count elements. Local element `u` in `[0, block)` belongs to thread coordinate `t` and its element `j`: `u =
    (j // vector) * (block // thread * vector) + t * vector + j % vector`. `block` is a multiple of `thread`, `thread` a
    multiple of `vector`; all of Table 4's `X_block`, `X_thread` are such pairs. Rows of a warpgroup's products without
    vectors lie in the order of the instruction (`passes.geometry.row_place`). A block computes `tiles` tiles, one after
    another; more than one only for a privatised scatter.
    """

    axes: tuple[Var, ...]
    block: int
    thread: int
    vector: int = 1
    tiles: int = 1

    @property
    def extent(self) -> int:
        """Elements of the linear axis."""
        return prod(a.extent for a in self.axes)

    @property
    def blocks(self) -> int:
        """Blocks along the axis, each with `tiles` tiles."""
        return -(-self.extent // (self.block * self.tiles))

    @property
    def threads(self) -> int:
        """Threads along it in a block."""
        return self.block // self.thread


@frozen(cache_hash=True)
class ReduceDim:
    """Reduced axes flattened row-major, and the K block of one iteration.

    `block_k` is the K block (`C_input`).
    """

    axes: tuple[Var, ...]
    block_k: int

    @property
    def extent(self) -> int:
        """Elements of the linear axis."""
        return prod(a.extent for a in self.axes)

    @property
    def trips(self) -> int:
        """Iterations of the K loop."""
        return -(-self.extent // self.block_k)


@frozen(cache_hash=True)
class Staging:
    """Staging of one operand of a reduction in shared memory.

    `operand` is the position in `segment.operands`. `order` permutes the tile's natural coordinates (reduce dims or
    tensor dims first, as `passes.lowering.layout.staging` lists them), outermost first: the paper's `FORMAT_shared`.
    `pad` adds elements to the pitch of the innermost coordinate against bank conflicts. With `l1`, wide asynchronous
    copies leave their data in the L1 cache (.ca), for reuse by the block (neighbouring taps), or by the next block of
    the SM (weights). With `register_staged` (register staging), and where memory runs along another coordinate than the
    tile, threads pass neighbours of the tile through registers: the elements of a K block are loaded one by one before
    another K block is multiplied, and stored after it as one vector. Matrix instructions that read shared memory take
    tiles in natural or reversed order, with a `swizzle` of so many bytes.
    """

    operand: int
    order: tuple[int, ...] = ()
    pad: int = 0
    l1: bool = False
    register_staged: bool = False
    swizzle: int = 0


@frozen(cache_hash=True)
class ReductionSchedule:
    """Loop structure of one reduction: dims, staged operands and pipeline stages.

    `stages` 1 is the paper's *normal* variant, 2 and more its *prefetching* variant generalised to a pipeline of
    several stages. `mma` names the matrix instruction (`ir.machine`), empty for one multiply-add of numbers at a time:
    the rows of its C lie along the tile dim at position `rows`, the columns along the one at `columns`. With `prefetch`
    1 (prefetch distance), the operands of the next step are loaded into registers before those of a step are
    multiplied. With `tma`, one thread stages the operands by bulk copies of tensor maps; with
    `tma` 2, it belongs to a warp of its own, the producer.
    """

    dims: tuple[ReduceDim, ...]
    staging: tuple[Staging, ...] = ()
    stages: int = 1
    mma: str = ""
    rows: int = 0
    columns: int = 0
    prefetch: int = 0
    tma: int = 0

    @property
    def is_direct(self) -> bool:
        """Return whether threads read operands from memory: the loop has no barrier."""
        return not self.staging and not self.mma


@frozen(cache_hash=True)
class SegmentSchedule:
    """Distribution of a segment over blocks and threads.

    `dims` cover the segment's axes, outermost first; threads are numbered with the last dim fastest, reduction threads
    fastest, or slowest where they share columns. `reduction_threads` threads share each instance's reductions; with
    matrix instructions, they lie in as many warps, which divide the steps of a K block (warp split-K). A thread takes
    `row_vector` neighbouring row elements at once. `row_cache` elements of each row that several statements read, whole
    iterations over it, stay in a shared-memory row cache. `warp` is empty, or the warp layout: for each dim the number
    of a warp's lanes along it (product = warp size). Neighbouring lanes alternate along the first of two such dims, so
    that eight lanes that load vectors together touch few distinct ones in either. With `privatised` (privatised
    scatter), values that are combined in memory are combined in shared memory first, and then once per block in memory.
    The threads of `cluster` blocks, a thread block cluster, share each row: every block takes one trip over it.
    """

    dims: tuple[TileDim, ...]
    reductions: tuple[ReductionSchedule, ...] = ()
    reduction_threads: int = 1
    row_vector: int = 1
    warp: tuple[int, ...] = ()
    row_cache: int = 0
    privatised: bool = False
    cluster: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block that the segment uses."""
        return prod(d.threads for d in self.dims) * self.reduction_threads

    @property
    def atomic(self) -> ReductionSchedule | None:
        """First reduction with matrix instructions, or None.

        It determines the layout of a warp over the dims.
        """
        return next((r for r in self.reductions if r.mma), None)


@frozen(cache_hash=True)
class Schedule:
    """Candidate schedule: one segment schedule per segment.

    The last one's dims make the grid. In a segment that writes shared memory, `dims` are the dims of the tensor it
    writes, one each, with `block` at least the box that the later segment reads. `raster` groups that many blocks of
    the outermost dim before the next dim. `min_blocks` is the second argument of launch bounds, 0 for none.
    """

    segments: tuple[SegmentSchedule, ...]
    raster: int = 1
    min_blocks: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return max(s.threads for s in self.segments)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return prod(d.blocks for d in self.segments[-1].dims) * self.segments[-1].cluster


# ---- rows that threads walk


@lru_cache(maxsize=4096)
def is_recurrence(reduction: Reduction) -> bool:
    """Return whether each element of a row follows from the one before."""
    return reduction.along in SCAN_MODES and any(r.tensor == reduction.name for r in reads(reduction.body))


@lru_cache(maxsize=4096)
def walked_row(segment: Segment) -> Var | None:
    """Return the row that a thread may walk, element by element.

    It is that of all outputs, and of prefix scans in one direction. Other reductions do not depend on it.
    """
    scans, others = ([r for r in segment.reductions if bool(r.along) is along] for along in (True, False))
    kinds = {(r.reduce, SCAN_MODES.get(r.along, ("",))[0]) for r in scans}
    row, direction = next(iter(kinds)) if len(kinds) == 1 else ((), "")
    if direction == "" or len(row) != 1 or any(o.extra != row or o.into for o in segment.outputs):
        return None
    names = {r.name for r in scans}
    fixed = all({*row}.isdisjoint({*r.reduce, *expr_variables(r.body)}) for r in others)
    return row[0] if fixed and not any(r.tensor in names for o in others for r in reads(o.body)) else None


# ---- rows and columns that lanes share

#: Values of a digit of a radix sort; fewest words of a lane and of a row that are sorted so, and most lanes: with more,
#: rows are sorted where there is no shared memory for whole ones.
RADIX_DIGITS, MIN_RADIX_WORDS, MIN_RADIX_ROW, MAX_RADIX_LANES = 16, 8, 1024, 512
#: Most warps whose values every thread reads and combines; of more, lanes divide them.
MAX_READ_WARPS = 8


def sorts_by_radix(count: Any, lanes: Any) -> Any:
    """Return whether rows of lanes with `count` words are sorted by radix."""
    few = (lanes >= RADIX_DIGITS) & (lanes <= MAX_RADIX_LANES)
    return few & (count >= MIN_RADIX_WORDS) & (count * lanes >= MIN_RADIX_ROW)


def key_bits(kind: DType) -> int:
    """Return the bits of a key, which orders elements of a type.

    Unsigned integers have those in memory, others 32.
    """
    return 8 * kind.size if kind.element.kind == "unsigned" else 32


def radix_words(count: Any, threads: Any) -> Any:
    """Return the shared memory of a radix sort, in words.

    It has the sums of a scan, and the rows or the counts of digits.
    """
    return threads * (count + 1) + (threads + 1) // 2
