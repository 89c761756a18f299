"""Kernel IR: a scheduled group as structured phases over block tiles.

The same classes describe a kernel before extraction (phases over the block's box, which `shares` divide over threads)
and after (phases over one thread's box, `shares` empty).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, Union

from attrs import field, frozen

from .affine import WIDEST_BYTES, Guard, Index, Var
from .dfg import LaneReduce, Mma, MmaAccumulate, Root, WarpgroupMma
from .machine import BOX_BYTES, LANES, SWIZZLE_PERIOD, SharedMatrixLayout, TensorMap
from .types import DType


@frozen(cache_hash=True)
class Share:
    """Division of one box variable of a phase over threads.

    `value` is the element a thread handles, in terms of thread coordinates and thread-local variables; `register`
    numbers it among the thread's own elements. `valid` holds where the element exists, for divisions with a remainder.
    With matrix instructions, a warp holds other elements of the operands than of the result: `operand` is "a", "b" or
    "c" for a share that only counts there.
    """

    var: Var
    value: Index
    register: Index
    valid: tuple[Guard, ...] = ()
    operand: str = ""


@frozen(cache_hash=True)
class Phase:
    """Data-flow graph that all threads execute between two barriers.

    `kind` is "fetch", "compute" or "exit". The phase runs only where `when` holds. `unrolled` lists the box variables
    in the order of their loops, outermost first. An `asynchronous` phase may issue copies that are in flight until a
    `Wait`; with `l1`, they leave their data in the L1 cache too (.ca). Instruction selection opens `scopes`: loops
    that hold everything that ranges over their variables.
    """

    kind: str
    name: str
    roots: tuple[Root, ...]
    unrolled: tuple[Var, ...]
    shares: tuple[Share, ...] = ()
    when: tuple[Guard, ...] = ()
    asynchronous: bool = False
    l1: bool = False
    scopes: tuple[Var, ...] = ()


@frozen(cache_hash=True)
class Barrier:
    """Block-wide barrier; shared memory is consistent afterwards."""


@frozen(cache_hash=True)
class Commit:
    """Close the group of asynchronous copies issued since the last one."""


@frozen(cache_hash=True)
class Wait:
    """Wait until at most `pending` groups of asynchronous copies are unfinished."""

    pending: int


@frozen(cache_hash=True)
class Loop:
    """Loop `for var in [0, var.extent)` over K blocks.

    It ends before `until`, a definition that is the same for all threads of a block, where there is one; with
    `at_least_once` not before the second iteration. Instruction selection sets the factor `unroll`.
    """

    var: Var
    body: tuple[Item, ...]
    until: Var | None = None
    at_least_once: bool = False
    unroll: int = 1


@frozen(cache_hash=True)
class ProxyFence:
    """Make a thread's writes to shared memory visible to asynchronous products.

    Products of other threads see them after the next barrier.
    """


@frozen(cache_hash=True)
class ProductFence:
    """Order a warpgroup's register writes before the products after it.

    Those of the registers `names` are written in each K block.
    """

    names: tuple[str, ...] = ()


@frozen(cache_hash=True)
class ProductCommit:
    """Close the group of products issued since the last one."""


@frozen(cache_hash=True)
class ProductWait:
    """Wait until at most `pending` groups of products are unfinished.

    The registers `names` may be used afterwards: no unfinished product adds to them. Those of `before` are computed
    while products are unfinished.
    """

    pending: int
    names: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


@frozen(cache_hash=True)
class TurnWait:
    """Wait for a warpgroup's turn to issue products."""


@frozen(cache_hash=True)
class TurnPass:
    """Give the turn to the next warpgroup in a circle.

    Warpgroups from `first` to `last` do, `last` excluded: once before all turns the last one, so that the first one
    begins, then all. Tensor cores then serve one after the other; each computes values meanwhile.
    """

    first: int
    last: int


@frozen(cache_hash=True)
class LaneExchange:
    """Transposition of results among the four lanes of a row.

    Of every eight neighbours of a lane in the registers `name`, along tile dim `dim`, pair p of lane t becomes pair t
    of lane p. Lanes hold pairs of four groups of columns before, and eight neighbours of one group afterwards.
    """

    name: str
    dim: int


@frozen(cache_hash=True)
class MbarrierInit:
    """Initialise all mbarriers of the shared buffer `barriers`.

    A phase of an mbarrier completes with `arrivals` arrivals and the expected bytes. Threads see it after a barrier.
    """

    barriers: str
    arrivals: int


