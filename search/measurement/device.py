"""Device process: checks and times candidates.

Every kernel of a task gets the same random data (zeros flatter a GPU). Its outputs are filled with a value that no
kernel leaves, and its results are compared with the expected ones before it is timed. Timed runs begin with an L2 cache
of a GPU that holds only the inputs which preceding kernels write, where these are small.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from itertools import accumulate, product
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from ...backends import Device as Hardware
from ...backends import Launch, MemoryPart, Pointer, middle_mean, open_device
from ...backends.cuda import empty_kernel
from ...backends.library import RoutineError
from ...ir import BackendError, DType, KernelFunction, Target
from ...numerics import group_tolerance, input_numbers, relative_error
from ..tasks import (
    DeviceNumbers,
    Reference,
    Sample,
    TuningTask,
    addresses,
    elements,
    host_dtype,
    make_reference,
    poison,
    span,
)
from ..trace import HERE
from .compare import BLOCK, SMALL_BLOCK, Comparer

Array = npt.NDArray[Any]

#: Bytes of device memory for the data of tasks; the least recently used is dropped beyond that.
MAX_DATA_BYTES = 8 << 30
#: Largest number of loaded kernels of a task; the least recently used is dropped, and loaded again on request.
MAX_LOADED_KERNELS = 512
#: Elements of an output that are transferred to the host at once, of 8 bytes at most.
TRANSFER_ELEMENTS = 1 << 21
#: Largest share of the L2 cache that inputs of preceding kernels fill to be in it when a kernel is timed. Lower bounds
#: count them as read from memory: at most two microseconds here, while events around a launch add four, so that no
#: bound exceeds a time because of it.
MAX_WARM_L2_SHARE = 1 / 8
#: Number of memory placements at which a small task is timed (equal to the runs of finalists), the largest size of its
#: data in bytes, and the alignment of tensors: times of kernels of a few microseconds differ by 1 to 1.5 % with the
#: placement of their data.
NUM_PLACEMENTS, MAX_PLACED_BYTES, PLACEMENT_ALIGNMENT = 12, 8 << 20, 512


@frozen
class Verdict:
    """Result of a kernel's check, with the reason.

    The outcome is "ok", "wrong", "failed", or "refused" by a library that has no routine.
    """

    outcome: str
    message: str = ""


@frozen
class TimingTurns:
    """Kernels of a task to time in turns of `runs` runs.

    Where the first takes more than `most` seconds, the others are not timed.
    """

    kernels: tuple[str, ...]
    runs: int
    most: float = inf


@frozen
class DeviceAnswer:
    """Verdict on a candidate, and the timed kernels' runs.

    The samples are None for a kernel that is not loaded. A kernel that fails is the last, and the reason is `failure`.
    """

    verdict: Verdict
    samples: tuple[tuple[float, ...] | None, ...] = ()
    failure: str = ""


@define
class _Loaded:
    """Kernel on the device with its tables and its launches by placement; `turn` is the next placement."""

    function: object
    kernel: KernelFunction
    tables: Mapping[str, Pointer]
    launches: dict[int, Launch] = field(factory=dict)
    turn: int = 0


@define
class _Data:
    """Data of one task on the device, and its kernels.

    Its tensors lie at several `places`, with equal inputs; kernels are checked at the first. `blank` holds the outputs
    before a kernel runs, `whole` those of the first correct kernel. `kernels` is in order of last use.
    """

    problem: TuningTask
    reference: Reference
    places: list[dict[str, Pointer]] = field(factory=lambda: [{}])
    blank: dict[str, Pointer] = field(factory=dict)
    whole: dict[str, Pointer] = field(factory=dict)
    kernels: dict[str, _Loaded] = field(factory=dict)
    nbytes: int = 0

    @property
    def first(self) -> dict[str, Pointer]:
        """Placement at which kernels are checked."""
        return self.places[0]


def _warm_inputs(problem: TuningTask, places: Mapping[str, Pointer]) -> list[MemoryPart]:
    """Return the inputs that preceding kernels leave in the cache: non-constant ones, where they are small."""
    form = problem.form
    sizes = {t: span(problem, t) for t in form.inputs if t not in form.fixed}
    fits = sum(sizes.values()) <= MAX_WARM_L2_SHARE * problem.target.l2_bytes
    return [(places[tensor], nbytes) for tensor, nbytes in sizes.items() if fits and nbytes]


class MeasuringDevice:
    """Owner of a device, which checks and times kernels.

    Tasks are identified by key, since sending one takes a millisecond or two, and kernels by name, a digest of their
    source.
    """

    def __init__(self, target: Target, memory: int = MAX_DATA_BYTES) -> None:
        self.device: Hardware = open_device(target)
        self.memory = memory
        self.comparers: dict[DType, Comparer] = {}
        self._problems: OrderedDict[str, _Data] = OrderedDict()
        self._known: dict[str, TuningTask] = {}
        self.kept = DeviceNumbers(self.device)
        self._part = np.empty(TRANSFER_ELEMENTS * 8, np.uint8)

    def describe(self) -> dict[str, object]:
        """Return the device's description."""
        return self.device.describe()

    def prepare(self, problem: TuningTask, reference: Reference | None = None) -> None:
        """Make and upload random inputs; compute the reference where none is given."""
        self._known[problem.key] = problem
        if problem.key in self._problems:
            self._problems.move_to_end(problem.key)
            return
        reference = reference or make_reference(problem)
        outputs = problem.form.outputs
        sizes = {
            t: -(-span(problem, t) // PLACEMENT_ALIGNMENT) * PLACEMENT_ALIGNMENT
            for t in (*problem.form.inputs, *outputs)
        }
        once = sum(sizes.values())
        more = 0 if problem.target.warm_caches or once > MAX_PLACED_BYTES else NUM_PLACEMENTS - 1
        nbytes = once * (1 + more) + 2 * sum(span(problem, t) for t in outputs)
        while self._problems and sum(d.nbytes for d in self._problems.values()) + nbytes > self.memory:
            self._problems.popitem(last=False)
        data = _Data(problem, reference, nbytes=nbytes)
        for tensor, numbers in input_numbers(problem.form, reference.positive).items():
            data.first[tensor] = self.kept.fill(numbers, numbers.dtype, elements(problem, tensor), numbers.values)
        for tensor in outputs:
            dtype = problem.form.tensors[tensor].dtype
            data.blank[tensor] = self.kept.fill(dtype, dtype, elements(problem, tensor), partial(poison, dtype))
            data.first[tensor] = Pointer(self.device.allocate(span(problem, tensor)))
        if more:
            block = self.device.allocate(more * once)
            starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
            data.places += [{t: Pointer(block, n * once + starts[t]) for t in sizes} for n in range(more)]
            for places, tensor in product(data.places[1:], problem.form.inputs):
                self.device.copy(places[tensor], data.first[tensor], span(problem, tensor))
        self._problems[problem.key] = data

    def check(
        self,
        key: str,
        kernel: KernelFunction,
        binary: bytes | None,
        new: TuningTask | None = None,
        reference: Reference | None = None,
    ) -> Verdict:
        """Load a kernel, run it once and compare its outputs.

        A `new` task is prepared first. The outputs of the first correct kernel are the reference for every element.
        """
        problem = new or self._known[key]
        with HERE.recording("prepare"):
            self.prepare(problem, reference)
        data = self._problems[problem.key]
        try:
            with HERE.recording("load"):
                loaded = self._load(data, kernel, binary)
            for tensor, blank in data.blank.items():
                self.device.copy(data.first[tensor], blank, span(problem, tensor))
            loaded.launches[0]()
            self.device.synchronize()
        except RoutineError as refusal:  # nothing was launched, so the context is valid
            return Verdict("refused", refusal.message.splitlines()[0])
        except BackendError as failure:
            return Verdict("failed", failure.message.splitlines()[0])
        try:
            with HERE.recording("compare"):
                differences = (self._difference(data, tensor) for tensor in problem.form.outputs)
                message = next(filter(None, differences), "")
        except MemoryError as error:  # costs this candidate only: a result that was not compared is not timed
            return Verdict("failed", f"no memory on the host to compare what it writes: {error}".rstrip(": "))
        if message:
            return Verdict("wrong", message)
        data.kernels.pop(kernel.name, None)
        data.kernels[kernel.name] = loaded
        if len(data.kernels) > MAX_LOADED_KERNELS:  # the device frees unreferenced kernels
            del data.kernels[next(iter(data.kernels))]
        if not data.whole:
            self._keep_results(data)
        return Verdict("ok")

    def measure(
        self,
        key: str,
        kernel: KernelFunction | None,
        binary: bytes | None,
        turns: TimingTurns | None,
        new: TuningTask | None = None,
        reference: Reference | None = None,
    ) -> DeviceAnswer:
        """Check a kernel, if given, and then time kernels in turns."""
        with HERE.recording("check"):
            verdict = Verdict("ok") if kernel is None else self.check(key, kernel, binary, new, reference)
        samples: list[tuple[float, ...] | None] = []
        if verdict.outcome != "ok" or turns is None:
            return DeviceAnswer(verdict)
        with HERE.recording("sample"):
            for name in turns.kernels:
                try:
                    samples.append(self.sample(key, name, turns.runs))
                except BackendError as failure:
                    return DeviceAnswer(verdict, tuple(samples), failure.message.splitlines()[0])
                if len(samples) == 1 and (middle_mean(samples[0]) if samples[0] else inf) > turns.most:
                    break
        return DeviceAnswer(verdict, tuple(samples))

    def _load(self, data: _Data, kernel: KernelFunction, binary: bytes | None) -> _Loaded:
        (function,) = self.device.build([kernel], [binary])
        wanted = (a.tensor for a in kernel.arguments if a.table)
        tables = {t: self._upload(np.array(kernel.tables[t], np.int32)) for t in wanted}
        loaded = _Loaded(function, kernel, tables)
        self._launch(data, loaded, 0)
        return loaded

    def _launch(self, data: _Data, loaded: _Loaded, place: int) -> Launch:
        """Return the launch of a kernel at one of the data's placements."""
        if place not in loaded.launches:
            tensors, arguments = data.places[place], loaded.kernel.arguments
            pointers = [loaded.tables[a.tensor] if a.table else tensors[a.tensor] for a in arguments]
            loaded.launches[place] = self.device.bind(loaded.function, loaded.kernel, pointers)
        return loaded.launches[place]

    def sample(self, key: str, kernel: str, repeats: int, warmup: int = 1) -> tuple[float, ...] | None:
        """Return the seconds of each run of a checked kernel, by placements.

        It continues after the last placement used. The result is None where the kernel is not loaded any more.
        """
        data = self._problems.get(key)
        if data is None or kernel not in data.kernels:
            return None
        self._problems.move_to_end(key)
        loaded = data.kernels[kernel] = data.kernels.pop(kernel)
        cold, places = not data.problem.target.warm_caches, len(data.places)
        visited, samples = min(repeats, places), list[float]()
        for number in range(visited):
            place, runs = (loaded.turn + number) % places, (repeats + number) // visited
            launch, warm = self._launch(data, loaded, place), _warm_inputs(data.problem, data.places[place])
            samples += self.device.time(launch, warmup=warmup, repeats=runs, cold=cold, warm=warm).samples
        loaded.turn = (loaded.turn + visited) % places
        return tuple(samples)

    def overhead(self) -> float:
        """Return the seconds that timing adds to a kernel.

        It is the time of an empty kernel as a candidate, less its time within a graph.
        """
        if self.device.target.dialect != "cuda":
            return 0.0
        kernel = empty_kernel()
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [Pointer(self.device.allocate(256))])
        return max(
            0.0, self.device.time(launch, warmup=3, repeats=20, cold=True).typical - self.device.target.launch_time
        )

    # ---- results of a kernel

    def _keep_results(self, data: _Data) -> None:
        for tensor in data.problem.form.outputs:
            data.whole[tensor] = Pointer(self.device.allocate(span(data.problem, tensor)))
            self.device.copy(data.whole[tensor], data.first[tensor], span(data.problem, tensor))

    def _difference(self, data: _Data, tensor: str) -> str:
        return "" if self._matches_reference(data, tensor) else self._compare(data, tensor)

    def _matches_reference(self, data: _Data, tensor: str) -> bool:
        """Return whether the device finds a large output equal to that of the first correct kernel.

        If not, the host compares it in detail.
        """
        covered = elements(data.problem, tensor) // SMALL_BLOCK * SMALL_BLOCK
        dtype = data.problem.form.tensors[tensor].dtype
        if tensor not in data.whole or not covered:
            return False
        comparer = self.comparers.setdefault(dtype, Comparer(self.device, self.device.target, dtype))
        if not comparer.usable:
            return False
        allowed, scale = 2 * group_tolerance(data.problem.form, tensor), data.reference.scales[tensor] or 1.0
        found, wanted = data.first[tensor], data.whole[tensor]
        if comparer.differences(found, wanted, covered, allowed, allowed * scale):
            return False
        tails = [self._read(data, tensor, place, covered) for place in (found, wanted)]
        return not tails[0].size or float(relative_error(tails[0], tails[1], scale).max()) <= allowed

    def _compare(self, data: _Data, tensor: str) -> str:
        """Return the difference of an output from its expected values; empty where rounding explains it."""
        problem, sample = data.problem, data.reference.samples[tensor]
        allowed, scale = group_tolerance(problem.form, tensor), data.reference.scales[tensor]
        got = self._read_sample(data, tensor, sample)
        wrong = relative_error(got, sample.values.astype(host_dtype(problem.form.tensors[tensor].dtype)), scale)
        if wrong.size and float(wrong.max()) > allowed:
            at = int(np.argmax(wrong))
            return f"{tensor}{[int(p[at]) for p in sample.places]} is {got[at]}, expected {sample.values[at]}"
        if tensor in data.whole:
            found, wanted = (self._read(data, tensor, place[tensor]) for place in (data.first, data.whole))
            for start in range(0, len(found), BLOCK):
                part = slice(start, start + BLOCK)
                wrong = relative_error(found[part], wanted[part], scale)
                if float(wrong.max()) > 2 * allowed:
                    at = start + int(np.argmax(wrong))
                    right = f"another kernel, which was checked, makes it {wanted[at]}"
                    return f"{tensor}: element {at} of memory is {found[at]}, {right}"
        return ""

    def _upload(self, array: Array) -> Pointer:
        place = Pointer(self.device.allocate(array.nbytes))
        self.device.upload(place, array)
        return place

    def _read_sample(self, data: _Data, tensor: str, sample: Sample) -> Array:
        """Return an output at the indices of a sample.

        It is transferred part by part, always to the same memory: touching new memory may take many times as long as
        the copy.
        """
        dtype, count = host_dtype(data.problem.form.tensors[tensor].dtype), elements(data.problem, tensor)
        at = addresses(data.problem, tensor, sample.places)
        found = np.empty(len(at), dtype)
        for start in range(0, count, TRANSFER_ELEMENTS):
            inside = np.flatnonzero((at >= start) & (at < start + TRANSFER_ELEMENTS))
            if inside.size:
                part = self._part[: min(TRANSFER_ELEMENTS, count - start) * dtype.itemsize].view(dtype)
                place = data.first[tensor]
                self.device.download(part, Pointer(place.buffer, place.offset + start * dtype.itemsize))
                found[inside] = part[at[inside] - start]
        return found

    def _read(self, data: _Data, tensor: str, place: Pointer, start: int = 0) -> Array:
        dtype = host_dtype(data.problem.form.tensors[tensor].dtype)
        array = np.empty(elements(data.problem, tensor) - start, dtype)
        self.device.download(array, Pointer(place.buffer, place.offset + start * dtype.itemsize))
        return array
