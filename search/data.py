"""Data of tuning tasks: random inputs, memory layouts and expected outputs.

Inputs are of a kind that the group can read. The same task gets the same data in every process. Outputs begin with a
value that no kernel leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import log2, prod
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen
from numpy.lib.stride_tricks import as_strided

from ..backends import Device, Pointer
from ..ir import (
    Call,
    DType,
    FusedGroup,
    Index,
    Read,
    indices,
    indirects,
    is_contraction,
    magnitude,
    operands,
    reads,
    walk,
)
from ..passes.fusion import memory_span
from .oracle import Sample, expected_outputs
from .tuning_task import TuningTask

Array = npt.NDArray[Any]

#: Period of a tensor's random numbers: a prime, so that no stride of a tensor meets the same numbers again.
PERIOD = 4_194_301
#: Smallest distance from zero of numbers that must not be near it.
MIN_MAGNITUDE = 0.5
#: Number of cached sequences of random numbers; further inputs begin again with the first.
_CACHED_SEQUENCES = 6
#: Largest number of sequences on a device; the least recently used is dropped.
_MAX_DEVICE_SEQUENCES = 24
#: Elements below which memory is filled from the host: not worth a whole period.
_MIN_DEVICE_FILL = PERIOD // 16
#: Values of outputs before a kernel runs.
_POISON = {DType.F16: -60000.0, DType.BF16: -7.75e29, DType.F32: -7.75e29, DType.F64: -7.75e299}


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
    drawn = input_numbers(problem, positive)
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


@frozen
class RandomNumbers:
    """Random numbers of a type, equal for equal parameters.

    They are normal, if requested not near zero or positive, times a scale; or integers from 0 to `high` - 1.
    """

    seed: int
    dtype: DType
    scale: float = 1.0
    away: bool = False
    positive: bool = False
    high: int = 0

    def values(self, count: int) -> Array:
        """Return the first `count` of them, at most a period."""
        count = min(count, PERIOD)
        if self.high:
            return np.random.default_rng(self.seed).integers(0, self.high, count).astype(self.dtype.numpy)
        values = _normal(self.seed)[:count]
        if self.away or self.positive:
            away = np.abs(values) + np.float32(MIN_MAGNITUDE)
            values = away if self.positive else np.copysign(away, values)
        return (values * np.float32(self.scale)).astype(self.dtype.numpy)


def input_numbers(problem: TuningTask, positive: bool) -> dict[str, RandomNumbers]:
    """Return the random numbers of each input."""
    ranges, scales, below = index_ranges(problem.form), input_scales(problem.form), divisor_inputs(problem.form)
    found = {}
    for number, tensor in enumerate(problem.form.inputs):
        dtype = problem.form.tensors[tensor].dtype
        if dtype.is_float:
            seed, away = number % _CACHED_SEQUENCES, tensor in below and not positive
            found[tensor] = RandomNumbers(seed, dtype, scales.get(tensor, 1.0), away, positive)
        else:
            found[tensor] = RandomNumbers(number, dtype, high=2 if dtype is DType.BOOL else ranges.get(tensor, 8))
    return found


@lru_cache(maxsize=_CACHED_SEQUENCES)
def _normal(seed: int) -> Array:
    """Return a period of standard normal numbers, equal for every task."""
    return np.random.default_rng(seed).standard_normal(PERIOD, np.float32)


def divisor_inputs(form: FusedGroup) -> set[str]:
    """Return the inputs that are divisors.

    Some of the numbers around zero are so small that the difference of two quotients exceeds every bound on rounding: 7
    of 800 kernels of a training step failed the check, where rows of a softmax are divided.
    """
    nodes = (node for segment in form.segments for body in segment.expressions for node in walk(body))
    below = (node.args[1] for node in nodes if isinstance(node, Call) and node.fn == "div")
    return {read.tensor for read in below if isinstance(read, Read) and read.tensor in form.inputs}


def input_scales(form: FusedGroup) -> dict[str, float]:
    """Return factors for inputs that keep sums of products near one.

    A sum of n products of standard normal numbers is of the size of the square root of n, and rounds accordingly. A
    clip after it would hide that size, and rounding would look like a wrong result. The factors are powers of two, so
    that groups share their numbers.
    """
    found: dict[str, float] = {}
    for segment in form.segments:
        own = [r.name for r in segment.reductions]
        for reduction in segment.reductions:
            if not is_contraction(reduction, own):
                continue
            tensors = {r.tensor for part in operands(reduction, own) for r in reads(part) if r.tensor in form.inputs}
            terms = prod(v.extent for v in reduction.reduce)
            for tensor in tensors:
                found[tensor] = min(found.get(tensor, 1.0), 2.0 ** round(-0.5 * log2(terms) / len(tensors)))
    return found


def index_ranges(form: FusedGroup) -> dict[str, int]:
    """Return the number of valid values of each tensor that holds indices."""
    found: dict[str, int] = {}
    for index in _indices(form):
        for primary in indirects(index):
            found[primary.tensor] = min(found.get(primary.tensor, primary.extent), primary.extent)
    return found


def _indices(form: FusedGroup) -> Iterator[Index]:
    for segment in form.segments:
        yield from (w for o in segment.outputs for w in o.write)
        yield from (index for body in segment.expressions for index in indices(body))


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
    return as_strided(
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
