"""Checking and timing candidates on a device: the object that the child process which owns the device hosts, and what it is asked for.

Every kernel of a problem gets the same random data (zeros flatter a GPU), its outputs are filled with a value that no kernel leaves behind,
and what it writes is compared with what it must write before it is timed. Timed runs begin with a cold L2 cache on a GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen
from numpy.lib.stride_tricks import as_strided

from ..backends.ceiling_kernels import empty_kernel
from ..backends.device import Device as Hardware
from ..backends.device import Launch, Pointer, open_device
from ..ir.errors import BackendError
from ..ir.expr import IndexValue, InRange, Read, reads, walk
from ..ir.index import Index, indirects
from ..ir.launch import KernelFunction
from ..ir.segment import FusedGroup, is_contraction, operands
from ..ir.target import Target
from ..ir.types import DType
from ..passes.views import addressed
from .compare import BLOCK, SMALL, Comparer
from .oracle import Sample, error, expected, magnitude, tolerance
from .problem import Problem

Array = npt.NDArray[Any]

#: Bytes of device memory that data of problems may take before the least recently used is dropped.
MEMORY = 8 << 30
#: Kernels of one problem that stay loaded; the least recently used is dropped, and loaded again when it is asked for.
LOADED = 512
#: Random numbers of a tensor repeat after this many: a prime, so that no stride of a tensor meets the same numbers again.
_PERIOD = 4_194_301
#: Sequences of random numbers that are kept; inputs beyond that many begin again with the first.
_KEPT = 6
#: What outputs hold before a kernel runs.
_POISON = {DType.F16: -60000.0, DType.F32: -7.75e29, DType.F64: -7.75e299}


@frozen
class Verdict:
    """Whether a kernel computes what it must: "ok", "wrong" or "failed", with the reason."""

    outcome: str
    message: str = ""


@frozen(eq=False)
class Reference:
    """What outputs must be at some elements, their magnitudes, and whether inputs had to be positive for them to be numbers."""

    samples: Mapping[str, Sample]
    scales: Mapping[str, float]
    positive: bool = False


@define
class _Data:
    """The data of one problem on the device, and the launches of its kernels.

    `blank` holds the outputs as they are before a kernel runs, `whole` as the first right kernel left them. `launches` begins with the
    kernel that was not used for the longest time.
    """

    problem: Problem
    reference: Reference
    places: dict[str, Pointer] = field(factory=dict)
    blank: dict[str, Pointer] = field(factory=dict)
    whole: dict[str, Pointer] = field(factory=dict)
    tables: dict[tuple[str, str], Pointer] = field(factory=dict)
    launches: dict[str, Launch] = field(factory=dict)
    nbytes: int = 0


class Device:
    """Owns a device; problems are known by their key, kernels by their name, which is a digest of their source."""

    def __init__(self, target: Target, memory: int = MEMORY) -> None:
        self.device: Hardware = open_device(target)
        self.memory = memory
        self.comparer = Comparer(self.device, target)
        self._problems: OrderedDict[str, _Data] = OrderedDict()

    def describe(self) -> dict[str, object]:
        """Return what the device says of itself."""
        return self.device.describe()

    def prepare(self, problem: Problem, reference: Reference | None = None) -> None:
        """Make random inputs and upload them; what outputs must be is computed here where it is not given."""
        if problem.key in self._problems:
            self._problems.move_to_end(problem.key)
            return
        reference = reference or make_reference(problem)
        outputs = problem.form.outputs
        nbytes = sum(_span(problem, t) for t in (*problem.form.inputs, *outputs, *outputs, *outputs))
        while self._problems and sum(d.nbytes for d in self._problems.values()) + nbytes > self.memory:
            self._problems.popitem(last=False)
        data = _Data(problem, reference, nbytes=nbytes)
        for tensor, array in _periods(problem, reference.positive).items():
            data.places[tensor] = self._repeated(array, _elements(problem, tensor))
        for tensor in outputs:
            data.blank[tensor] = self._repeated(_poison(problem, tensor), _elements(problem, tensor))
            data.places[tensor] = Pointer(self.device.allocate(_span(problem, tensor)))
        self._problems[problem.key] = data

    def check(self, problem: Problem, kernel: KernelFunction, binary: bytes | None) -> Verdict:
        """Load a kernel, run it once and compare what it writes; the first that is right says what the others must write everywhere."""
        self.prepare(problem)
        data = self._problems[problem.key]
        try:
            (loaded,) = self.device.build([kernel], [binary])
            launch = self.device.bind(loaded, kernel, [self._pointer(data, kernel, a.tensor, a.table) for a in kernel.arguments])
            for tensor, blank in data.blank.items():
                self.device.copy(data.places[tensor], blank, _span(problem, tensor))
            launch()
            self.device.synchronize()
        except BackendError as failure:
            return Verdict("failed", failure.message.splitlines()[0])
        for tensor in problem.form.outputs:
            message = "" if self._alike(data, tensor) else self._compare(data, tensor)
            if message:
                return Verdict("wrong", message)
        data.launches.pop(kernel.name, None)
        data.launches[kernel.name] = launch
        if len(data.launches) > LOADED:
            self._unload(data, next(iter(data.launches)))
        if not data.whole:
            self._keep(data)
        return Verdict("ok")

    def sample(self, problem: Problem, kernel: str, repeats: int, warmup: int = 1) -> tuple[float, ...] | None:
        """Time a checked kernel: seconds of each run; nothing where it is not loaded any more."""
        data = self._problems.get(problem.key)
        if data is None or kernel not in data.launches:
            return None
        self._problems.move_to_end(problem.key)
        launch = data.launches[kernel] = data.launches.pop(kernel)
        return self.device.time(launch, warmup=warmup, repeats=repeats, cold=not problem.target.is_cpu).samples

    def overhead(self) -> float:
        """Return the seconds that timing adds to a kernel: an empty one timed like a candidate, less what it takes within a graph."""
        if self.device.target.dialect != "cuda":
            return 0.0
        kernel = empty_kernel()
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [Pointer(self.device.allocate(256))])
        return max(0.0, self.device.time(launch, warmup=3, repeats=20, cold=True).median - self.device.target.launch_time)

    @staticmethod
    def _unload(data: _Data, kernel: str) -> None:
        """Forget a kernel and its tables; the device frees what nothing refers to."""
        del data.launches[kernel]
        data.tables = {key: place for key, place in data.tables.items() if key[0] != kernel}

    # ---- what a kernel wrote

    def _keep(self, data: _Data) -> None:
        for tensor in data.problem.form.outputs:
            data.whole[tensor] = Pointer(self.device.allocate(_span(data.problem, tensor)))
            self.device.copy(data.whole[tensor], data.places[tensor], _span(data.problem, tensor))

    def _alike(self, data: _Data, tensor: str) -> bool:
        """Whether the device finds a large output equal to what the first right kernel wrote; if not, the host looks closer."""
        covered = _elements(data.problem, tensor) // SMALL * SMALL
        if tensor not in data.whole or not covered or data.problem.form.tensors[tensor].dtype is not DType.F32 or not self.comparer.usable:
            return False
        allowed, scale = 2 * tolerance(data.problem.form, tensor), data.reference.scales[tensor] or 1.0
        found, wanted = data.places[tensor], data.whole[tensor]
        if self.comparer.differences(found, wanted, covered, allowed, allowed * scale):
            return False
        tails = [self._read(data, tensor, place, covered) for place in (found, wanted)]
        return not tails[0].size or float(error(tails[0], tails[1], scale).max()) <= allowed

    def _compare(self, data: _Data, tensor: str) -> str:
        """Return how an output differs from what it must be, nothing where rounding explains the difference."""
        problem, sample = data.problem, data.reference.samples[tensor]
        allowed, scale = tolerance(problem.form, tensor), data.reference.scales[tensor]
        found = self._read(data, tensor, data.places[tensor])
        got = _view(problem, tensor, found)[sample.places]
        wrong = error(got, sample.values.astype(_host(problem.form.tensors[tensor].dtype)), scale)
        if wrong.size and float(wrong.max()) > allowed:
            at = int(np.argmax(wrong))
            return f"{tensor}{[int(p[at]) for p in sample.places]} is {got[at]}, expected {sample.values[at]}"
        if tensor in data.whole:
            wanted = self._read(data, tensor, data.whole[tensor])
            for start in range(0, len(found), BLOCK):
                part = slice(start, start + BLOCK)
                wrong = error(found[part], wanted[part], scale)
                if float(wrong.max()) > 2 * allowed:
                    at = start + int(np.argmax(wrong))
                    return f"{tensor}: element {at} of memory is {found[at]}, another kernel, which was checked, makes it {wanted[at]}"
        return ""

    def _repeated(self, array: Array, count: int) -> Pointer:
        """Upload an array and repeat it on the device until there are `count` elements."""
        total = count * array.itemsize
        buffer = self.device.allocate(total)
        self.device.upload(Pointer(buffer), array)
        for start in range(array.nbytes, total, max(1, array.nbytes)):
            self.device.copy(Pointer(buffer, start), Pointer(buffer), min(array.nbytes, total - start))
        return Pointer(buffer)

    def _upload(self, array: Array) -> Pointer:
        place = Pointer(self.device.allocate(array.nbytes))
        self.device.upload(place, array)
        return place

    def _pointer(self, data: _Data, kernel: KernelFunction, tensor: str, table: bool) -> Pointer:
        if not table:
            return data.places[tensor]
        key = (kernel.name, tensor)
        if key not in data.tables:
            data.tables[key] = self._upload(np.array(kernel.tables[tensor], np.int32))
        return data.tables[key]

    def _read(self, data: _Data, tensor: str, place: Pointer, start: int = 0) -> Array:
        dtype = _host(data.problem.form.tensors[tensor].dtype)
        array = np.empty(_elements(data.problem, tensor) - start, dtype)
        self.device.download(array, Pointer(place.buffer, place.offset + start * dtype.itemsize))
        return array


def make_reference(problem: Problem) -> Reference:
    """Evaluate a group in float64 on its random inputs; on positive ones where the results would be no numbers."""
    for positive in (False, True):
        arrays = {t: _view(problem, t, a) for t, a in random_inputs(problem, positive).items()}
        samples = expected(problem.form, arrays)
        if not _mostly_nan(samples):
            break
    return Reference(samples, {t: magnitude(s.values) for t, s in samples.items()}, positive)


def random_inputs(problem: Problem, positive: bool = False) -> dict[str, Array]:
    """Return the memory of each input, filled with random numbers of a kind that the group can read; always the same ones."""
    return {tensor: np.resize(array, _elements(problem, tensor)) for tensor, array in _periods(problem, positive).items()}


def _periods(problem: Problem, positive: bool) -> dict[str, Array]:
    """Return the numbers of each input up to where they repeat themselves."""
    ranges, scales = index_ranges(problem.form), input_scales(problem.form)
    found = {}
    for number, tensor in enumerate(problem.form.inputs):
        dtype, count = problem.form.tensors[tensor].dtype, min(_elements(problem, tensor), _PERIOD)
        values: Array
        if dtype.is_float:
            values = _normal(number % _KEPT)[:count]
            values = (np.abs(values) + np.float32(0.5) if positive else values) * np.float32(scales.get(tensor, 1.0))
        else:
            high = 2 if dtype is DType.BOOL else ranges.get(tensor, 8)
            values = np.random.default_rng(number).integers(0, high, count)
        found[tensor] = values.astype(dtype.numpy)
    return found


@lru_cache(maxsize=_KEPT)
def _normal(seed: int) -> Array:
    """Return a period of standard normal numbers; every problem begins with the same ones."""
    return np.random.default_rng(seed).standard_normal(_PERIOD, np.float32)


def input_scales(form: FusedGroup) -> dict[str, float]:
    """Return factors for the inputs of contractions that keep sums of products near one.

    A sum of n products of standard normal numbers is of the size of the square root of n, and rounds accordingly. A clip behind it would
    hide that size, and take for a wrong result what is rounding.
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
                found[tensor] = min(found.get(tensor, 1.0), terms ** (-0.5 / len(tensors)))
    return found


