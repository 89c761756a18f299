"""Properties of a kernel on which instruction selection depends."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import frozen

from ...ir import (
    BYTE_BITS,
    UNPACKED_BITS,
    WIDEST_BYTES,
    DType,
    Initialise,
    Kernel,
    Literal,
    Op,
    RegisterWrite,
    longest_vector,
    phases,
    post_order,
    vector_widths,
)


@frozen
class SelectionContext:
    """Alignments, widths and registers of a kernel.

    `aligned` are the alignments of tensors in bytes, `longest` is the longest vector of the kernel's types, `shapes`
    count registers by name, `instructions` may be chosen, and `sums` are registers that may move among lanes.
    """

    aligned: Mapping[str, int]
    longest: int
    shapes: Mapping[str, tuple[int, ...]]
    instructions: Collection[str]
    sums: Collection[str] = ()

    @classmethod
    def of(cls, kernel: Kernel, instructions: Collection[str]) -> SelectionContext:
        """Return the context of a kernel."""
        roots = (root for phase in phases(kernel.items) for root in phase.roots)
        shapes = {root.name: root.shape for root in roots if isinstance(root, (Initialise, RegisterWrite))}
        longest = longest_vector(kernel.dtypes.values(), WIDEST_BYTES) * _numbers_per_byte(kernel, instructions)
        return cls(kernel.aligned, longest, shapes, instructions)

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


def _numbers_per_byte(kernel: Kernel, instructions: Collection[str]) -> int:
    """Return the most numbers that are unpacked from a byte."""
    nodes = post_order(root for phase in phases(kernel.items) for root in phase.roots)
    masks = (n.args[1] for n in nodes if isinstance(n, Op) and n.fn == "bitand" and n.dtype is DType.U8)
    bits = {int(mask.value).bit_length() for mask in masks if isinstance(mask, Literal)}
    known = {UNPACKED_BITS[name] for name in instructions if name in UNPACKED_BITS}
    return max((BYTE_BITS // n for n in bits & known), default=1)
