"""Arguments of kernels as the driver takes them: addresses, and tensor maps.

A tensor map is a parameter of 128 bytes by value, which the driver encodes for an address. A launch copies it with the
other parameters, so a map of a moved tensor never changes under a running kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

from ...ir import BackendError, DType, KernelFunction, TensorMap

#: Bytes of a tensor map.
MAP_BYTES = 128
#: Codes of the driver for element types, swizzles, and the sectors that L2 reads together.
_TYPES = {
    DType.F32: "FLOAT32",
    DType.F16: "FLOAT16",
    DType.BF16: "BFLOAT16",
    DType.I8: "UINT8",
    DType.U8: "UINT8",
    DType.F8E4M3: "UINT8",
    DType.F8E5M2: "UINT8",
}
_ROUNDED_TYPE = "TFLOAT32"
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_PROMOTION = "L2_128B"
_WORD = ctypes.sizeof(ctypes.c_uint64)


@lru_cache(maxsize=1 << 12)
def encode_tensor_map(map_: TensorMap, address: int, cu: Any) -> bytes:
    """Return the bytes of a map of the tensor at an address.

    Raises `BackendError` where the driver refuses it.
    """
    strides = [cu.cuuint64_t(n) for n in map_.strides]
    kind = _ROUNDED_TYPE if map_.rounded else _TYPES[map_.dtype]
    tensor = (
        getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
        len(map_.dims),
        address,
        [cu.cuuint64_t(n) for n in map_.dims],
        strides or None,
    )
    if map_.pixels:
        channels, count = map(cu.cuuint32_t, map_.box)
        steps = [cu.cuuint32_t(n) for n in (1, *map_.steps, 1)]
        encode = partial(
            cu.cuTensorMapEncodeIm2col, *tensor, list(map_.starts), list(map_.ends), channels, count, steps
        )
    else:
        box = [cu.cuuint32_t(n) for n in map_.box]
        encode = partial(cu.cuTensorMapEncodeTiled, *tensor, box, [cu.cuuint32_t(1)] * len(map_.dims))
    try:
        encoded = encode(
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[map_.swizzle]}"),
            getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTION}"),
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    except BackendError as error:
        raise BackendError(
            f"the driver refuses a tensor map of {map_.tensor!r} at {address:#x}: {error.message}",
            hint="tensors begin at multiples of 16 bytes",
        ) from error
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)


class PackedParameters:
    """Parameters of a kernel in host memory: addresses and tensor maps.

    The driver reads them through an array of pointers.
    """

    def __init__(self, kernel: KernelFunction, cu: Any) -> None:
        self._maps, self._cu = [argument.map for argument in kernel.arguments], cu
        sizes = [_WORD if each is None else MAP_BYTES for each in self._maps]
        self.values = (ctypes.c_uint64 * max(1, sum(sizes) // _WORD))()
        first = ctypes.addressof(self.values)
        self.places = [first + sum(sizes[:n]) for n in range(len(sizes))]
        self.pointers = (ctypes.c_void_p * max(1, len(sizes)))(*self.places)
        self.address = ctypes.addressof(self.pointers)

    def set(self, addresses: Iterable[int]) -> None:
        """Set all parameters to tensors at addresses."""
        for place, map_, address in zip(self.places, self._maps, addresses, strict=True):
            word = address.to_bytes(_WORD, "little")
            data = word if map_ is None else encode_tensor_map(map_, address, self._cu)
            ctypes.memmove(place, data, len(data))