def index_ranges(form: FusedGroup) -> dict[str, int]:
    """Return for each tensor that holds indices how many values they may have."""
    found: dict[str, int] = {}
    for index in _indices(form):
        for atom in indirects(index):
            found[atom.tensor] = min(found.get(atom.tensor, atom.extent), atom.extent)
    return found


def _indices(form: FusedGroup) -> Iterator[Index]:
    for segment in form.segments:
        yield from (w for o in segment.outputs for w in o.write)
        for node in (n for body in segment.expressions for n in walk(body)):
            if isinstance(node, Read):
                yield from (*node.indices, *(g.index for g in node.guards))
            elif isinstance(node, IndexValue):
                yield node.index
            elif isinstance(node, InRange):
                yield from (g.index for g in node.guards)


def _mostly_nan(samples: Mapping[str, Sample]) -> bool:
    return any(s.values.dtype.kind == "f" and s.values.size and np.mean(np.isnan(s.values)) > 0.1 for s in samples.values())


def _elements(problem: Problem, tensor: str) -> int:
    type_ = problem.form.tensors[tensor]
    return addressed(problem.storages[tensor], type_) if tensor in problem.storages else type_.size


def _span(problem: Problem, tensor: str) -> int:
    return _elements(problem, tensor) * problem.form.tensors[tensor].dtype.size


def _view(problem: Problem, tensor: str, memory: Array) -> Array:
    """Return the tensor that lives in some memory."""
    type_ = problem.form.tensors[tensor]
    strides = problem.storages[tensor].strides if tensor in problem.storages else type_.strides
    return as_strided(memory, type_.shape, [s * memory.itemsize for s in strides])


def _poison(problem: Problem, tensor: str) -> Array:
    """Return a part of an output as it is before a kernel runs; a kernel that leaves an element out leaves this."""
    dtype, count = problem.form.tensors[tensor].dtype, min(_elements(problem, tensor), _PERIOD)
    if dtype in _POISON:
        return np.full(count, _POISON[dtype], dtype.numpy)
    return np.full(count * dtype.size, 0x5A, np.uint8).view(_host(dtype))


def _host(dtype: DType) -> np.dtype[Any]:
    """Return how an output is read: truth values as bytes, so that what was never written is told from true."""
    return np.dtype(np.uint8) if dtype is DType.BOOL else dtype.numpy
