"""Folded data-flow graphs of a phase.

A node stands for a family of scalar operations over a box of unrolled variables. Nodes are frozen and compare by value,
so equal computations are one node. The variables that a family ranges over (its *box*) are the variables that it
mentions: the box of an operand is part of the box of its user, a missing axis is a broadcast. The scalar graph of the
paper (DeepCuts section 5.1, Figure 3) is the expansion of the families.

A phase's graph is an ordered tuple of *roots*, the nodes with an effect; everything else is reached from them.
"""

from __future__ import annotations

from typing import TypeAlias, Union

from attrs import field, frozen

from .expr import Guard
from .index import Index, Var
from .types import DType, exactly


@frozen(cache_hash=True)
class Load:
    """Element of a buffer at a flat address.

    `space` is "global" or "shared". Where a guard fails, the value is `fill`.
    """

    space: str
    buffer: str
    address: Index
    dtype: DType
    guards: tuple[Guard, ...] = ()
    fill: float = field(default=0.0, eq=exactly)


@frozen(cache_hash=True)
class Literal:
    """A constant."""

    value: float | int | bool = field(eq=exactly)
    dtype: DType


@frozen(cache_hash=True)
class IndexNode:
    """The value of an index expression."""

    index: Index
    dtype: DType


@frozen(cache_hash=True)
class Test:
    """Boolean that is true where all guards hold."""

    guards: tuple[Guard, ...]
    dtype: DType = DType.BOOL


@frozen(cache_hash=True)
class Op:
    """A scalar function of `functions.FUNCTIONS` applied to values."""

    fn: str
    args: tuple[Value, ...]
    dtype: DType


@frozen(cache_hash=True)
class Convert:
    """A conversion to `dtype`."""

    arg: Value
    dtype: DType


@frozen(cache_hash=True)
class RegisterRead:
    """Register read: a reduction's value for one instance.

    `at` counts instances within a thread once extracted.
    """

    name: str
    at: tuple[Index, ...]
    dtype: DType


@frozen(cache_hash=True)
class Window:
    """Element of a family of loads that several users share.

    It is `load` with its variables `axes` at the places `at`. Neighbouring outputs of a convolution read
    overlapping elements; the family ranges over each distinct element once, and each user names its own.
    """

    load: Union[Load, VectorLoad]
    axes: tuple[Var, ...]
    at: tuple[Index, ...]

    @property
    def dtype(self) -> DType:
        """The element type of the loads."""
        return self.load.dtype


@frozen(cache_hash=True)
class Pack:
    """Register of 32 bits that holds several narrow values.

    It has a value for every place of `axis`, of the value's own element type, the first one in the low bits.
    """

    arg: Value
    axis: Var

    @property
    def dtype(self) -> DType:
        """The type of the register."""
        return DType.U32


@frozen(cache_hash=True)
class VectorLoad:
    """Loads of the elements along `axis`, neighbours at once.

    `pieces` counts the elements of each access, in order; several are an aligned vector. Instruction selection makes it
    of a `Load`.
    """

    space: str
    buffer: str
    address: Index
    dtype: DType
    axis: Var
    pieces: tuple[int, ...]
    guards: tuple[Guard, ...] = ()
    fill: float = field(default=0.0, eq=exactly)


@frozen(cache_hash=True)
class PackedLoad:
    """Register of 32 bits of narrow neighbours, the first at `address`.

    Instruction selection makes it of the `Pack` of a `Load`.
    """

    space: str
    buffer: str
    address: Index

    @property
    def dtype(self) -> DType:
        """The type of the register."""
        return DType.U32


@frozen(cache_hash=True)
class LdMatrix:
    """Registers of fragments that a warp loads from shared memory at once.

    `instruction` is one of `ir.instructions.MATRIX_LOADS`; a lane names the row of 16 bytes at `row`. `axes` number the
    registers, the last one fastest. Instruction selection makes it of a `Load`, or of the `Pack` of one.
    """

    instruction: str
    buffer: str
    row: Index
    axes: tuple[Var, ...]
    dtype: DType


Value: TypeAlias = Union[
    Load, Literal, IndexNode, Test, Op, Convert, RegisterRead, Window, Pack, VectorLoad, PackedLoad, LdMatrix
]


@frozen(cache_hash=True)
class Store:
    """Store of a value to a buffer where all guards hold.

    With `into`, a reduction, the value is combined with the stored one. An update is dropped where an integer in the
    address is no index of its axis.
    """

    space: str
    buffer: str
    address: Index
    value: Value
    dtype: DType
    guards: tuple[Guard, ...] = ()
    into: str | None = None


@frozen(cache_hash=True)
class WideStore:
    """Store of values to neighbouring elements, the first at `address`.

    It takes place where all guards hold.
    """

    space: str
    buffer: str
    address: Index
    values: tuple[Value, ...]
    dtype: DType
    guards: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class VectorStore:
    """Store of the elements along `axis`, `width` aligned neighbours at once.

    It takes place where all guards hold. Instruction selection makes it of a `Store`.
    """

    space: str
    buffer: str
    address: Index
    value: Value
    dtype: DType
    axis: Var
    width: int
    guards: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class AsyncCopy:
    """Copy from global memory to a shared buffer.

    It is in flight until a `Wait`. `instruction` is one of `ir.instructions.COPIES`. It moves `width` elements from
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
    """`held[at] = combine(held[at], value)` for every point of `over`, in order."""

    name: str
    at: tuple[Index, ...]
    combine: str
    value: Value
    over: tuple[Var, ...]
    dtype: DType


@frozen(cache_hash=True)
class MmaAccumulate:
    """`held[at] += a * b`, summed over `over` by a matrix instruction.

    The instruction is one of `ir.matrix_instructions`; the rows of its C lie along the dim of `at` at position `rows`,
    the columns along the one at `columns`.

    Over a block, `a` and `b` are ordinary values, shares give the element that a lane holds of each, and `axes` are the
    variables of shares that number registers of A and of B, and elements in a register of A and of B. Over a thread,
    the operands are `Pack`s, only the first two axes are left, and `at` is the first element of one of C. `lane`
    numbers the threads of a warp. Where a thread's neighbours along a side are elements of several instructions,
    `mixed` gives their number along the rows and along the columns.
    """

    name: str
    at: tuple[Index, ...]
    atom: str
    a: Value
    b: Value
    over: tuple[Var, ...]
    dtype: DType
    rows: int = 0
    columns: int = 0
    axes: tuple[Var, ...] = ()
    lane: Var | None = None
    mixed: tuple[int, ...] = (1, 1)


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
    """Set all held values of a reduction to its combiner's identity.

    `shape` counts instances per dim of a thread.
    """

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType


@frozen(cache_hash=True)
class LaneReduce:
    """Combine the values of the `lanes` threads that share an instance.

    All of them hold the result afterwards. With `along` (`ir.segment.SCAN_MODES`), threads hold the elements of a
    row, as many of an instance as the last number of `shape`, `vector` neighbours at a time, and each element becomes
    the combination of the elements before or after it; or, in an order (`ir.segment.SORT_ORDERS`), the place of
    the element of `keys` that comes there. The `extent` keys are held in the same way.
    """

    name: str
    shape: tuple[int, ...]
    combine: str
    dtype: DType
    lanes: int
    along: str = ""
    vector: int = 1
    keys: str = ""
    extent: int = 0


Root: TypeAlias = Union[
    Store, WideStore, VectorStore, AsyncCopy, Accumulate, MmaAccumulate, RegisterWrite, Initialise, LaneReduce
]
DfgNode: TypeAlias = Union[Value, Root]
