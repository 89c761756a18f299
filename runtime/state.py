"""State of a plan: tensors that persist between runs.

The values between runs lie in memory of their own. A run copies them to its inputs, and, once it is right, back from
its outputs: so that runs on given values, traces and timing leave the state alone. State that kernels update in place
stays in the arena from run to run, and is copied out only ahead of such runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from attrs import frozen

from ..backends import Array, Device, Pointer
from ..ir import UsageError, quote, raise_all
from .arrays import checked_inputs
from .plan import Plan


def checked_state(plan: Plan, given: Mapping[str, object]) -> dict[str, Array]:
    """Return values of state as host arrays of the right types.

    Raises `UsageError` for names that are no state of the plan, and for other types.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"expected arrays by the name of state, found {type(given).__name__}")
    state = plan.interface.state
    known = ", ".join(map(quote, state)) or "none"
    raise_all(
        [
            UsageError(f"there is no state {quote(str(name))}", hint=f"state is: {known}")
            for name in given
            if name not in state
        ]
    )
    types = {name: plan.types[state[name].input] for name in given}
    return checked_inputs(types, tuple(given), given, "state")


class HostState:
    """State of a plan on the host, for targets without kernels."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._values: dict[str, Array] = {}
        self.reset()

    def read(self) -> dict[str, Array]:
        """Return copies of the values."""
        return {name: value.copy() for name, value in self._values.items()}

    def write(self, values: Mapping[str, Array]) -> None:
        """Replace some of the values."""
        self._values |= {name: value.copy() for name, value in values.items()}

    def reset(self) -> None:
        """Go back to the initial values."""
        self.write({name: tensor.initial for name, tensor in self.plan.interface.state.items()})


@frozen
class ArenaAccess:
    """Access to a session's tensors: places, density, host copies."""

    place: Callable[[str], Pointer]
    is_dense: Callable[[str], bool]
    read: Callable[[str], Array]
    write: Callable[[Mapping[str, Array]], None]


class DeviceState:
    """The state of one session, on its device.

    Tensors that do not lie dense in the arena go by way of the host.
    """

    def __init__(self, plan: Plan, device: Device, arena: ArenaAccess) -> None:
        self._tensors = plan.interface.state
        self._device, self._arena = device, arena
        self._types = {name: plan.types[tensor.input] for name, tensor in self._tensors.items()}
        self._buffers = {name: device.allocate(max(1, type_.nbytes)) for name, type_ in self._types.items()}
        in_place = () if plan.checks else plan.in_place.items()  # a run that fails a check leaves the state alone
        self._in_place = {name for name, t in self._tensors.items() if (t.input, t.output) in in_place}
        self._resident = set[str]()  # the arena has their values
        self.reset()

    def read(self) -> dict[str, Array]:
        """Return the values, on the host."""
        self.evict()
        return {name: self._value(name) for name in self._tensors}

    def _value(self, name: str) -> Array:
        type_ = self._types[name]
        array = np.empty(type_.shape, type_.dtype.numpy)
        self._device.download(array, Pointer(self._buffers[name]))
        return array

    def write(self, values: Mapping[str, Array]) -> None:
        """Replace some of the values."""
        for name, value in values.items():
            self._resident.discard(name)
            dense = np.ascontiguousarray(value).reshape(value.shape)
            self._device.upload(Pointer(self._buffers[name]), dense)

    def reset(self) -> None:
        """Go back to the initial values."""
        self.write({name: tensor.initial for name, tensor in self._tensors.items()})

    def load(self, given: Collection[str] = ()) -> None:
        """Copy the values to those inputs that are not given."""
        for name, tensor in self._tensors.items():
            if tensor.input in given or name in self._resident:
                continue
            if self._arena.is_dense(tensor.input):
                nbytes = self._types[name].nbytes
                self._device.copy(self._arena.place(tensor.input), Pointer(self._buffers[name]), nbytes)
            else:
                self._arena.write({tensor.input: self._value(name)})

    def evict(self) -> None:
        """Copy resident values out of the arena.

        A run that leaves the state alone may follow.
        """
        for name in self._resident:
            self._copy_out(name, self._tensors[name].output)
        self._resident.clear()

    def evict_for_good(self) -> None:
        """Keep no value in the arena from now on.

        Launches by others may change it.
        """
        self.evict()
        self._in_place.clear()

    def _copy_out(self, name: str, tensor: str) -> None:
        self._device.copy(Pointer(self._buffers[name]), self._arena.place(tensor), self._types[name].nbytes)

    def store(self) -> None:
        """Store the values that the plan computed."""
        for name, tensor in self._tensors.items():
            if name in self._in_place:
                self._resident.add(name)
            elif self._arena.is_dense(tensor.output):
                self._copy_out(name, tensor.output)
            else:
                self.write({name: self._arena.read(tensor.output)})
