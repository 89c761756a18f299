"""Alignments and vector widths of a kernel's limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import frozen

from ...ir import WIDEST_BYTES, DType, Kernel, longest_vector, vector_widths


@frozen
class VectorLimits:
    """Limits of vector accesses in a kernel.

    They are the alignment of its tensors in bytes, the longest vector of its types, and the names of the instructions
    that may be chosen.
    """

    aligned: Mapping[str, int]
    longest: int
    instructions: Collection[str]

    @classmethod
    def of(cls, kernel: Kernel, instructions: Collection[str]) -> VectorLimits:
        """Return the limits of a kernel."""
        return cls(kernel.aligned, longest_vector(kernel.dtypes.values(), WIDEST_BYTES), instructions)

    def alignment(self, space: str, buffer: str) -> int:
        """Return the alignment of a buffer's first element in bytes."""
        return WIDEST_BYTES if space == "shared" else self.aligned.get(buffer, 1)

    def width(self, dtype: DType, extent: int) -> int:
        """Return the neighbours that one access moves, 0 for single elements.

        A kernel's vectors are as long as its narrowest type allows; wider types take several accesses.
        """
        if extent in vector_widths(dtype):
            return extent
        widest = max(vector_widths(dtype), default=0)
        return widest if widest and extent <= self.longest and extent % widest == 0 else 0