@frozen(cache_hash=True)
class BulkCopy:
    """Copy of a tensor map's box to `address` of a shared buffer.

    The box begins at `coordinates`.
    """

    map: str
    coordinates: tuple[Index, ...]
    buffer: str
    address: Index


@frozen(cache_hash=True)
class BulkFetch:
    """Copies that one thread issues, where `when` holds.

    It arrives at mbarrier `slot` of `barriers`, and expects `nbytes` bytes there.
    """

    barriers: str
    slot: Index
    nbytes: int
    copies: tuple[BulkCopy, ...]
    when: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class MbarrierWait:
    """Wait for the phase of parity `parity` of mbarrier `slot`.

    Its copies are complete for the waiting thread.
    """

    barriers: str
    slot: Index
    parity: Index


@frozen(cache_hash=True)
class MbarrierArrive:
    """Arrive at mbarrier `slot` where `when` holds, once for each warp."""

    barriers: str
    slot: Index
    when: tuple[Guard, ...] = ()


Item: TypeAlias = Union[
    Phase,
    Barrier,
    Commit,
    Wait,
    ProxyFence,
    ProductFence,
    ProductCommit,
    ProductWait,
    TurnWait,
    TurnPass,
    LaneExchange,
    MbarrierInit,
    BulkFetch,
    MbarrierWait,
    MbarrierArrive,
    Loop,
]


@frozen(cache_hash=True)
class Producer:
    """Items of one thread of `threads` beside those that compute.

    It begins after the kernel's first barrier. With `registers`, its threads keep so many, and the others get `others`.
    """

    body: tuple[Item, ...]
    threads: int = LANES
    registers: int = 0
    others: int = 0


@frozen(cache_hash=True)
class SharedBuffer:
    """Shared memory of `elements` elements, all pipeline stages included.

    Where matrix instructions read it in place, each stage is a matrix of `extent` rows or columns by `depth`, K-major
    where it is `deep`. A `swizzle` permutes the bytes of each element's address when the address is printed. Boxes of
    tensor maps lie in a `boxed` buffer.
    """

    name: str
    dtype: DType
    elements: int
    extent: int = 0
    depth: int = 0
    swizzle: int = 0
    deep: bool = False
    boxed: bool = False

    @property
    def matrix(self) -> SharedMatrixLayout:
        """Layout of a stage that matrix instructions read."""
        return SharedMatrixLayout(self.extent, self.depth, self.dtype.size, self.swizzle, self.deep)

    @property
    def alignment(self) -> int:
        """Alignment in bytes: of a vector, a box, or a swizzle."""
        return SWIZZLE_PERIOD if self.swizzle else BOX_BYTES if self.boxed else WIDEST_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes, rounded up so that an equal buffer may follow."""
        return -(-self.elements * self.dtype.size // self.alignment) * self.alignment


@frozen(cache_hash=True)
class Define:
    """Definition `var = value`, computed once per thread at the kernel's start.

    It defines block and thread coordinates.
    """

    var: Var
    value: Index


def turn_variable(blocks: int, launched: int) -> Var:
    """Return the variable that numbers the blocks of a launched block."""
    return Var("turn", -(-blocks // max(1, launched)))


def done_variable(turns: int, trips: int) -> Var:
    """Return the number of the K blocks of earlier turns.

    Data end the loops, of at most `trips` K blocks each.
    """
    return Var("done", (turns - 1) * trips + 1)


@frozen
class Kernel:
    """Kernel: grid of `blocks`, `threads` per block, definitions, buffers and phases.

    `reads` and `writes` are global tensors (parameters, in order); `dtypes` their element types; `aligned` the known
    alignment of their base in bytes. `constants` are small arrays that stand in the kernel's text, `maps` the tensor
    maps of read tensors. A `producer`, at most one, fetches for the threads that compute. Of a persistent grid so many
    blocks are `launched`: each takes every `launched`th block in turn, after the items up to the first barrier. With
    several `teams` of `threads` threads, tile t of a launched block is that of team t % teams; a turn is then that of
    the next tile, which the first tile has. Each `cluster` consecutive blocks run together, and exchange values.
    """

    blocks: int
    threads: int
    defines: tuple[Define, ...]
    shared: tuple[SharedBuffer, ...]
    items: tuple[Item, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    dtypes: Mapping[str, DType]
    aligned: Mapping[str, int] = field(factory=dict)
    constants: Mapping[str, tuple[float, ...]] = field(factory=dict)
    min_blocks: int = 0
    maps: tuple[TensorMap, ...] = ()
    producer: tuple[Producer, ...] = ()
    launched: int = 0
    teams: int = 1
    cluster: int = 1

    @property
    def turn(self) -> Var:
        """Number of blocks that a launched block took before."""
        return turn_variable(self.blocks, self.launched or self.blocks)

    @property
    def done(self) -> tuple[Var, Var] | None:
        """Number of the K blocks of earlier turns.

        A definition adds to it. None where data end no loop, or blocks take one turn.
        """
        early = [(loop.var, loop.until) for loop in loops(self.items) if loop.until is not None]
        if self.turn.extent == 1 or not early:
            return None
        step, until = early[0]
        return done_variable(self.turn.extent, step.extent), until

    @property
    def launched_threads(self) -> int:
        """Threads of a block, those of the producer included."""
        return self.teams * self.threads + sum(producer.threads for producer in self.producer)

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block."""
        return sum(b.nbytes for b in self.shared)


