"""Roots of a data-flow graph: nodes with an effect."""

from __future__ import annotations

from typing import TypeAlias, Union

from attrs import frozen

from ..affine import Guard, Index, Var
from ..types import DType
from .values import Value

PEERS = "peers"  #: Shared buffer of the values of a cluster's blocks.


@frozen(cache_hash=True)
class Store:
    """Store of a value to a buffer where all guards hold.

    With `into`, a reduction, the value is combined with the stored one, unless an integer in the address is no index.
    Instruction selection gives it an `axis` whose aligned neighbours it combines at once, and the condition `when` (a
    value, or none) of a store that keeps some elements. Values are appended within a buffer of `size` elements.
    """

    space: str
    buffer: str
    address: Index
    value: Value
    dtype: DType
    guards: tuple[Guard, ...] = ()
    into: str | None = None
    axis: Var | None = None
    when: tuple[Value, ...] = ()
    size: int = 0


@frozen(cache_hash=True)
class WideStore:
    """Store of values from element `address` on, where all guards hold."""

    space: str
    buffer: str
    address: Index
    values: tuple[Value, ...]
    dtype: DType
    guards: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class VectorStore:
    """Store of the elements along `axis`, `width` aligned neighbours at once.

    It takes place where all guards hold, and `when` does. Instruction selection makes it of a `Store`. With a
    `conversion`, one of `ir.machine.PACKED_CONVERSIONS`, it converts the values that it packs.
    """

    space: str
    buffer: str
    address: Index
    value: Value
    dtype: DType
    axis: Var
    width: int
    guards: tuple[Guard, ...] = ()
    when: tuple[Value, ...] = ()
    conversion: str = ""


@frozen(cache_hash=True)
class AsyncCopy:
    """Copy from global memory to a shared buffer.

    It is in flight until a `Wait`. `instruction` is one of `ir.machine.COPIES`. It moves `width` elements from
    `start` to `address`, several times to cover an `axis`; nothing where a guard fails, zeros where only `valid` fails.
    Instruction selection makes it of a `Store` of a `Load`.
    """

    instruction: str
    buffer: str
    address: Index
    source: str
    start: Index
    dtype: DType
    axis: Var | None = None
    width: int = 1
    guards: tuple[Guard, ...] = ()
    valid: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class Accumulate:
    """`held[at] = combine(held[at], value)` for every point of `over`, in order.

    Instruction selection gives it an `axis` along which it combines words of bytes.
    """

    name: str
    at: tuple[Index, ...]
    combine: str
    value: Value
    over: tuple[Var, ...]
    dtype: DType
    axis: Var | None = None


@frozen(cache_hash=True)
class LaneProduct:
    """`held[at] += a * b`, summed over `axis` and four neighbouring threads.

    One of the four adds the sum, the others 0. A matrix instruction takes words of two numbers of a half type at a
    `distance` of elements. It multiplies two of `rows`, a variable of `a` alone, if there is one. Instruction selection
    makes it of an `Accumulate`.
    """

    instruction: str
    name: str
    at: tuple[Index, ...]
    a: Value
    b: Value
    axis: Var
    dtype: DType
    distance: int = 1
    rows: tuple[Var, ...] = ()

    @property
    def axes(self) -> tuple[Var, ...]:
        """Variables over whose elements one node ranges."""
        return self.axis, *self.rows


@frozen(cache_hash=True)
class MmaAccumulate:
    """`held[at] += a * b`, summed over `over` by a matrix instruction.

    The instruction is one of `ir.machine`; the rows of its C lie along the dim of `at` at position `rows`,
    the columns along the one at `columns`. Instruction selection makes an `Mma` of it.

    Over a block, `a` and `b` are ordinary values, shares give the element that a lane holds of each, and `axes` are the
    variables of shares that number registers of A and of B, and elements in a register of A and of B. Over a thread,
    the operands are `Pack`s, only the first two axes are left, and `at` is the first element of one of C. `lane`
    numbers the threads of a warp. Where a thread's neighbours along a side are elements of several instructions,
    `mixed` gives their number along the rows and along the columns. Where the product `begins` the sum, the registers
    held nothing before. A matrix B that is `turned` lies in a buffer whose layout has its sides exchanged.
    """

    name: str
    at: tuple[Index, ...]
    mma: str
    a: Value
    b: Value
    over: tuple[Var, ...]
    dtype: DType
    rows: int = 0
    columns: int = 0
    axes: tuple[Var, ...] = ()
    lane: Var | None = None
    mixed: tuple[int, ...] = (1, 1)
    begins: bool = False
    turned: bool = False


