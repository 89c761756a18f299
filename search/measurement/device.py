"""Device process: checks and times candidates.

Every kernel of a task gets the same random data (zeros flatter a GPU). Its outputs are filled with a value that no
kernel leaves, and its results are compared with the expected ones before it is timed. Timed runs begin with an L2 cache
of a GPU that holds only the inputs which preceding kernels write, where these are small.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Any

import numpy.typing as npt

from ...backends import Device as Hardware
from ...backends import Launch, Pointer, middle_mean, open_device
from ...backends.ceilings import empty_kernel
from ...backends.library import RoutineError
from ...ir import BackendError, KernelFunction, Target
from ..tasks import (
    DeviceNumbers,
    Reference,
    TuningTask,
    make_reference,
    span,
)
from ..trace import HERE
from .result_checks import ResultChecker
from .task_data import LoadedKernel, TaskData, TensorSizes, make_data, warm_inputs
from .verdicts import DeviceAnswer, TimingTurns, Verdict

Array = npt.NDArray[Any]

#: Bytes of device memory for the data of tasks; the least recently used is dropped beyond that.
MAX_DATA_BYTES = 8 << 30
#: Largest number of loaded kernels of a task; the least recently used is dropped, and loaded again on request.
MAX_LOADED_KERNELS = 512


class MeasuringDevice:
    """Owner of a device, which checks and times kernels.

    Tasks are identified by key, since sending one takes a millisecond or two, and kernels by name, a digest of their
    source.
    """

    def __init__(self, target: Target, memory: int = MAX_DATA_BYTES) -> None:
        self.device: Hardware = open_device(target)
        self.memory = memory
        self.checker = ResultChecker(self.device)
        self._problems: OrderedDict[str, TaskData] = OrderedDict()
        self._known: dict[str, TuningTask] = {}
        self.kept = DeviceNumbers(self.device)

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
        sizes = TensorSizes.of(problem)
        while self._problems and sum(d.nbytes for d in self._problems.values()) + sizes.nbytes > self.memory:
            self._problems.popitem(last=False)
        self._problems[problem.key] = make_data(self.device, self.kept, problem, reference, sizes)

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
                differences = (self.checker.difference(data, tensor) for tensor in problem.form.outputs)
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
            self.checker.keep_results(data)
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

    def _load(self, data: TaskData, kernel: KernelFunction, binary: bytes | None) -> LoadedKernel:
        (function,) = self.device.build([kernel], [binary])
        loaded = LoadedKernel(function, kernel)
        self._launch(data, loaded, 0)
        return loaded

    def _launch(self, data: TaskData, loaded: LoadedKernel, place: int) -> Launch:
        """Return the launch of a kernel at one of the data's placements."""
        if place not in loaded.launches:
            pointers = [data.places[place][a.tensor] for a in loaded.kernel.arguments]
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
            launch, warm = self._launch(data, loaded, place), warm_inputs(data.problem, data.places[place])
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

    def _upload(self, array: Array) -> Pointer:
        place = Pointer(self.device.allocate(array.nbytes))
        self.device.upload(place, array)
        return place
