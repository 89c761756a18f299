"""Data of tasks on a device: inputs, outputs, and loaded kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import accumulate, product

from attrs import define, field, frozen

from ...backends import Device, Launch, MemoryPart, Pointer
from ...ir import KernelFunction
from ...numerics import input_numbers
from ..tasks import DeviceNumbers, Reference, TuningTask, elements, poison, span

#: Largest share of the L2 cache that inputs of preceding kernels fill to be in it when a kernel is timed. Lower bounds
#: count them as read from memory: at most two microseconds here, while events around a launch add four, so that no
#: bound exceeds a time because of it.
MAX_WARM_L2_SHARE = 1 / 8
#: Number of memory placements at which a small task is timed (equal to the runs of finalists), the largest size of its
#: data in bytes, and the alignment of tensors: times of kernels of a few microseconds differ by 1 to 1.5 % with the
#: placement of their data.
NUM_PLACEMENTS, MAX_PLACED_BYTES, PLACEMENT_ALIGNMENT = 12, 8 << 20, 512


@define
class LoadedKernel:
    """Kernel on the device with its launches by placement.

    `turn` is the next placement.
    """

    function: object
    kernel: KernelFunction
    launches: dict[int, Launch] = field(factory=dict)
    turn: int = 0


@define
class TaskData:
    """Data of one task on the device, and its kernels.

    Its tensors lie at several `places`, with equal inputs; kernels are checked at the first. `blank` holds the outputs
    before a kernel runs, `whole` those of the first correct kernel. `kernels` is in order of last use.
    """

    problem: TuningTask
    reference: Reference
    places: list[dict[str, Pointer]] = field(factory=lambda: [{}])
    blank: dict[str, Pointer] = field(factory=dict)
    whole: dict[str, Pointer] = field(factory=dict)
    kernels: dict[str, LoadedKernel] = field(factory=dict)
    nbytes: int = 0

    @property
    def first(self) -> dict[str, Pointer]:
        """Placement at which kernels are checked."""
        return self.places[0]


def warm_inputs(problem: TuningTask, places: Mapping[str, Pointer]) -> list[MemoryPart]:
    """Return the inputs in the cache: small ones that preceding kernels write."""
    form = problem.form
    sizes = {t: span(problem, t) for t in form.inputs if t not in form.fixed}
    fits = sum(sizes.values()) <= MAX_WARM_L2_SHARE * problem.target.l2_bytes
    return [(places[tensor], nbytes) for tensor, nbytes in sizes.items() if fits and nbytes]


@frozen
class TensorSizes:
    """Bytes of a task's tensors: `each`, a placement (`once`), and all together.

    There are `more` placements besides the first.
    """

    each: Mapping[str, int]
    once: int
    more: int
    nbytes: int

    @classmethod
    def of(cls, problem: TuningTask) -> TensorSizes:
        """Return the sizes of a task, aligned."""
        outputs = problem.form.outputs
        each = {
            t: -(-span(problem, t) // PLACEMENT_ALIGNMENT) * PLACEMENT_ALIGNMENT
            for t in (*problem.form.inputs, *outputs)
        }
        once = sum(each.values())
        more = 0 if problem.target.warm_caches or once > MAX_PLACED_BYTES else NUM_PLACEMENTS - 1
        return cls(each, once, more, once * (1 + more) + 2 * sum(span(problem, t) for t in outputs))


def make_data(
    device: Device, kept: DeviceNumbers, problem: TuningTask, reference: Reference, sizes: TensorSizes
) -> TaskData:
    """Make and upload a task's random inputs, at each placement."""
    data = TaskData(problem, reference, nbytes=sizes.nbytes)
    for tensor, numbers in input_numbers(problem.form, reference.positive).items():
        data.first[tensor] = kept.fill(numbers, numbers.dtype, elements(problem, tensor), numbers.values)
    for tensor in problem.form.outputs:
        dtype = problem.form.tensors[tensor].dtype
        data.blank[tensor] = kept.fill(dtype, dtype, elements(problem, tensor), partial(poison, dtype))
        data.first[tensor] = Pointer(device.allocate(span(problem, tensor)))
    if sizes.more:
        block = device.allocate(sizes.more * sizes.once)
        starts = dict(zip(sizes.each, accumulate(sizes.each.values(), initial=0), strict=False))
        data.places += [{t: Pointer(block, n * sizes.once + starts[t]) for t in starts} for n in range(sizes.more)]
        for places, tensor in product(data.places[1:], problem.form.inputs):
            device.copy(places[tensor], data.first[tensor], span(problem, tensor))
    return data
