"""The C interface of `libcuts_run` through ctypes."""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from ...ir import CutsError, PlanError

#: Roles of tensors.
INPUT, OUTPUT, STATE = 0, 1, 2
#: Number of a device that only describes a file.
NO_DEVICE = -1


class DeviceStruct(ctypes.Structure):
    """`cuts_device`."""

    _fields_ = [("type", c_int32), ("ordinal", c_int32)]


class DTypeStruct(ctypes.Structure):
    """`cuts_dtype`."""

    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class TensorStruct(ctypes.Structure):
    """`cuts_tensor`."""

    _fields_ = [
        ("data", c_void_p), ("device", DeviceStruct), ("ndim", c_int32), ("dtype", DTypeStruct),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]  # fmt: skip


class TensorInfoStruct(ctypes.Structure):
    """`cuts_tensor_info`."""

    _fields_ = [
        ("name", c_char_p), ("role", c_int), ("dtype", DTypeStruct), ("ndim", c_int32), ("shape", POINTER(c_int64)),
        ("nbytes", c_uint64),
    ]  # fmt: skip


class PlanInfoStruct(ctypes.Structure):
    """`cuts_plan_info`."""

    _fields_ = [
        ("name", c_char_p), ("target", c_char_p), ("dialect", c_char_p), ("inputs", c_uint32), ("outputs", c_uint32),
        ("states", c_uint32), ("kernels", c_uint32), ("launches", c_uint32), ("constant_bytes", c_uint64),
        ("session_bytes", c_uint64),
    ]  # fmt: skip


class OptionsStruct(ctypes.Structure):
    """`cuts_options`."""

    _fields_ = [
        ("size", c_size_t), ("ordinal", c_int32), ("library", c_char_p), ("platform", c_char_p),
        ("context", c_void_p), ("device", c_void_p), ("functions", c_void_p),
    ]  # fmt: skip


def make_options(
    ordinal: int = 0, library: str | None = None, context: int | None = None, device: int | None = None
) -> OptionsStruct:
    """Return options of a device.

    With `NO_DEVICE` a plan is only described. OpenCL takes the handles of a context and its device.
    """
    path = None if library is None else library.encode()
    return OptionsStruct(ctypes.sizeof(OptionsStruct), ordinal, path, None, context, device)


class NativeError(PlanError):
    """Error of the library: the name of its status, and its text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text

    def __reduce__(self) -> tuple[type[CutsError], tuple[str, str]]:
        return type(self), (self.status, self.text)


def open_library(path: str | os.PathLike[str]) -> ctypes.CDLL:
    """Return a built library with the types of its functions."""
    library = ctypes.CDLL(str(Path(path).absolute()))
    pointers, sizes = POINTER(c_void_p), POINTER(c_uint64)
    types: dict[str, list[Any]] = {
        "cuts_plan_open": [c_char_p, c_void_p, c_void_p],
        "cuts_plan_open_memory": [c_char_p, c_size_t, c_void_p, c_void_p],
        "cuts_plan_close": [c_void_p],
        "cuts_plan_describe": [c_void_p, c_void_p],
        "cuts_plan_tensor": [c_void_p, c_int, c_uint32, c_void_p],
        "cuts_session_create": [c_void_p, c_void_p],
        "cuts_session_destroy": [c_void_p],
        "cuts_session_run": [c_void_p, POINTER(TensorStruct), c_uint32, POINTER(TensorStruct), c_uint32, c_void_p],
        "cuts_session_run_pointers": [c_void_p, pointers, sizes, c_uint32, pointers, sizes, c_uint32, c_void_p],
        "cuts_session_run_host": [c_void_p, pointers, sizes, c_uint32, pointers, sizes, c_uint32],
        "cuts_session_set_graph": [c_void_p, c_uint32, c_void_p],
        "cuts_session_synchronize": [c_void_p],
        "cuts_session_read_state": [c_void_p, c_uint32, c_void_p, c_uint64],
        "cuts_session_write_state": [c_void_p, c_uint32, c_void_p, c_uint64],
        "cuts_session_reset_state": [c_void_p],
    }
    for name, arguments in types.items():
        getattr(library, name).argtypes = arguments
    library.cuts_status_name.restype = library.cuts_last_error.restype = c_char_p
    library.cuts_run_version.restype = c_uint32
    return library


def untyped_call(library: ctypes.CDLL, name: str) -> Any:
    """Return a function that takes arguments of `ctypes` as they are.

    A call takes half the time of one that converts its arguments.
    """
    return library[name]


def check_status(library: ctypes.CDLL, status: int) -> None:
    """Raise `NativeError` where a call of the library failed."""
    if status:
        raise NativeError(library.cuts_status_name(status).decode(), library.cuts_last_error().decode())
