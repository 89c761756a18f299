"""Values of a data-flow graph."""

from __future__ import annotations

from typing import TypeAlias, Union

from attrs import evolve, field, frozen

from ..affine import Guard, Index, IndexLike, Var, as_index, substitute, substitute_guards
from ..types import DType, exactly


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
    of a `Load`, or of its conversion from the `stored` type by one of `ir.machine.UNPACKED_CONVERSIONS`. Elements of
    `bits` lie several in a stored byte, the first one in the low bits; `zero` is subtracted from each, and `pieces`
    count bytes. Words of a u32 `dtype` stay as they are, at the place of the first number; their
    conversion has two numbers, at a `distance` of elements.
    """

    space: str
    buffer: str
    address: Index
    dtype: DType
    axis: Var
    pieces: tuple[int, ...]
    guards: tuple[Guard, ...] = ()
    fill: float = field(default=0.0, eq=exactly)
    stored: DType | None = None
    bits: int = 0
    zero: int = 0

    @property
    def per_byte(self) -> int:
        """Elements along the axis in an element of memory."""
        return 8 // self.bits if self.bits else 1

    @property
    def distance(self) -> int:
        """Elements between the numbers of a pair."""
        return 16 // (self.bits or 8 * self.memory_dtype.size)

    @property
    def line(self) -> VectorLoad:
        """Load of the stored bytes, along an axis of their own."""
        if not self.bits:
            return self
        axis = Var(self.axis.name, self.axis.extent // self.per_byte)
        moved: dict[Var, IndexLike] = {self.axis: as_index(axis) * self.per_byte}
        address, guards = substitute(self.address, moved), substitute_guards(self.guards, moved)
        return evolve(self, address=address, guards=guards, axis=axis, bits=0)

    @property
    def memory_dtype(self) -> DType:
        """Element type of the buffer."""
        return self.stored or self.dtype


@frozen(cache_hash=True)
class PackedConvert:
    """Conversion of floats to bytes and back, a word at a time.

    Neighbours along `axis` become bytes of type `through`. Instruction selection makes it of two of `Convert`.
    """

    arg: Value
    dtype: DType
    through: DType
    axis: Var


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

    `instruction` is one of `ir.machine.MATRIX_LOADS`; a lane names the row of 16 bytes at `row`. `axes` number the
    registers, the last one fastest. Instruction selection makes it of a `Load`, or of the `Pack` of one.
    """

    instruction: str
    buffer: str
    row: Index
    axes: tuple[Var, ...]
    dtype: DType


@frozen(cache_hash=True)
class SharedMatrix:
    """Matrix in shared memory from element `start` of a buffer on.

    The buffer has its layout, or the one with both sides exchanged where it is `turned`.
    """

    buffer: str
    start: Index
    dtype: DType
    turned: bool = False


Value: TypeAlias = Union[
    Load,
    Literal,
    IndexNode,
    Test,
    Op,
    Convert,
    RegisterRead,
    Window,
    Pack,
    VectorLoad,
    PackedConvert,
    PackedLoad,
    LdMatrix,
    SharedMatrix,
]
