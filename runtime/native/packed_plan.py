"""Packed plans in Python, opened and run by `libcuts_run`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint32, c_uint64, c_void_p
from functools import cached_property
from typing import Any

import numpy as np
from attrs import frozen

from ...backends import Launch
from ...backends.native import (
    DIALECTS,
    INPUT,
    OUTPUT,
    STATE,
    OptionsStruct,
    PlanInfoStruct,
    TensorInfoStruct,
    check_status,
    make_options,
    native_library,
    read_dialect,
    untyped_call,
)
from ...backends.opencl import choose_device, device_context, opencl_library
from ...ir import Array, BackendError, TensorType, UsageError, quote
from ..arrays import checked_inputs, random_inputs
from .element_types import DTYPES

#: Environment variable with the number of the device to open.
ORDINAL_VARIABLE = "CUDA_DEVICE"


@frozen
class PackedTarget:
    """Name and dialect of a packed plan's target."""

    name: str
    dialect: str


class PackedSession:
    """Memory of one run of a packed plan, and state.

    Runs of one session exclude each other; sessions run concurrently.
    """

    def __init__(self, plan: PackedPlan) -> None:
        self._plan, self._library, self._raw = plan, plan.library, c_void_p()
        check_status(self._library, self._library.cuts_session_create(plan.raw, byref(self._raw)))
        weakref.finalize(self, self._library.cuts_session_destroy, self._raw)

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Run on host arrays by name; return host arrays."""
        types = self._plan.inputs
        given = [np.ascontiguousarray(array) for array in checked_inputs(types, tuple(types), inputs).values()]
        results = {name: np.empty(type_.shape, type_.dtype.numpy) for name, type_ in self._plan.outputs.items()}
        lists = [_addresses([array.ctypes.data for array in arrays]) for arrays in (given, results.values())]
        sizes = self._plan.sizes
        status = self._library.cuts_session_run_host(
            self._raw, lists[0], sizes[0], len(given), lists[1], sizes[1], len(results)
        )
        check_status(self._library, status)
        return results

    def bind(self, inputs: Sequence[int], outputs: Sequence[int], stream: int = 0) -> Launch:
        """Return a launch over device memory at these addresses.

        They are in the order of the plan's tensors. On CUDA it is ordered on a stream and does not wait.
        """
        lists, sizes = (_addresses(inputs), _addresses(outputs)), self._plan.sizes
        given, results = c_uint32(len(inputs)), c_uint32(len(outputs))
        arguments = (self._raw, lists[0], sizes[0], given, lists[1], sizes[1], results, c_void_p(stream))
        call, library = untyped_call(self._library, "cuts_session_run_pointers"), self._library

        def launch(owner: PackedSession = self) -> None:
            del owner
            if status := call(*arguments):
                check_status(library, status)

        return launch

    def synchronize(self) -> None:
        """Wait for all runs of the session."""
        check_status(self._library, self._library.cuts_session_synchronize(self._raw))

    @property
    def state(self) -> dict[str, Array]:
        """The values of state that the next run begins with."""
        found = {name: np.empty(type_.shape, type_.dtype.numpy) for name, type_ in self._plan.states.items()}
        for number, array in enumerate(found.values()):
            status = self._library.cuts_session_read_state(self._raw, number, array.ctypes.data, array.nbytes)
            check_status(self._library, status)
        return found

    def set_state(self, values: Mapping[str, object]) -> None:
        """Let the next run begin with other values of some state.

        Raises `UsageError` for names that are no state of the plan, and for other types.
        """
        types = self._plan.states
        if unknown := [name for name in values if name not in types]:
            raise UsageError(f"plan {quote(self._plan.name)} has no state {quote(unknown[0])}")
        for name, array in checked_inputs(types, tuple(values), values, "state").items():
            dense = np.ascontiguousarray(array)
            number = [*types].index(name)
            status = self._library.cuts_session_write_state(self._raw, number, dense.ctypes.data, dense.nbytes)
            check_status(self._library, status)

    def reset_state(self) -> None:
        """Let the next run begin with the initial values of all state."""
        check_status(self._library, self._library.cuts_session_reset_state(self._raw))


class PackedPlan:
    """Packed plan, opened on a device.

    It is read from a file, or from its bytes. `run` uses one session, which threads share; `new_session` makes others.
    With the ordinal `NO_DEVICE` in its options a plan is only described.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, options: OptionsStruct | None = None) -> None:
        self.library, self.raw = native_library(), c_void_p()
        options = options or default_options(source)
        if isinstance(source, bytes):
            status = self.library.cuts_plan_open_memory(source, len(source), byref(options), byref(self.raw))
        else:
            status = self.library.cuts_plan_open(os.fsencode(source), byref(options), byref(self.raw))
        check_status(self.library, status)
        weakref.finalize(self, self.library.cuts_plan_close, self.raw)
        self._opening = threading.Lock()
        self._session: PackedSession | None = None

    @cached_property
    def _info(self) -> PlanInfoStruct:
        found = PlanInfoStruct()
        check_status(self.library, self.library.cuts_plan_describe(self.raw, byref(found)))
        return found

    def _tensors(self, role: int, count: int) -> dict[str, TensorType]:
        found, info = {}, TensorInfoStruct()
        for number in range(count):
            check_status(self.library, self.library.cuts_plan_tensor(self.raw, role, number, byref(info)))
            dtype = DTYPES[info.dtype.code, info.dtype.bits]
            found[info.name.decode()] = TensorType(dtype, tuple(info.shape[: info.ndim]))
        return found

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self._info.name.decode())

    @property
    def target(self) -> PackedTarget:
        """Target that the plan was compiled for."""
        return PackedTarget(self._info.target.decode(), self._info.dialect.decode())

    @cached_property
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs; state is none."""
        return self._tensors(INPUT, self._info.inputs)

    @cached_property
    def outputs(self) -> Mapping[str, TensorType]:
        """The types of the outputs."""
        return self._tensors(OUTPUT, self._info.outputs)

    @cached_property
    def states(self) -> Mapping[str, TensorType]:
        """The types of the state."""
        return self._tensors(STATE, self._info.states)

    @cached_property
    def sizes(self) -> tuple[Any, Any]:
        """Bytes of each input and each output, for the library."""
        given, found = ([type_.nbytes for type_ in types.values()] for types in self._interface)
        return (c_uint64 * max(1, len(given)))(*given), (c_uint64 * max(1, len(found)))(*found)

    @property
    def _interface(self) -> tuple[Mapping[str, TensorType], Mapping[str, TensorType]]:
        return self.inputs, self.outputs

    def __repr__(self) -> str:
        """Return inputs, outputs, the number of launches, and the target."""
        given, found = (", ".join(f"{n}: {t}" for n, t in types.items()) for types in self._interface)
        return (
            f"PackedPlan({self.name!r}: ({given}) -> ({found}), {self._info.launches} launches, for {self.target.name})"
        )

    def new_session(self) -> PackedSession:
        """Return another session of the plan."""
        return PackedSession(self)

    @property
    def session(self) -> PackedSession:
        """The session of `run`, made when it is first needed."""
        with self._opening:
            if self._session is None:
                self._session = self.new_session()
            return self._session

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Run on host arrays by name; return host arrays."""
        return self.session.run(inputs)

    @property
    def state(self) -> dict[str, Array]:
        """The values of state that the next run begins with."""
        return self.session.state

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Return random inputs of the right types."""
        return random_inputs(self.inputs, tuple(self.inputs), seed)


def default_options(source: str | os.PathLike[str] | bytes) -> OptionsStruct:
    """Return the options for the device that sessions in Python use, too."""
    if read_dialect(source) != DIALECTS["opencl"]:
        return make_options(int(os.environ.get(ORDINAL_VARIABLE, "0")))
    try:
        device = choose_device().device
    except BackendError:
        return make_options()  # without PyOpenCL, the system's library
    return make_options(0, opencl_library(), device_context(device).int_ptr, device.int_ptr)


def _addresses(values: Sequence[int]) -> Any:
    return (c_void_p * max(1, len(values)))(*values)
