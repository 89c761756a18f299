"""Matrix of quantised numbers with scales, dequantised where it is read.

    w[n, k] = (numbers[n, k] - zero[n, k // group]) * scale[n, k // group] + shift[n, k // group]

Integers of four bits or fewer are two in a byte, the first in its low bits; others have a byte, as floats of 8 bits do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ....ir import UsageError

#: Numbers of a byte that has several, and the bits of each.
_PER_BYTE, _BITS = 2, 4


class PackedMatrix(nn.Module):
    """Quantised matrix [N, K], its numbers packed.

    `numbers` are integers or 8-bit floats [N, K]. `scale`, `zero` and `shift` are [N or 1, groups].

    Raises `UsageError` where groups do not divide the columns.
    """

    numbers: Tensor
    scale: Tensor
    zero: Tensor | None
    shift: Tensor | None

    def __init__(self, numbers: Tensor, scale: Tensor, zero: Tensor | None = None, shift: Tensor | None = None) -> None:
        super().__init__()
        rows, columns = numbers.shape
        groups = scale.shape[-1]
        if scale.dim() != 2 or scale.shape[0] not in (1, rows) or groups < 1 or columns % groups:
            raise UsageError(
                f"a weight [{rows}, {columns}]: expected scales [{rows}, groups] whose groups divide its columns, "
                f"found {list(scale.shape)}",
                hint="quantise it with a group size that divides its columns",
            )
        self.rows, self.columns = rows, columns
        self.lowest = 0 if numbers.is_floating_point() or not numbers.numel() else min(int(numbers.min()), 0)
        span = 1 << 8 if numbers.is_floating_point() or columns % _PER_BYTE else _largest(numbers) - self.lowest
        self.is_packed = span < 1 << _BITS
        self.register_buffer("numbers", self._pack(numbers) if self.is_packed else numbers.contiguous())
        self.register_buffer("scale", scale.contiguous())
        self.register_buffer("zero", None if zero is None or not bool(zero.any()) else zero.contiguous())
        self.register_buffer("shift", None if shift is None or not bool(shift.any()) else shift.contiguous())

    def _pack(self, numbers: Tensor) -> Tensor:
        pairs = (numbers.to(torch.int16) - self.lowest).to(torch.uint8).reshape(self.rows, -1, _PER_BYTE)
        return pairs[..., 0] | pairs[..., 1] << _BITS

    def forward(self, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
        """Return the matrix, or some of its rows, in a type."""
        stored = self.numbers if rows is None else self.numbers[rows]
        if self.is_packed:
            shifts = torch.arange(0, _PER_BYTE * _BITS, _BITS, dtype=torch.uint8, device=stored.device)
            parts = (stored.unsqueeze(-1) >> shifts) & ((1 << _BITS) - 1)
            stored = parts.to(torch.int8) + self.lowest if self.lowest else parts
        groups = self.scale.shape[-1]
        shape = (*stored.shape[: -1 - self.is_packed], groups, self.columns // groups)
        found = stored.reshape(shape).to(dtype)
        if self.zero is not None:
            found = found - self._of_rows(self.zero, rows).to(dtype)
        found = found * self._of_rows(self.scale, rows).to(dtype)
        if self.shift is not None:
            found = found + self._of_rows(self.shift, rows).to(dtype)
        return found.reshape(*shape[:-2], self.columns)

    def _of_rows(self, steps: Tensor, rows: Tensor | None) -> Tensor:
        """Return scales or zeros of some rows, in a shape that broadcasts over groups."""
        return (steps if rows is None or steps.shape[0] == 1 else steps[rows]).unsqueeze(-1)

    @property
    def stored_bytes(self) -> int:
        """The bytes of numbers, scales and zeros."""
        return sum(int(each.nbytes) for each in self.buffers())

    def extra_repr(self) -> str:
        """Return sizes for the printed module."""
        return f"{self.rows}, {self.columns}, groups={self.scale.shape[-1]}"


def _largest(numbers: Tensor) -> int:
    return int(numbers.max()) if numbers.numel() else 0
