"""Layouts of matrices that a warpgroup's instructions read in shared memory.

A matrix has `extent` rows of A, or columns of B, and `depth` elements of k. Its memory consists of *lines* of `width`
bytes: neighbours along k (K-major, `deep`), or along the rows or columns (MN-major).

    K-major    byte of (mn, k) = k*size // width * (extent*width) + mn*width + k*size % width
    MN-major   byte of (mn, k) = mn*size // width * (depth*width) + k*width + mn*size % width

A *swizzle* of 128, 64 or 32 bytes, the width of a line, stores byte x at `x ^ (((x >> 7) & (swizzle/16 - 1)) << 4)`, so
that eight lines of the same place lie in different banks. Without one, lines have 16 bytes. A *descriptor* gives the
instruction the distances between groups of eight lines (PTX ISA, "Shared Memory Matrix Layout" of `wgmma`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from ..affine import Index, IndexLike

#: Swizzles in bytes, with the mode that a descriptor has for each.
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}
#: Bytes of a line without swizzle, lines of a group, and period in bytes of the widest swizzle.
LINE_BYTES, GROUP_LINES, SWIZZLE_PERIOD = 16, 8, 1024
#: Bytes of the numbers that a matrix may have along either side; those of others lie along k.
HALF_BYTES = 2


@frozen(cache_hash=True)
class SharedMatrixLayout:
    """Layout of one matrix in shared memory; elements have `size` bytes."""

    extent: int
    depth: int
    size: int
    swizzle: int
    deep: bool

    @property
    def transposed(self) -> SharedMatrixLayout:
        """Layout of the same memory with its sides exchanged."""
        return SharedMatrixLayout(self.depth, self.extent, self.size, self.swizzle, not self.deep)

    @property
    def width(self) -> int:
        """Bytes of a line."""
        return self.swizzle or LINE_BYTES

    @property
    def elements(self) -> int:
        """Elements of the matrix."""
        return self.extent * self.depth

    def address(self, along: IndexLike, deep: IndexLike) -> Index:
        """Return the offset of an element before the swizzle.

        It is in row or column `along`, at the place `deep` of k.
        """
        from ..affine import as_index  # few plans need the algebra of indices

        line = self.width // self.size
        inner, outer, lines = (deep, along, self.extent) if self.deep else (along, deep, self.depth)
        return as_index(inner) // line * (lines * line) + as_index(outer) * line + as_index(inner) % line

    @property
    def leading(self) -> int:
        """Leading byte offset of the descriptor; unused for swizzled K-major matrices."""
        if self.deep:
            return LINE_BYTES if self.swizzle else self.extent * LINE_BYTES
        return self.depth * self.width if self.swizzle else GROUP_LINES * LINE_BYTES

    @property
    def stride(self) -> int:
        """Stride byte offset of the descriptor."""
        return self.depth * LINE_BYTES if not self.deep and not self.swizzle else GROUP_LINES * self.width

    @property
    def descriptor(self) -> int:
        """Descriptor of a matrix at address 0."""
        return self.leading // 16 << 16 | self.stride // 16 << 32 | SWIZZLES[self.swizzle] << 62

    def faults(self, read: int) -> list[str]:
        """Return why no instruction reads the matrix.

        `read` are the elements of k that one reads at a time.
        """
        found = []
        if self.swizzle not in SWIZZLES:
            return [f"a swizzle of {self.swizzle} bytes, expected one of {', '.join(map(str, sorted(SWIZZLES)))}"]
        line = self.width // self.size
        if not self.deep and self.size != HALF_BYTES:
            found.append("a matrix of other numbers than halves lies along k")
        if (self.depth if self.deep else self.extent) % line or self.depth % read or self.extent % GROUP_LINES:
            found.append(f"{self.extent} by {self.depth} elements are no whole lines of {line}, steps of {read}")
        if max(self.leading, self.stride) >= 1 << 18:
            found.append("the matrix is too large for a descriptor")
        return found
