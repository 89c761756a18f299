"""Arguments of kernels as the driver takes them: addresses, and tensor maps.

A tensor map is a parameter of 128 bytes by value, which the driver encodes for an address. A launch copies it with the
other parameters, so a map of a moved tensor never changes under a running kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from ...ir import BackendError, DType, KernelFunction, TensorMap, install_command

#: Bytes of a tensor map, the multiple at which it begins among parameters, and its packed type.
MAP_BYTES, MAP_ALIGNMENT, MAP_KIND = 128, 64, "128s"
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


def parameter_kinds(kernel: KernelFunction) -> str:
    """Return the packed types of parameters, with padding, as PyCUDA has them."""
    kinds, offset = "", 0
    for argument in kernel.arguments:
        padding = -offset % MAP_ALIGNMENT if argument.map is not None else 0
        kinds += (f"{padding}x" if padding else "") + ("P" if argument.map is None else MAP_KIND)
        offset += padding + (_WORD if argument.map is None else MAP_BYTES)
    return kinds


def parameter(map_: TensorMap | None, address: int, cu: Any = None) -> int | bytes:
    """Return a tensor map of an address, or the address itself."""
    return address if map_ is None else encode_tensor_map(map_, address, cu or _bindings())


def _bindings() -> Any:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendError(
            f"a kernel with bulk copies needs cuda-bindings: {error}", hint=install_command("cuda")
        ) from error


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
    result, encoded = encode(
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[map_.swizzle]}"),
        getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTION}"),
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(result) != 0:
        name = cu.cuGetErrorName(result)[1]
        raise BackendError(
            f"the driver refuses a tensor map of {map_.tensor!r} at {address:#x}: {name!r}",
            hint="tensors begin at multiples of 16 bytes",
        )
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)


class PackedParameters:
    """Parameters of a launch in host memory.

    The driver reads them through an array of pointers.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        self.values = (ctypes.c_uint64 * max(1, sum(sizes) // _WORD))()
        first = ctypes.addressof(self.values)
        self.places = [first + start for start in starts]
        self.pointers = (ctypes.c_void_p * max(1, len(sizes)))(*self.places)
        self.address = ctypes.addressof(self.pointers)

    def set(self, number: int, value: int | bytes) -> None:
        """Set a parameter to an address or a map."""
        data = value if isinstance(value, bytes) else value.to_bytes(_WORD, "little")
        ctypes.memmove(self.places[number], data, len(data))


def pack_parameters(values: Sequence[int | bytes]) -> PackedParameters:
    """Return parameters with these values."""
    found = PackedParameters([len(v) if isinstance(v, bytes) else _WORD for v in values])
    for number, value in enumerate(values):
        found.set(number, value)
    return found


def parameters_of(kernel: KernelFunction) -> PackedParameters:
    """Return the parameters of a kernel, not set."""
    return PackedParameters([_WORD if argument.map is None else MAP_BYTES for argument in kernel.arguments])
