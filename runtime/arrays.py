"""Input arrays of the caller, and outputs that stay on the device."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from ..backends import Array, Device, Pointer
from ..ir import DType, TensorType, UsageError, dtype_of_numpy, quote, raise_all

_DLPACK_HOST = {1, 3, 13}  # kDLCPU, and host memory pinned or managed by CUDA
_DLPACK_UINT = 1
#: Element types that NumPy refuses, by DLPack's code and bits.
_DLPACK_FLOATS = {(4, 16): DType.BF16, (10, 8): DType.F8E4M3, (12, 8): DType.F8E5M2}
#: Bytes before the element type (code, bits) of a managed tensor: its address, device and number of dims.
_DLPACK_TYPE = 20


@frozen(eq=False)
class DeviceArray:
    """Output that stays on the device, in memory that no run reuses."""

    type: TensorType
    pointer: Pointer
    device: Device
    strides: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy element type."""
        return self.type.dtype.numpy

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return the same memory as elements of another type of equal width."""
        found = dtype_of_numpy(np.dtype(dtype))
        assert found is not None and found.size == self.type.dtype.size
        return evolve(self, type=TensorType(found, self.shape))

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The exchange form that PyTorch, CuPy, JAX and Numba accept without copying (version 3)."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (int(self.pointer.buffer.handle) + self.pointer.offset, False),
            "strides": tuple(stride * self.dtype.itemsize for stride in self.strides),
            "stream": None,
            "version": 3,
        }


def host_array(name: str, value: object) -> Array:
    """Return a NumPy array over a host array or sequence.

    It accepts NumPy, DLPack and sequences of numbers.

    Raises `UsageError` where the value is no array, or lies on another device.
    """
    try:
        if isinstance(value, np.ndarray):
            return value
        value = plain_array(value)
        kind = getattr(value, "__dlpack_device__", None)
        if kind is not None and hasattr(value, "__dlpack__"):
            if int(kind()[0]) in _DLPACK_HOST:
                return _from_dlpack(value)
            raise UsageError(
                f"input {quote(name)} lies on a device this plan does not run on", hint="copy it to the host first"
            )
        return np.asarray(value)
    except (ValueError, TypeError, BufferError, RuntimeError) as error:
        raise UsageError(f"input {quote(name)} is no array: {error}") from error


def plain_array(value: Any) -> Any:
    """Return another library's array in a form that its exports describe.

    A tensor of PyTorch that requires grad is detached, and one whose memory has the negated numbers is copied.
    """
    if getattr(value, "requires_grad", False):
        value = value.detach()
    return value.resolve_neg() if hasattr(value, "is_neg") and value.is_neg() else value


@frozen
class _Exported:
    """DLPack capsule in the form that NumPy imports."""

    capsule: object
    device: tuple[int, int]

    def __dlpack__(self, **_: object) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def _from_dlpack(value: Any) -> Array:
    """Return an array over another library's export; floats that NumPy refuses are imported as integers."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):
        capsule = value.__dlpack__()
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        kind = (ctypes.c_uint8 * 2).from_address(address(capsule, b"dltensor") + _DLPACK_TYPE)
        code, bits = kind
        if (code, bits) not in _DLPACK_FLOATS:
            raise
        kind[0] = _DLPACK_UINT
        exported: Any = _Exported(capsule, value.__dlpack_device__())
        return np.from_dlpack(exported).view(_DLPACK_FLOATS[code, bits].numpy)


def _stands_for(found: np.dtype[Any], expected: DType) -> bool:
    """Return whether elements are bits of a type without a NumPy name: NumPy reads bfloat16 from a file as two untyped
    bytes, and other libraries give `uint16`.
    """
    named = expected.numpy.isbuiltin == 1
    return not named and found.kind in "Vu" and found.itemsize == expected.size


def check_names(expected: Sequence[str], given: object) -> None:
    """Check that exactly the plan's inputs are given, by name.

    Raises `UsageError`.
    """
    wants = ", ".join(map(quote, expected)) or "none"
    if not isinstance(given, Mapping):
        example = ", ".join(f"{name!r}: array" for name in expected)
        raise UsageError(
            f"expected arrays by input name, found {type(given).__name__}",
            hint=f"give {{{example}}}; inputs are: {wants}",
        )
    errors = [UsageError(f"input {quote(name)} is missing") for name in expected if name not in given]
    errors += [
        UsageError(f"there is no input {quote(str(name))}", hint=f"inputs are: {wants}")
        for name in given
        if name not in expected
    ]
    raise_all(errors)


def check_type(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], expected: TensorType, kind: str = "input"
) -> None:
    """Check the element type and shape of a tensor.

    `kind` is its kind in messages.

    Raises `UsageError` where they differ from the expected type.
    """
    right = dtype == expected.dtype.numpy or _stands_for(dtype, expected.dtype)
    if not right or tuple(shape) != expected.shape:
        raise UsageError(f"{kind} {quote(name)}: expected {expected}, found {dtype}{list(shape)}")


def checked_inputs(
    types: Mapping[str, TensorType], names: tuple[str, ...], given: Mapping[str, object], kind: str = "input"
) -> dict[str, Array]:
    """Return the inputs as host arrays of the right type.

    Raises `UsageError` for all faults at once.
    """
    check_names(names, given)
    errors: list[UsageError] = []
    arrays = {}
    for name in names:
        try:
            array = host_array(name, given[name])
            if (
                not hasattr(given[name], "dtype") and array.dtype.kind in "biuf"
            ):  # lists of numbers have no element type of their own
                from ..ir import as_dtype

                array = as_dtype(array, types[name].dtype.numpy)
            check_type(name, array.dtype, array.shape, types[name], kind)
            arrays[name] = array.view(types[name].dtype.numpy)
        except UsageError as error:
            errors.append(error)
    raise_all(errors)
    return arrays


def random_inputs(types: Mapping[str, TensorType], names: tuple[str, ...], seed: int) -> dict[str, Array]:
    """Return random inputs, the same for the same seed.

    Floats are from a normal distribution, integers are 0 or 1, valid indices of most axes.
    """
    generator = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name in names:
        type_ = types[name]
        if type_.dtype.is_float:
            arrays[name] = generator.standard_normal(type_.shape).astype(type_.dtype.numpy)
        else:
            arrays[name] = generator.integers(0, 2, type_.shape).astype(type_.dtype.numpy)
    return arrays
