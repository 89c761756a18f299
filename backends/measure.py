"""Timing candidates of one kernel side by side, and choosing the fastest.

Candidates differ in their parameters only: they take the same tensors and must compute the same numbers. Each gets random data (zeros
flatter a GPU), runs once for its result, which is compared with that of the first candidate that ran, and is then timed in rounds that go
through all of them, so that a drifting clock hits each alike. One that is refused or computes something else costs itself and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen

from ..ir.errors import BackendError
from ..ir.launch import Argument, KernelFunction
from ..ir.types import DType
from .device import Array, Device, Launch, Pointer, Timing

_ROUNDS = 5
_HOPELESS = 1.5  # a candidate this much slower than the best of the first round is timed no further


@frozen
class Measured:
    """What became of a candidate: its times, or why it has none."""

    timing: Timing | None
    failure: str = ""

    @property
    def seconds(self) -> float:
        """The median, infinity for a failure."""
        return self.timing.median if self.timing else float("inf")


def fastest(results: Sequence[Measured]) -> int:
    """Return the number of the fastest candidate; the earlier of two within one percent, so that noise does not choose."""
    best = min((result.seconds for result in results), default=float("inf"))
    for number, result in enumerate(results):
        if result.seconds <= 1.01 * best and result.timing:
            return number
    reasons = "; ".join(dict.fromkeys(result.failure for result in results))
    raise BackendError(f"none of {len(results)} candidates runs: {reasons}")


def measure(device: Device, candidates: Sequence[KernelFunction], extents: Mapping[str, int], *, seed: int = 0) -> tuple[Measured, ...]:
    """Time candidates; `extents` says how many elements a kernel may touch from the first element of each tensor."""
    data = _Data(device, extents, seed)
    launches: list[Launch | None] = []
    failures: list[str] = []
    expected: dict[str, Array] = {}
    for kernel in candidates:
        launch, failure = _try(device, kernel, data, expected)
        launches.append(launch)
        failures.append(failure)
    samples: list[list[float]] = [[] for _ in candidates]
    for _ in range(_ROUNDS):
        limit = _HOPELESS * min((min(times) for times in samples if times), default=float("inf"))
        for number, launch in enumerate(launches):
            if launch is not None and (not samples[number] or min(samples[number]) <= limit):
                samples[number] += device.time(launch, warmup=1, repeats=3).samples
    return tuple(Measured(Timing(tuple(times)) if times else None, why) for times, why in zip(samples, failures, strict=True))


class _Data:
    """The tensors that all candidates share, filled with random numbers, and tables as each kernel wants them."""

    def __init__(self, device: Device, extents: Mapping[str, int], seed: int) -> None:
        self.device, self.extents = device, extents
        self._random = np.random.default_rng(seed)
        self._places: dict[str, Pointer] = {}
        self._inputs: dict[str, Array] = {}

    def pointer(self, kernel: KernelFunction, argument: Argument) -> Pointer:
        """Return where an argument lives, made when it is first asked for."""
        if argument.table:
            values = np.array(kernel.tables[argument.tensor], np.int32)
            place = Pointer(self.device.allocate(values.nbytes))
            self.device.upload(place, values)
            return place
        if argument.tensor not in self._places:
            array = self._fill(argument.dtype, self.extents[argument.tensor])
            self._inputs[argument.tensor] = array
            self._places[argument.tensor] = Pointer(self.device.allocate(array.nbytes))
        return self._places[argument.tensor]

    def _fill(self, dtype: DType, count: int) -> Array:
        if dtype.is_float:
            return self._random.standard_normal(count).astype(dtype.numpy)
        return self._random.integers(0, 2, count).astype(dtype.numpy)  # 0 and 1 index whatever they may index

    def reset(self) -> None:
        """Put every tensor back to its random numbers: a candidate must not profit from what another left."""
        for tensor, place in self._places.items():
            self.device.upload(place, self._inputs[tensor])

    def read(self, argument: Argument) -> Array:
        """Return what a tensor holds now."""
        array = np.empty(self.extents[argument.tensor], argument.dtype.numpy)
        self.device.download(array, self._places[argument.tensor])
        return array


def _try(device: Device, kernel: KernelFunction, data: _Data, expected: dict[str, Array]) -> tuple[Launch | None, str]:
    """Build and run a candidate once; the first that runs says what the others must compute."""
    try:
        (loaded,) = device.build([kernel])
        launch = device.bind(loaded, kernel, [data.pointer(kernel, argument) for argument in kernel.arguments])
        data.reset()
        launch()
        device.synchronize()
        results = {a.tensor: data.read(a) for a in kernel.arguments if a.written}
    except BackendError as error:
        return None, error.message.splitlines()[0]
    for tensor, result in results.items():
        if not _close(result, expected.setdefault(tensor, result)):
            return None, f"kernel {kernel.name} computes other numbers than the first candidate"
    return launch, ""


def _close(found: Array, wanted: Array) -> bool:
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, wanted))
    tolerance = 1e-2 if found.dtype.itemsize == 2 else 1e-3
    scale = float(np.sqrt(np.mean(np.square(wanted[np.isfinite(wanted)], dtype=np.float64)))) if wanted.size else 1.0
    return bool(np.allclose(found, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True))
