"""Kernels of kernel IR, with their buffers and definitions."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from ..affine import WIDEST_BYTES, Index, Var
from ..machine import BOX_BYTES, SWIZZLE_PERIOD, SharedMatrixLayout, TensorMap
from ..types import DType
from .items import Item, Producer, has_synchronisation, loops
from .synchronisation import Barrier


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


def opening_items(kernel: Kernel) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return the items that a launched block executes once, and the others.

    The first ones end with the first barrier; all items are others where the grid is not persistent.
    """
    if not kernel.launched:
        return (), kernel.items
    end = next(n for n, item in enumerate(kernel.items) if isinstance(item, Barrier)) + 1
    return kernel.items[:end], kernel.items[end:]
