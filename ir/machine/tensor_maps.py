"""Tensor maps: boxes that one thread copies to shared memory (TMA).

A map lists dims, the innermost first, whose elements are adjacent. A copy moves one box, which begins at coordinates of
a launch: elements outside the dims are 0, and the box lies in shared memory in the order of the dims. Several dims may
number one axis of a tensor by its digits, so that a box lies in another order than its tensor:

    rows = 8*warp + lane    ->    dims (k, lane, warp) of extents (K, 8, M/8), strides (row, 8*row)

A map that *walks* pixels copies channels of so many pixels (im2col). Its dims are channels, places of a pixel, and
images; the box is channels by pixels. The walk goes along `pixels` places of each dim and on to the next image, and
every place is moved by the offsets of a copy:

    pixel w + W*(h + H*n)    ->    element (n, start_h + step_h*h + offset_h, start_w + step_w*w + offset_w, channel)

A *swizzle* permutes the 16-byte units of a box as `ir.machine.shared_matrices` says (CUDA driver API, "Tensor Map
Object Management"). A copy may round f32 to TF32 on its way.
"""

from __future__ import annotations

from math import prod

from attrs import frozen

from ..types import DType
from .shared_matrices import LINE_BYTES, SWIZZLES

#: Limits of a map: dims, elements of a box along each, multiple in bytes of strides and of the innermost box.
MAX_MAP_DIMS, MAX_BOX_ELEMENTS, MAP_UNIT_BYTES = 5, 256, LINE_BYTES
#: Alignment in bytes of a box in shared memory.
BOX_BYTES = 128
#: Limits of extents and of strides in bytes.
MAX_MAP_EXTENT, MAX_MAP_STRIDE = 1 << 32, 1 << 40
#: Limits of a walk: its steps, and by the dims of a pixel's place the bits of signed corners and of offsets.
MAX_WALK_STEP, CORNER_BITS = 8, {1: 16, 2: 8, 3: 5}
#: The format that copies may round to, and the type of elements.
ROUNDED_FORMAT = ("tf32", DType.F32)


@frozen(cache_hash=True)
class TensorMap:
    """Map of a tensor: extents of its dims, strides, and a box.

    Strides are in bytes, of all dims but the first. Copies round elements to the format `rounded`, where there is one.
    A map that walks has `pixels` along the dims of a place, from `starts` on by `steps`. A copy has coordinates along
    all dims, or a first channel, the number of a pixel, and an offset for each dim of a place.
    """

    name: str
    tensor: str
    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    rounded: str = ""
    pixels: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """Place of the last pixel, from the last element of each dim."""
        walks = zip(self.pixels, self.starts, self.steps, self.dims[1:], strict=False)
        return tuple(start + (count - 1) * step - (size - 1) for count, start, step, size in walks)

    @property
    def elements(self) -> int:
        """Elements of a box."""
        return prod(self.box)

    @property
    def nbytes(self) -> int:
        """Bytes of a box; copies bring all of them, zeros too."""
        return self.elements * self.dtype.size

    def faults(self) -> list[str]:
        """Return why no machine has such a map."""
        found = []
        boxed = 2 if self.pixels else len(self.dims)
        if len(self.dims) != len(self.strides) + 1 or len(self.box) != boxed or len(self.dims) > MAX_MAP_DIMS:
            return [f"{len(self.dims)} dims, {len(self.strides)} strides and a box of {len(self.box)} dims"]
        if self.pixels:
            found += self._walk_faults()
        if self.swizzle not in SWIZZLES:
            found.append(f"a swizzle of {self.swizzle} bytes")
        if any(not 0 < n < MAX_MAP_EXTENT for n in self.dims):
            found.append(f"dims {self.dims}")
        if any(n % MAP_UNIT_BYTES or not 0 < n < MAX_MAP_STRIDE for n in self.strides):
            found.append(f"strides of {self.strides} bytes are no multiples of {MAP_UNIT_BYTES}")
        if self.rounded and (self.rounded, self.dtype) != ROUNDED_FORMAT:
            found.append(f"copies of {self.dtype} that round to {self.rounded}")
        line = self.box[0] * self.dtype.size
        if any(not 0 < n <= MAX_BOX_ELEMENTS for n in self.box) or line % MAP_UNIT_BYTES:
            found.append(f"a box of {self.box} elements")
        if line > self.swizzle > 0:
            found.append(f"lines of {line} bytes are longer than a swizzle of {self.swizzle}")
        return found

    def _walk_faults(self) -> list[str]:
        rank = len(self.dims) - 2
        if not len(self.pixels) == len(self.starts) == len(self.steps) == rank or rank not in CORNER_BITS:
            return [f"a walk of {len(self.pixels)} dims of {len(self.dims)}"]
        limit = 1 << CORNER_BITS[rank] - 1
        found = [f"a walk by steps {self.steps}"] if any(not 0 < n <= MAX_WALK_STEP for n in self.steps) else []
        if any(not -limit <= n < limit for n in (*self.starts, *self.ends)):
            found.append(f"a walk from {self.starts} to {self.ends}")
        return found