@frozen
class HorizontalKernel:
    """Kernels that share a launch by horizontal fusion.

    Block `b` of the launch is block `b - first` of the member whose range holds `b`, where `first` counts the blocks of
    the members before it. Members are independent, and so are their tensors: tensor `t` of member `n` is `n.t` here.
    Equal members are adjacent.
    """

    kernels: tuple[Kernel, ...]

    @property
    def blocks(self) -> int:
        """Blocks of all members."""
        return sum(kernel.blocks for kernel in self.kernels)

    @property
    def threads(self) -> int:
        """Threads of a block: those of the widest member."""
        return max(kernel.threads for kernel in self.kernels)

    @property
    def launched_threads(self) -> int:
        """Threads of a block: no member has a producer."""
        return self.threads

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the largest of the members."""
        return max(kernel.shared_bytes for kernel in self.kernels)

    @property
    def legal(self) -> bool:
        """Return whether idle threads of narrow members miss no barrier.

        No member has tensor maps, or clusters of blocks.
        """
        waits = all(kernel.threads == self.threads or not has_synchronisation(kernel.items) for kernel in self.kernels)
        return waits and not any(kernel.maps or kernel.cluster > 1 for kernel in self.kernels)


def member_name(number: int, tensor: str) -> str:
    """Return the name of a member's tensor in its bundle."""
    return f"{number}.{tensor}"


def has_synchronisation(items: Sequence[Item]) -> bool:
    """Return whether threads synchronise in some items."""
    for item in items:
        combines = isinstance(item, Phase) and any(
            isinstance(root, (LaneReduce, MmaAccumulate, Mma, WarpgroupMma)) for root in item.roots
        )
        if (
            combines
            or isinstance(item, (Barrier, MbarrierWait, LaneExchange))
            or (isinstance(item, Loop) and has_synchronisation(item.body))
        ):
            return True
    return False


def phases(items: tuple[Item, ...]) -> list[Phase]:
    """Return all phases, loops entered, in order."""
    found: list[Phase] = []
    for item in items:
        if isinstance(item, Phase):
            found.append(item)
        elif isinstance(item, Loop):
            found.extend(phases(item.body))
    return found


def opening_items(kernel: Kernel) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return the items that a launched block executes once, and the others.

    The first ones end with the first barrier; all items are others where the grid is not persistent.
    """
    if not kernel.launched:
        return (), kernel.items
    end = next(n for n, item in enumerate(kernel.items) if isinstance(item, Barrier)) + 1
    return kernel.items[:end], kernel.items[end:]


def bulk_fetches(items: tuple[Item, ...]) -> list[BulkFetch]:
    """Return all bulk fetches, loops entered, in order."""
    inner = ([item] if isinstance(item, BulkFetch) else bulk_fetches(item.body) for item in items
             if isinstance(item, (BulkFetch, Loop)))  # fmt: skip
    return [fetch for found in inner for fetch in found]


def loops(items: tuple[Item, ...]) -> list[Loop]:
    """Return all loops, outer ones before those inside of them."""
    found: list[Loop] = []
    for loop in (item for item in items if isinstance(item, Loop)):
        found += [loop, *loops(loop.body)]
    return found
