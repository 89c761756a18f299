"""Runner of plans through ctypes, and its library, built once.

`PackedPlan` is the users' form; this one reaches each function of the library, and gives it wrong arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int64, c_size_t, c_uint64
from ctypes import c_void_p as address
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cuts.backends.native import build_library
from cuts.backends.native.c_interface import (
    INPUT,
    NO_DEVICE,
    OUTPUT,
    STATE,
    DeviceStruct,
    DTypeStruct,
    NativeError,
    OptionsStruct,
    PlanInfoStruct,
    TensorInfoStruct,
    TensorStruct,
    check_status,
    make_options,
    open_library,
)
from cuts.backends.opencl import choose_device, opencl_library
from cuts.ir.types import DType
from cuts.runtime.native.element_types import DTYPES
from cuts.tests.backends.fake_cuda import scratch_folder


@cache
def native_library() -> ctypes.CDLL:
    """Return the library, built once for a process."""
    return open_library(build_library(scratch_folder()))


@cache
def opencl_options() -> OptionsStruct:
    """Return the options that open the OpenCL device of this package's tests."""
    platform, library = choose_device().platform.version.encode(), opencl_library()
    path = library.encode() if library else None
    return OptionsStruct(ctypes.sizeof(OptionsStruct), 0, path, platform, None, None)


def describe_only() -> OptionsStruct:
    """Return options that open a file without a device."""
    return make_options(NO_DEVICE)


def aligned_copy(array: Any, alignment: int = 64) -> Any:
    """Return a dense, aligned copy of an array."""
    dense = np.ascontiguousarray(array).reshape(np.shape(array))
    whole = np.empty(dense.nbytes + alignment, np.uint8)
    start = -whole.ctypes.data % alignment
    copy = whole[start : start + dense.nbytes].view(dense.dtype).reshape(dense.shape)
    copy[...] = dense
    return copy


class NativePlan:
    """Opened packed plan with one session, or to be described."""

    def __init__(self, content: bytes | Path, options: OptionsStruct | None = None) -> None:
        self.library = native_library()
        self.plan, self.session = address(), address()
        options = options or opencl_options()
        if isinstance(content, bytes):
            self.check(
                self.library.cuts_plan_open_memory(content, c_size_t(len(content)), byref(options), byref(self.plan))
            )
        else:
            self.check(self.library.cuts_plan_open(str(content).encode(), byref(options), byref(self.plan)))
        try:
            self.session = self.new_session() if options.ordinal >= 0 else self.session
        except NativeError:
            self.close()
            raise

    def check(self, status: int) -> None:
        """Raise `NativeError` for a status that is one."""
        check_status(self.library, status)

    def new_session(self) -> Any:
        """Return another session of the plan."""
        session = address()
        self.check(self.library.cuts_session_create(self.plan, byref(session)))
        return session

    @property
    def info(self) -> PlanInfoStruct:
        """Description of the plan."""
        found = PlanInfoStruct()
        self.check(self.library.cuts_plan_describe(self.plan, byref(found)))
        return found

    def tensors(self, role: int) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """Return types and shapes of the tensors of a role by name."""
        found = {}
        for number in range((self.info.inputs, self.info.outputs, self.info.states)[role]):
            tensor = TensorInfoStruct()
            self.check(self.library.cuts_plan_tensor(self.plan, role, number, byref(tensor)))
            dtype = DTYPES[tensor.dtype.code, tensor.dtype.bits]
            found[tensor.name.decode()] = dtype, tuple(tensor.shape[: tensor.ndim])
        return found

    def run(self, inputs: Mapping[str, Any], session: Any = None) -> dict[str, Any]:
        """Run on arrays by name, through tensors of DLPack's form."""
        given = {name: aligned_copy(np.asarray(inputs[name], d.numpy)) for name, (d, _) in self.tensors(INPUT).items()}
        results = {n: aligned_copy(np.zeros(shape, d.numpy)) for n, (d, shape) in self.tensors(OUTPUT).items()}
        lists = [tensor_list([*arrays.values()]) for arrays in (given, results)]
        self.check(
            self.library.cuts_session_run(
                session or self.session, lists[0], len(given), lists[1], len(results), address()
            )
        )
        return results

    def state(self, number: int) -> Any:
        """Return the value of a state."""
        dtype, shape = [*self.tensors(STATE).values()][number]
        value = np.empty(shape, dtype.numpy)
        pointer = address(value.ctypes.data)
        self.check(self.library.cuts_session_read_state(self.session, number, pointer, c_uint64(value.nbytes)))
        return value

    def set_state(self, number: int, value: Any) -> None:
        """Replace the value of a state."""
        dense = np.ascontiguousarray(value)
        pointer = address(dense.ctypes.data)
        self.check(self.library.cuts_session_write_state(self.session, number, pointer, c_uint64(dense.nbytes)))

    def reset_state(self) -> None:
        """Give all state its initial values."""
        self.check(self.library.cuts_session_reset_state(self.session))

    def close(self) -> None:
        """Destroy the session and close the plan."""
        self.library.cuts_session_destroy(self.session)
        self.library.cuts_plan_close(self.plan)


def tensor_of(array: Any, device: int = 1) -> TensorStruct:
    """Return an array as a tensor, by default in host memory."""
    (key,) = (key for key, dtype in DTYPES.items() if dtype.numpy == array.dtype)
    shape = (c_int64 * max(1, array.ndim))(*array.shape)
    return TensorStruct(array.ctypes.data, DeviceStruct(device, 0), array.ndim, DTypeStruct(*key, 1), shape, None, 0)


def tensor_list(arrays: Sequence[Any], device: int = 1) -> Any:
    """Return arrays as a list of tensors."""
    return (TensorStruct * max(1, len(arrays)))(*(tensor_of(array, device) for array in arrays))