@frozen(cache_hash=True)
class Mma:
    """Matrix instruction of a warp: `registers[results] += a * b`.

    `instruction` is one of `ir.machine.MMA_INSTRUCTIONS`. `results` are the registers of `name` that hold a lane's
    elements of C, in the order of its fragment. The first of `axes` numbers the registers of A, the second those of B.
    """

    instruction: str
    name: str
    results: tuple[Index, ...]
    a: Value
    b: Value
    axes: tuple[Var, ...]
    over: tuple[Var, ...]
    dtype: DType


@frozen(cache_hash=True)
class WarpgroupMma:
    """Asynchronous matrix instruction of a warpgroup: `registers += a * b`.

    Where it `begins` the sum, the registers become the product.
    The operands are matrices in shared memory, or A is a fragment in registers, which may not change before the product
    ends. The sums may be read after a `ProductWait`. `instruction` is one of
    `ir.machine.MMA_INSTRUCTIONS`; it multiplies `columns` columns. Every `pitch`th register of `name` from
    `upper` on holds a thread's elements of the upper one of its two rows, column by column, those from `lower` on hold
    the other row's.
    """

    instruction: str
    name: str
    columns: int
    upper: Index
    lower: Index
    a: Value
    b: Value
    over: tuple[Var, ...]
    dtype: DType
    pitch: int = 1
    begins: bool = False


@frozen(cache_hash=True)
class RegisterWrite:
    """Register write: `held[at] = value`.

    It keeps an operand of matrix instructions, or a fetched value on its way to shared memory, in registers until the
    next write; `shape` counts them.

    For an operand, over a block, shares for the `operand`, "a" or "b", give the elements that a lane holds, and `axes`
    are the variables of shares that number the registers of a fragment, and elements in a register. Over a thread,
    values that share a register are a `Pack`, and only the first axis is left. `lane` numbers the threads of a warp.
    """

    name: str
    at: tuple[Index, ...]
    shape: tuple[int, ...]
    value: Value
    dtype: DType
    operand: str = ""
    axes: tuple[Var, ...] = ()
    lane: Var | None = None


@frozen(cache_hash=True)
class Initialise:
    """Set a reduction's values, `shape` per thread, to its combiner's identity."""

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType


@frozen(cache_hash=True)
class LaneReduce:
    """Combine the values of `threads` threads at distances of `stride`.

    With `along` (`ir.segment.SCAN_MODES`), they hold elements of a row, the last number of `shape`, `vector` at a time;
    each becomes the combination of those before or after it, or (`ir.segment.SORT_ORDERS`) the place of one of `extent`
    elements of `keys`, from the first of `ranks` on. Else they get parts of `extent` values, or one gets the `whole`.
    A cluster's `blocks` write to `place` of `PEERS`. Terms `shifted` by a thread's maximum become so by that of all.
    In a `tree` values are combined by halves, wherever the threads lie.
    """

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType
    threads: int
    along: str = ""
    vector: int = 1
    keys: str = ""
    extent: int = 0
    ranks: tuple[int, ...] = ()
    blocks: int = 1
    place: int = 0
    stride: int = 1
    whole: bool = False
    shifted: str = ""
    tree: bool = False


Root: TypeAlias = Union[
    Store,
    WideStore,
    VectorStore,
    AsyncCopy,
    Accumulate,
    LaneProduct,
    MmaAccumulate,
    Mma,
    WarpgroupMma,
    RegisterWrite,
    Initialise,
    LaneReduce,
]
DfgNode: TypeAlias = Union[Value, Root]
