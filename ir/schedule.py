"""Schedules: one point of the parameter space of a fused group (DeepCuts Tables 3 and 4, generalised per axis).

Every kernel has one shape: a grid over block tiles of the output axes; per block, for each reduction, a loop over
chunks with a *fetch* and a *compute* phase; an epilogue; stores. A schedule says how axes are flattened and tiled,
which operands are staged in shared memory and how, how many lanes share a reduction, how many stages the loop has, and
how the grid is walked.
"""

from __future__ import annotations

from math import prod

from attrs import frozen

from .index import Var


@frozen(cache_hash=True)
class TileDim:
    """Output axes flattened row-major into one linear axis, its block tile and its thread tile (elements).

    Local element `u` in `[0, block)` belongs to thread coordinate `t` and its element `j`: `u = (j // vector) * (block
    // thread * vector) + t * vector + j % vector`. `block` is a multiple of `thread`, `thread` a multiple of `vector`;
    all of Table 4's `X_block`, `X_thread` are such pairs. A block takes `turns` tiles, one after another; more than one
    only where values meet in shared memory.
    """

    axes: tuple[Var, ...]
    block: int
    thread: int
    vector: int = 1
    turns: int = 1

    @property
    def extent(self) -> int:
        """Elements of the linear axis."""
        return prod(a.extent for a in self.axes)

    @property
    def blocks(self) -> int:
        """Blocks along it, each of which takes as many tiles as there are turns."""
        return -(-self.extent // (self.block * self.turns))

    @property
    def threads(self) -> int:
        """Threads along it in a block."""
        return self.block // self.thread


@frozen(cache_hash=True)
class ReduceDim:
    """Reduced axes flattened row-major into one linear axis, and how much of it one iteration handles (`C_input`)."""

    axes: tuple[Var, ...]
    chunk: int

    @property
    def extent(self) -> int:
        """Elements of the linear axis."""
        return prod(a.extent for a in self.axes)

    @property
    def trips(self) -> int:
        """Iterations of the loop over it."""
        return -(-self.extent // self.chunk)


@frozen(cache_hash=True)
class Staging:
    """How one operand of a reduction (by position in `segment.operands`) is staged in shared memory.

    `order` permutes the tile's natural coordinates (reduce dims or tensor dims first, as `passes.lowering.staging`
    lists them), outermost first: the paper's `FORMAT_shared`. `pad` adds elements to the pitch of the innermost
    coordinate against bank conflicts. Where `cached`, wide asynchronous copies leave what they bring in the L1 cache,
    for the block to bring again (neighbouring taps), or for the next block of the SM (weights). Where `carried`, and
    memory runs along another coordinate than the tile, threads carry neighbours of the tile in registers: a chunk's are
    loaded before another one is multiplied, each by itself, and stored behind it as one vector.
    """

    operand: int
    order: tuple[int, ...] = ()
    pad: int = 0
    cached: bool = False
    carried: bool = False


@frozen(cache_hash=True)
class ReductionSchedule:
    """Loop structure of one reduction: its dims, the staged operands, and how many buffers the loop cycles through.

    `stages` 1 is the paper's *normal* variant, 2 and more its *prefetching* variant generalised to a ring of buffers.
    `atom` names what multiplies (`ir.atoms`), empty for one multiply-add of numbers at a time: the rows of its C lie
    along the tile dim at position `rows`, the columns along the one at `columns`. With `ahead` 1, the operands of its
    next step are loaded into registers before those of a step are multiplied.
    """

    dims: tuple[ReduceDim, ...]
    staging: tuple[Staging, ...] = ()
    stages: int = 1
    atom: str = ""
    rows: int = 0
    columns: int = 0
    ahead: int = 0


@frozen(cache_hash=True)
class SegmentSchedule:
    """How a segment is spread over blocks and threads.

    `dims` cover the segment's axes, outermost first; threads are numbered with the last dim fastest, lanes fastest of
    all. `lanes` threads share each instance's reductions; where atoms multiply, they lie in as many warps, slowest of
    all, which take turns with the steps of a chunk. `row_vector` is how many neighbouring row elements a lane
    takes at once. `kept` elements of each row that several statements read, whole trips over it, lie in shared memory
    between them. `warp` is empty, or gives for each dim how many of a warp's lanes lie along it (product = warp size).
    With `zigzag`, neighbouring lanes alternate along the first of two such dims, so that eight lanes that load vectors
    together touch few distinct ones in either. Where it `meets`, values that are combined in memory are combined in
    shared memory first, and each block's result in memory then.
    """

    dims: tuple[TileDim, ...]
    reductions: tuple[ReductionSchedule, ...] = ()
    lanes: int = 1
    row_vector: int = 1
    warp: tuple[int, ...] = ()
    zigzag: bool = False
    kept: int = 0
    meets: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block that the segment uses."""
        return prod(d.threads for d in self.dims) * self.lanes

    @property
    def atomic(self) -> ReductionSchedule | None:
        """The first reduction that atoms compute: they say how a warp lies over the dims. None where there is none."""
        return next((r for r in self.reductions if r.atom), None)


@frozen(cache_hash=True)
class Schedule:
    """A point: one segment schedule per segment; the last one's dims make the grid.

    In a segment that writes shared memory, `dims` are the dims of the tensor it writes, one each, with `block` at least
    the box that the later segment reads. `index` is "computed" or "table" (section 6.2 of the paper). `raster` groups
    that many blocks of the outermost dim before moving along the others. `min_blocks` is the second argument of launch
    bounds, 0 for none.
    """

    segments: tuple[SegmentSchedule, ...]
    index: str = "computed"
    raster: int = 1
    min_blocks: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return max(s.threads for s in self.segments)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return prod(d.blocks for d in self.segments[-1].dims)
