"""Checking and timing candidates on a device: the object that the child process which owns the device hosts, and what
it is asked for.

Every kernel of a problem gets the same random data (zeros flatter a GPU), its outputs are filled with a value that no
kernel leaves behind, and what it writes is compared with what it must write before it is timed. Timed runs begin on a
GPU with an L2 cache that has nothing but the inputs which other kernels leave, where these are small.
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

from ..backends import Device as Hardware
from ..backends import Launch, MemoryPart, Pointer, open_device, trimmed_mean
from ..backends.cuda import empty_kernel
from ..backends.library import RoutineError
from ..ir import BackendError, DType, KernelFunction, Target, relative_error
from .compare import BLOCK, SMALL, Comparer
from .course import HERE
from .data import KeptNumbers, Reference, addresses, elements, host_dtype, make_reference, numbers_of, poison, span
from .oracle import Sample, allowed_error
from .problem import Problem

Array = npt.NDArray[Any]

#: Bytes of device memory that data of problems may take before the least recently used is dropped.
MEMORY = 8 << 30
#: Kernels of one problem that stay loaded; the least recently used is dropped, and loaded again when it is asked for.
LOADED = 512
#: Elements of an output that come to the host at once, of 8 bytes at most.
PART = 1 << 21
#: Part of the L2 cache that inputs which other kernels leave fill at most to be in it when a kernel is timed. Bounds
#: count them as read from memory: that is two microseconds at most here, and events around a launch add four, so that
#: no bound comes above a time because of it.
LEFT = 1 / 8
#: Places that the data of a small problem is timed at (as many as finalists have runs), the bytes of its data at most,
#: and what tensors are aligned to there: how two kernels of a few microseconds compare depends by 1 to 1.5 % on where
#: their data lies (`bench/placements.py`).
PLACES, PLACED, ALIGNED = 12, 8 << 20, 512


@frozen
class Verdict:
    """Whether a kernel computes what it must: "ok", "wrong", "failed", or "refused" by a library that has no routine,
    with the reason.
    """

    outcome: str
    message: str = ""


@frozen
class TimingTurns:
    """Kernels of a problem, by their names, that are timed one after another, each for so many `runs`; none behind the
    first where that takes more than `most` seconds.
    """

    kernels: tuple[str, ...]
    runs: int
    most: float = inf


@frozen
class DeviceAnswer:
    """What became of a candidate, and the seconds of each run of those that were timed, in order: nothing for one that
    is not loaded. Where one fails it is the last, and the reason is the `failure`.
    """

    verdict: Verdict
    samples: tuple[tuple[float, ...] | None, ...] = ()
    failure: str = ""


@define
class _Loaded:
    """A kernel on the device with its tables, what launches it at the places of the problem's data that it ran at, and
    at which it is timed next.
    """

    function: object
    kernel: KernelFunction
    tables: Mapping[str, Pointer]
    launches: dict[int, Launch] = field(factory=dict)
    turn: int = 0


@define
class _Data:
    """The data of one problem on the device, and its kernels.

    Its tensors lie at several `places`, inputs with equal numbers; kernels are checked at the first. `blank` holds the
    outputs as they are before a kernel runs, `whole` as the first right kernel left them. `kernels` begins with the one
    that was not used for the longest time.
    """

    problem: Problem
    reference: Reference
    places: list[dict[str, Pointer]] = field(factory=lambda: [{}])
    blank: dict[str, Pointer] = field(factory=dict)
    whole: dict[str, Pointer] = field(factory=dict)
    kernels: dict[str, _Loaded] = field(factory=dict)
    nbytes: int = 0

    @property
    def first(self) -> dict[str, Pointer]:
        """Where kernels are checked."""
        return self.places[0]


def _left_in_cache(problem: Problem, places: Mapping[str, Pointer]) -> list[MemoryPart]:
    """Return the inputs that the kernels in front leave in the cache, which a cold one would be charged for: what is
    not fixed, where that is little.
    """
    form = problem.form
    sizes = {t: span(problem, t) for t in form.inputs if t not in form.fixed}
    fits = sum(sizes.values()) <= LEFT * problem.target.l2_bytes
    return [(places[tensor], nbytes) for tensor, nbytes in sizes.items() if fits and nbytes]


class MeasuringDevice:
    """Owns a device; problems are known by their key, as to carry one here takes a millisecond or two, kernels by their
    name, which is a digest of their source.
    """

    def __init__(self, target: Target, memory: int = MEMORY) -> None:
        self.device: Hardware = open_device(target)
        self.memory = memory
        self.comparers: dict[DType, Comparer] = {}
        self._problems: OrderedDict[str, _Data] = OrderedDict()
        self._known: dict[str, Problem] = {}
        self.kept = KeptNumbers(self.device)
        self._part = np.empty(PART * 8, np.uint8)

    def describe(self) -> dict[str, object]:
        """Return what the device says of itself."""
        return self.device.describe()

    def prepare(self, problem: Problem, reference: Reference | None = None) -> None:
        """Make random inputs and upload them; what outputs must be is computed here where it is not given."""
        self._known[problem.key] = problem
        if problem.key in self._problems:
            self._problems.move_to_end(problem.key)
            return
        reference = reference or make_reference(problem)
        outputs = problem.form.outputs
        sizes = {t: -(-span(problem, t) // ALIGNED) * ALIGNED for t in (*problem.form.inputs, *outputs)}
        once = sum(sizes.values())
        more = 0 if problem.target.warm_caches or once > PLACED else PLACES - 1
        nbytes = once * (1 + more) + 2 * sum(span(problem, t) for t in outputs)
        while self._problems and sum(d.nbytes for d in self._problems.values()) + nbytes > self.memory:
            self._problems.popitem(last=False)
        data = _Data(problem, reference, nbytes=nbytes)
        for tensor, numbers in numbers_of(problem, reference.positive).items():
            data.first[tensor] = self.kept.filled(numbers, numbers.dtype, elements(problem, tensor), numbers.values)
        for tensor in outputs:
            dtype = problem.form.tensors[tensor].dtype
            data.blank[tensor] = self.kept.filled(dtype, dtype, elements(problem, tensor), partial(poison, dtype))
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
        new: Problem | None = None,
        reference: Reference | None = None,
    ) -> Verdict:
        """Load a kernel of a problem, which is prepared if it is `new`, run it once and compare what it writes; the
        first that is right says what the others must write everywhere.
        """
        problem = new or self._known[key]
        with HERE.noting("prepare"):
            self.prepare(problem, reference)
        data = self._problems[problem.key]
        try:
            with HERE.noting("load"):
                loaded = self._loaded(data, kernel, binary)
            for tensor, blank in data.blank.items():
                self.device.copy(data.first[tensor], blank, span(problem, tensor))
            loaded.launches[0]()
            self.device.synchronize()
        except RoutineError as refusal:  # nothing was launched, so the context is sound
            return Verdict("refused", refusal.message.splitlines()[0])
        except BackendError as failure:
            return Verdict("failed", failure.message.splitlines()[0])
        try:
            with HERE.noting("compare"):
                differences = (self._difference(data, tensor) for tensor in problem.form.outputs)
                message = next(filter(None, differences), "")
        except MemoryError as error:  # which costs this candidate: what was not compared is not timed
            return Verdict("failed", f"no memory on the host to compare what it writes: {error}".rstrip(": "))
        if message:
            return Verdict("wrong", message)
        data.kernels.pop(kernel.name, None)
        data.kernels[kernel.name] = loaded
        if len(data.kernels) > LOADED:  # the device frees what nothing refers to
            del data.kernels[next(iter(data.kernels))]
        if not data.whole:
            self._keep(data)
        return Verdict("ok")

    def measure(
        self,
        key: str,
        kernel: KernelFunction | None,
        binary: bytes | None,
        turns: TimingTurns | None,
        new: Problem | None = None,
        reference: Reference | None = None,
    ) -> DeviceAnswer:
        """Check a kernel, if there is one, and if it is right, time kernels in turns."""
        with HERE.noting("check"):
            verdict = Verdict("ok") if kernel is None else self.check(key, kernel, binary, new, reference)
        samples: list[tuple[float, ...] | None] = []
        if verdict.outcome != "ok" or turns is None:
            return DeviceAnswer(verdict)
        with HERE.noting("sample"):
            for name in turns.kernels:
                try:
                    samples.append(self.sample(key, name, turns.runs))
                except BackendError as failure:
                    return DeviceAnswer(verdict, tuple(samples), failure.message.splitlines()[0])
                if len(samples) == 1 and (trimmed_mean(samples[0]) if samples[0] else inf) > turns.most:
                    break
        return DeviceAnswer(verdict, tuple(samples))

    def _loaded(self, data: _Data, kernel: KernelFunction, binary: bytes | None) -> _Loaded:
        (function,) = self.device.build([kernel], [binary])
        wanted = (a.tensor for a in kernel.arguments if a.table)
        tables = {t: self._upload(np.array(kernel.tables[t], np.int32)) for t in wanted}
        loaded = _Loaded(function, kernel, tables)
        self._launch(data, loaded, 0)
        return loaded

    def _launch(self, data: _Data, loaded: _Loaded, place: int) -> Launch:
        """Return what launches a kernel at one of the data's places."""
        if place not in loaded.launches:
            tensors, arguments = data.places[place], loaded.kernel.arguments
            pointers = [loaded.tables[a.tensor] if a.table else tensors[a.tensor] for a in arguments]
            loaded.launches[place] = self.device.bind(loaded.function, loaded.kernel, pointers)
        return loaded.launches[place]

    def sample(self, key: str, kernel: str, repeats: int, warmup: int = 1) -> tuple[float, ...] | None:
        """Time a checked kernel of a problem: seconds of each run, at one place of the data after another, beginning
        behind those of the last time; nothing where it is not loaded any more.
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
            launch, warm = self._launch(data, loaded, place), _left_in_cache(data.problem, data.places[place])
            samples += self.device.time(launch, warmup=warmup, repeats=runs, cold=cold, warm=warm).samples
        loaded.turn = (loaded.turn + visited) % places
        return tuple(samples)

    def overhead(self) -> float:
        """Return the seconds that timing adds to a kernel: an empty one timed like a candidate, less what it takes
        within a graph.
        """
        if self.device.target.dialect != "cuda":
            return 0.0
        kernel = empty_kernel()
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [Pointer(self.device.allocate(256))])
        return max(
            0.0, self.device.time(launch, warmup=3, repeats=20, cold=True).typical - self.device.target.launch_time
        )

    # ---- what a kernel wrote

    def _keep(self, data: _Data) -> None:
        for tensor in data.problem.form.outputs:
            data.whole[tensor] = Pointer(self.device.allocate(span(data.problem, tensor)))
            self.device.copy(data.whole[tensor], data.first[tensor], span(data.problem, tensor))

    def _difference(self, data: _Data, tensor: str) -> str:
        return "" if self._alike(data, tensor) else self._compare(data, tensor)

    def _alike(self, data: _Data, tensor: str) -> bool:
        """Whether the device finds a large output equal to what the first right kernel wrote; if not, the host looks
        closer.
        """
        covered = elements(data.problem, tensor) // SMALL * SMALL
        dtype = data.problem.form.tensors[tensor].dtype
        if tensor not in data.whole or not covered:
            return False
        comparer = self.comparers.setdefault(dtype, Comparer(self.device, self.device.target, dtype))
        if not comparer.usable:
            return False
        allowed, scale = 2 * allowed_error(data.problem.form, tensor), data.reference.scales[tensor] or 1.0
        found, wanted = data.first[tensor], data.whole[tensor]
        if comparer.differences(found, wanted, covered, allowed, allowed * scale):
            return False
        tails = [self._read(data, tensor, place, covered) for place in (found, wanted)]
        return not tails[0].size or float(relative_error(tails[0], tails[1], scale).max()) <= allowed

    def _compare(self, data: _Data, tensor: str) -> str:
        """Return how an output differs from what it must be, nothing where rounding explains the difference."""
        problem, sample = data.problem, data.reference.samples[tensor]
        allowed, scale = allowed_error(problem.form, tensor), data.reference.scales[tensor]
        got = self._sampled(data, tensor, sample)
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

    def _sampled(self, data: _Data, tensor: str, sample: Sample) -> Array:
        """Return an output at the places of a sample.

        It comes to the host part by part, always to the same memory: to touch new memory may take many times as long as
        the copy.
        """
        dtype, count = host_dtype(data.problem.form.tensors[tensor].dtype), elements(data.problem, tensor)
        at = addresses(data.problem, tensor, sample.places)
        found = np.empty(len(at), dtype)
        for start in range(0, count, PART):
            inside = np.flatnonzero((at >= start) & (at < start + PART))
            if inside.size:
                part = self._part[: min(PART, count - start) * dtype.itemsize].view(dtype)
                place = data.first[tensor]
                self.device.download(part, Pointer(place.buffer, place.offset + start * dtype.itemsize))
                found[inside] = part[at[inside] - start]
        return found

    def _read(self, data: _Data, tensor: str, place: Pointer, start: int = 0) -> Array:
        dtype = host_dtype(data.problem.form.tensors[tensor].dtype)
        array = np.empty(elements(data.problem, tensor) - start, dtype)
        self.device.download(array, Pointer(place.buffer, place.offset + start * dtype.itemsize))
        return array
