"""The data of problems: random inputs of a kind that a group can read, how its tensors lie in memory, and what outputs
must be.

The same problem gets the same data in every process. Outputs begin with a value that no kernel leaves behind.
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
from ..passes.fusion import addressed
from .oracle import Sample, expected
from .problem import Problem

Array = npt.NDArray[Any]

#: Random numbers of a tensor repeat after this many: a prime, so that no stride of a tensor meets the same numbers
#: again.
PERIOD = 4_194_301
#: How far from zero numbers are that must not be near it.
AWAY = 0.5
#: Sequences of random numbers that are kept; inputs beyond that many begin again with the first.
_KEPT = 6
#: Sequences of numbers that are kept on a device at most; the one that was not used for the longest time is dropped.
_SENT = 24
#: Elements below which memory is filled from the host: not worth a whole period.
_FEW = PERIOD // 16
#: What outputs hold before a kernel runs.
_POISON = {DType.F16: -60000.0, DType.BF16: -7.75e29, DType.F32: -7.75e29, DType.F64: -7.75e299}


@frozen(eq=False)
class Reference:
    """What outputs must be at some elements, their magnitudes, and whether inputs had to be positive for them to be
    numbers.
    """

    samples: Mapping[str, Sample]
    scales: Mapping[str, float]
    positive: bool = False


def make_reference(problem: Problem) -> Reference:
    """Evaluate a group in float64 on its random inputs; on positive ones where the results would be no numbers."""
    for positive in (False, True):
        arrays = {t: view(problem, t, a) for t, a in random_inputs(problem, positive).items()}
        samples = expected(problem.form, arrays)
        if not _mostly_nan(samples):
            break
    return Reference(samples, {t: magnitude(s.values) for t, s in samples.items()}, positive)


def random_inputs(problem: Problem, positive: bool = False) -> dict[str, Array]:
    """Return the memory of each input, filled with random numbers of a kind that the group can read; always the same
    ones.
    """
    counts = {tensor: elements(problem, tensor) for tensor in problem.form.inputs}
    drawn = numbers_of(problem, positive)
    return {tensor: _repeated(drawn[tensor].values(count), count) for tensor, count in counts.items()}


def _repeated(values: Array, count: int) -> Array:
    """Return values again and again until there are so many.

    Memory is asked for first: `numpy.resize` lists the repetitions before, which took 11 s where there is no room.
    """
    if values.size == count:
        return values
    memory = np.empty(count, values.dtype)
    whole = count // values.size * values.size
    memory[:whole].reshape(-1, values.size)[:] = values
    memory[whole:] = values[: count - whole]
    return memory


@frozen
class DrawnNumbers:
    """Random numbers of a type, the same ones for all that is equal here: normal ones, away from zero or positive where
    that is asked for, times a scale; or integers from 0 to `high` - 1.
    """

    seed: int
    dtype: DType
    scale: float = 1.0
    away: bool = False
    positive: bool = False
    high: int = 0

    def values(self, count: int) -> Array:
        """Return the first of them, as many as there are before they repeat themselves at most."""
        count = min(count, PERIOD)
        if self.high:
            return np.random.default_rng(self.seed).integers(0, self.high, count).astype(self.dtype.numpy)
        values = _normal(self.seed)[:count]
        if self.away or self.positive:
            away = np.abs(values) + np.float32(AWAY)
            values = away if self.positive else np.copysign(away, values)
        return (values * np.float32(self.scale)).astype(self.dtype.numpy)


def numbers_of(problem: Problem, positive: bool) -> dict[str, DrawnNumbers]:
    """Return what each input is filled with."""
    ranges, scales, below = index_ranges(problem.form), input_scales(problem.form), divisors(problem.form)
    found = {}
    for number, tensor in enumerate(problem.form.inputs):
        dtype = problem.form.tensors[tensor].dtype
        if dtype.is_float:
            seed, away = number % _KEPT, tensor in below and not positive
            found[tensor] = DrawnNumbers(seed, dtype, scales.get(tensor, 1.0), away, positive)
        else:
            found[tensor] = DrawnNumbers(number, dtype, high=2 if dtype is DType.BOOL else ranges.get(tensor, 8))
    return found


@lru_cache(maxsize=_KEPT)
def _normal(seed: int) -> Array:
    """Return a period of standard normal numbers; every problem begins with the same ones."""
    return np.random.default_rng(seed).standard_normal(PERIOD, np.float32)


def divisors(form: FusedGroup) -> set[str]:
    """Return the inputs that something is divided by.

    Of numbers around zero some are so small that the difference of two quotients is all rounding, which no bound on
    rounding explains: 7 of 800 kernels of a training step were taken for wrong, where rows of a softmax are divided.
    """
    nodes = (node for segment in form.segments for body in segment.expressions for node in walk(body))
    below = (node.args[1] for node in nodes if isinstance(node, Call) and node.fn == "div")
    return {read.tensor for read in below if isinstance(read, Read) and read.tensor in form.inputs}


def input_scales(form: FusedGroup) -> dict[str, float]:
    """Return factors for the inputs of contractions that keep sums of products near one.

    A sum of n products of standard normal numbers is of the size of the square root of n, and rounds accordingly. A
    clip behind it would hide that size, and take for a wrong result what is rounding. They are powers of two, so that
    groups share their numbers.
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
    """Return for each tensor that holds indices how many values they may have."""
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


