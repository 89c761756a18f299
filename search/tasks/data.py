"""Data of tuning tasks: random inputs, memory layouts and expected outputs.

Inputs are of a kind that the group can read. The same task gets the same data in every process. Outputs begin with a
value that no kernel leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from ...backends import Device, Pointer
from ...ir import DType, strided_view
from ...numerics import PERIOD, input_numbers, magnitude
from ...passes.fusion import memory_span
from .oracle import Sample, expected_outputs
from .tuning_task import TuningTask

Array = npt.NDArray[Any]

#: Largest number of sequences on a device; the least recently used is dropped.
_MAX_DEVICE_SEQUENCES = 24
#: Elements below which memory is filled from the host: not worth a whole period.
_MIN_DEVICE_FILL = PERIOD // 16
#: Values of outputs before a kernel runs.
_POISON = {
    DType.F16: -60000.0,
    DType.BF16: -7.75e29,
    DType.F8E4M3: -416.0,
    DType.F8E5M2: -49152.0,
    DType.F32: -7.75e29,
    DType.F64: -7.75e299,
}


@frozen(eq=False)
class Reference:
    """Expected outputs at some elements, with their magnitudes.

    `positive` says that inputs had to be positive for the outputs to be numbers.
    """

    samples: Mapping[str, Sample]
    scales: Mapping[str, float]
    positive: bool = False


def make_reference(problem: TuningTask) -> Reference:
    """Evaluate a group in float64 on its random inputs.

    Inputs are positive where the results would otherwise be NaN.
    """
    for positive in (False, True):
        arrays = {t: view(problem, t, a) for t, a in random_inputs(problem, positive).items()}
        samples = expected_outputs(problem.form, arrays)
        if not _mostly_nan(samples):
            break
    return Reference(samples, {t: magnitude(s.values) for t, s in samples.items()}, positive)


def random_inputs(problem: TuningTask, positive: bool = False) -> dict[str, Array]:
    """Return the memory of each input, filled with reproducible random numbers."""
    counts = {tensor: elements(problem, tensor) for tensor in problem.form.inputs}
    drawn = input_numbers(problem.form, positive)
    return {tensor: _repeat(drawn[tensor].values(count), count) for tensor, count in counts.items()}


def _repeat(values: Array, count: int) -> Array:
    """Return values, repeated up to a number of elements.

    Memory is allocated first: `numpy.resize` lists the repetitions before, which takes 11 s without enough memory.
    """
    if values.size == count:
        return values
    memory = np.empty(count, values.dtype)
    whole = count // values.size * values.size
    memory[:whole].reshape(-1, values.size)[:] = values
    memory[whole:] = values[: count - whole]
    return memory


def _mostly_nan(samples: Mapping[str, Sample]) -> bool:
    return any(
        s.values.dtype.kind == "f" and s.values.size and np.mean(np.isnan(s.values)) > 0.1 for s in samples.values()
    )


def elements(problem: TuningTask, tensor: str) -> int:
    """Return the number of elements of memory that a tensor spans."""
    type_ = problem.form.tensors[tensor]
    return memory_span(problem.storages[tensor], type_) if tensor in problem.storages else type_.size


def span(problem: TuningTask, tensor: str) -> int:
    """Return the bytes of memory that a tensor spans."""
    return elements(problem, tensor) * problem.form.tensors[tensor].dtype.size


def view(problem: TuningTask, tensor: str, memory: Array) -> Array:
    """Return the tensor in some memory."""
    return strided_view(
        memory, problem.form.tensors[tensor].shape, [s * memory.itemsize for s in _strides(problem, tensor)]
    )


def addresses(problem: TuningTask, tensor: str, places: Sequence[Array]) -> Array:
    """Return the offsets, in a tensor's memory, of elements at some indices."""
    parts = (place.astype(np.int64) * stride for place, stride in zip(places, _strides(problem, tensor), strict=True))
    return sum(parts, np.zeros(len(places[0]) if places else 1, np.int64))


def _strides(problem: TuningTask, tensor: str) -> tuple[int, ...]:
    return problem.storages[tensor].strides if tensor in problem.storages else problem.form.tensors[tensor].strides


def poison(dtype: DType, count: int) -> Array:
    """Return the values of outputs before a kernel runs.

    A kernel that skips an element leaves this value.
    """
    if dtype in _POISON:
        return np.full(count, _POISON[dtype], dtype.numpy)
    return np.full(count * dtype.size, 0x5A, np.uint8).view(host_dtype(dtype))


def host_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the type in which an output is read on the host.

    Booleans are bytes, so that an unwritten value differs from true.
    """
    return np.dtype(np.uint8) if dtype is DType.BOOL else dtype.numpy


# ---- on a device


@define
class DeviceNumbers:
    """Sequences of random numbers on a device, by key.

    Memory of many tasks is filled from them. Drawing and sending them for each task takes 16 ms, ten times as long as
    the check of a kernel.
    """

    device: Device
    _sequences: OrderedDict[Hashable, Pointer] = field(factory=OrderedDict, init=False)

    def fill(self, key: Hashable, dtype: DType, count: int, values: Callable[[int], Array]) -> Pointer:
        """Return new memory of `count` elements filled with a repeated sequence.

        `values` returns the first elements of the sequence.
        """
        size = host_dtype(dtype).itemsize
        place = Pointer(self.device.allocate(count * size))
        if count < _MIN_DEVICE_FILL:
            self.device.upload(place, values(count))
            return place
        source, period = self._sequence(key, size, values), PERIOD * size
        for start in range(0, count * size, period):
            part = Pointer(place.buffer, start)
            self.device.copy(part, source, min(period, count * size - start))
        return place

    def _sequence(self, key: Hashable, size: int, values: Callable[[int], Array]) -> Pointer:
        if key not in self._sequences:
            if len(self._sequences) >= _MAX_DEVICE_SEQUENCES:
                self._sequences.popitem(last=False)
            self._sequences[key] = Pointer(self.device.allocate(PERIOD * size))
            self.device.upload(self._sequences[key], values(PERIOD))
        self._sequences.move_to_end(key)
        return self._sequences[key]