def elements(problem: Problem, tensor: str) -> int:
    """Return how many elements of memory a tensor reaches over."""
    type_ = problem.form.tensors[tensor]
    return addressed(problem.storages[tensor], type_) if tensor in problem.storages else type_.size


def span(problem: Problem, tensor: str) -> int:
    """Return the bytes of memory that a tensor reaches over."""
    return elements(problem, tensor) * problem.form.tensors[tensor].dtype.size


def view(problem: Problem, tensor: str, memory: Array) -> Array:
    """Return the tensor that lives in some memory."""
    return as_strided(
        memory, problem.form.tensors[tensor].shape, [s * memory.itemsize for s in _strides(problem, tensor)]
    )


def addresses(problem: Problem, tensor: str, places: Sequence[Array]) -> Array:
    """Return where in a tensor's memory the elements at some places are."""
    parts = (place.astype(np.int64) * stride for place, stride in zip(places, _strides(problem, tensor), strict=True))
    return sum(parts, np.zeros(len(places[0]) if places else 1, np.int64))


def _strides(problem: Problem, tensor: str) -> tuple[int, ...]:
    return problem.storages[tensor].strides if tensor in problem.storages else problem.form.tensors[tensor].strides


def poison(dtype: DType, count: int) -> Array:
    """Return what outputs of a type hold before a kernel runs; a kernel that leaves an element out leaves this."""
    if dtype in _POISON:
        return np.full(count, _POISON[dtype], dtype.numpy)
    return np.full(count * dtype.size, 0x5A, np.uint8).view(host_dtype(dtype))


def host_dtype(dtype: DType) -> np.dtype[Any]:
    """Return how an output is read: truth values as bytes, so that what was never written is told from true."""
    return np.dtype(np.uint8) if dtype is DType.BOOL else dtype.numpy


# ---- on a device


@define
class KeptNumbers:
    """Sequences on a device, each of a period, by what tells them apart: memory of many problems is filled from them.

    To draw them again and send them for each problem took 16 ms, ten times as long as to check a kernel.
    """

    device: Device
    _sequences: OrderedDict[Hashable, Pointer] = field(factory=OrderedDict, init=False)

    def filled(self, key: Hashable, dtype: DType, count: int, values: Callable[[int], Array]) -> Pointer:
        """Return new memory of `count` elements that a sequence is repeated in; `values` returns its first elements."""
        size = host_dtype(dtype).itemsize
        place = Pointer(self.device.allocate(count * size))
        if count < _FEW:
            self.device.upload(place, values(count))
            return place
        source, period = self._sequence(key, size, values), PERIOD * size
        for start in range(0, count * size, period):
            part = Pointer(place.buffer, start)
            self.device.copy(part, source, min(period, count * size - start))
        return place

    def _sequence(self, key: Hashable, size: int, values: Callable[[int], Array]) -> Pointer:
        if key not in self._sequences:
            if len(self._sequences) >= _SENT:
                self._sequences.popitem(last=False)
            self._sequences[key] = Pointer(self.device.allocate(PERIOD * size))
            self.device.upload(self._sequences[key], values(PERIOD))
        self._sequences.move_to_end(key)
        return self._sequences[key]
