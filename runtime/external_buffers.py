"""Execution of a plan over external buffers of another library.

Inputs are read and outputs are written where they lie. Memory comes in blocks. The first holds constants and tables,
the second the intermediates. Each large constant has a block, which plans of equal constants share; so has each input
and each buffer of outputs, with addresses given by each run. Inputs that are *held*, as a model holds its parameters,
rarely move; addresses that move are set in the recorded launches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from threading import Lock

import numpy as np
from attrs import evolve, frozen

from ..backends import BlockAddress, Copy, KernelCall, SequenceLauncher, SequencePlan
from ..backends.library import DIALECT
from ..ir import DType
from .concurrent_launches import WHOLE_RUN, concurrent_lifetimes
from .constant_images import ConstantImages, Share
from .fallback_kernels import use_fallback_kernels
from .hazards import MAX_CONCURRENT_LAUNCHES, LaunchDependencies, launch_dependencies
from .l2_policy import evict_first_tensors
from .memory import Lifetime, align_bytes, place_buffers
from .plan import BufferKey, Plan, lifetimes_of

CONSTANTS, SCRATCH = 0, 1

#: Returns the address of so many zeroed bytes, which the allocator keeps alive.
Allocate = Callable[[int], int]


@frozen
class OutputView:
    """View of an output in a block.

    It begins `offset` elements from the start of the block, with these strides. `owned` outputs have a block made for
    them; the others are views of inputs, of constants or of an earlier output, and must be copied, as their receiver
    may write to them.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    block: int
    offset: int
    strides: tuple[int, ...]
    owned: bool


@frozen
class ExternalLayout:
    """Plan over external buffers: launches over blocks, and all places.

    `shared` are the buffers of constants with a block each; their blocks come before those of the inputs `held` and
    `moving` and of the outputs.
    """

    chain: SequencePlan
    held: tuple[str, ...]
    moving: tuple[str, ...]
    outlets: tuple[OutputView, ...]
    places: Mapping[BufferKey, BlockAddress]
    shared: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each block."""
        return self.chain.blocks

    @property
    def fresh(self) -> tuple[int, ...]:
        """Numbers of the output blocks, which each run allocates."""
        return tuple(range(2 + len(self.shared) + len(self.held) + len(self.moving), len(self.chain.blocks)))


def layout_of(plan: Plan, held: Collection[str] = (), shared: Sequence[str] = ()) -> ExternalLayout:
    """Return a plan's layout over external buffers.

    `held` are inputs that rarely move, `shared` buffers of constants.
    """
    buffers = {name: plan.storages[name].buffer for name in (*plan.inputs, *plan.outputs)}
    kept = {plan.storages[name].buffer for name in plan.constants}
    stays = tuple(name for name in plan.inputs if name in held)
    moves = tuple(name for name in plan.inputs if name not in held)
    outside = dict.fromkeys(buffers[name] for name in (*stays, *moves, *plan.outputs))
    first = 2 + len(shared)
    blocks = {buffer: number for number, buffer in enumerate((b for b in outside if b not in kept), first)}
    staged = _staged_buffers(plan, {b for b in blocks if b not in {buffers[name] for name in stays}})
    waits = (
        launch_dependencies(plan, separate_buffers=True)
        if plan.branched and plan.launch_count <= MAX_CONCURRENT_LAUNCHES
        else None
    )
    outer = blocks | {buffer: number for number, buffer in enumerate(shared, 2)}
    places, sizes = _place_inside(plan, kept, outer, staged, waits)
    before = [_copy(plan, blocks, places, buffers[name], inwards=True) for name in moves if buffers[name] in staged]
    written = {b for b in blocks if b not in {buffers[name] for name in plan.inputs}}
    after = [_copy(plan, blocks, places, b, inwards=False) for b in blocks if b in staged and b in written]
    nbytes = (*sizes, *(plan.buffers[b].nbytes for b in (*shared, *blocks)))
    fixed = first + len(stays)
    chain = SequencePlan(
        nbytes, fixed, _calls(plan, places), tuple(plan.launches()), tuple(before), tuple(after),
        waits.direct if waits else None,
    )  # fmt: skip
    outlets = tuple(_outlets(plan, blocks, places, written))
    return ExternalLayout(chain, stays, moves, outlets, places, tuple(shared))


def _staged_buffers(plan: Plan, moving: Collection[str]) -> set[str]:
    """Return the buffers with an internal place beside the caller's, copied between the two: those that library
    routines touch, which are bound once, and inputs that are written to.
    """
    given = {plan.storages[name].buffer for name in plan.inputs}
    found = set()
    for step in plan.steps:
        kernel = plan.kernels[step.kernel]
        for argument, tensor in zip(kernel.arguments, step.tensors, strict=True):
            buffer = "" if argument.table else plan.storages[tensor].buffer
            if buffer in moving and (kernel.dialect == DIALECT or (argument.written and buffer in given)):
                found.add(buffer)
    return found


def _place_inside(
    plan: Plan,
    kept: Collection[str],
    blocks: Mapping[str, int],
    staged: Collection[str],
    waits: LaunchDependencies | None,
) -> tuple[dict[BufferKey, BlockAddress], tuple[int, int]]:
    """Place constants and tables one after another, and share the scratch block among the intermediates; with
    concurrent launches, so that they get no further dependencies.
    """
    sizes = {("tensor", 0, buffer): place.nbytes for buffer, place in plan.buffers.items()}
    sizes |= {("table", n, table): place.nbytes for n, each in enumerate(plan.tables) for table, place in each.items()}
    places: dict[BufferKey, BlockAddress] = {}
    end = 0
    scratch: dict[BufferKey, int] = {}
    for key, nbytes in sizes.items():
        kind, _, name = key
        if kind == "tensor" and name in blocks and name not in staged:
            places[key] = BlockAddress(blocks[name])
        elif kind == "table" or name in kept:
            places[key] = BlockAddress(CONSTANTS, end)
            end += align_bytes(nbytes)
        else:
            scratch[key] = nbytes
    whole = {("tensor", 0, buffer) for buffer in staged}
    if waits is None:
        lifetimes = lifetimes_of(plan, plan.inputs, plan.outputs, plan.constants, plan.storages)
        inside, total = place_buffers(scratch, lifetimes | dict.fromkeys(whole, Lifetime(-1, len(plan.steps))))
    else:
        inside, total = place_buffers(scratch, concurrent_lifetimes(plan, waits) | dict.fromkeys(whole, WHOLE_RUN))
    places |= {key: BlockAddress(SCRATCH, placement.offset) for key, placement in inside.items()}
    return places, (end, total)


def _copy(
    plan: Plan, blocks: Mapping[str, int], places: Mapping[BufferKey, BlockAddress], buffer: str, inwards: bool
) -> Copy:
    ours, theirs = places["tensor", 0, buffer], BlockAddress(blocks[buffer])
    nbytes = plan.buffers[buffer].nbytes
    return Copy(theirs, ours, nbytes) if inwards else Copy(ours, theirs, nbytes)


def _calls(plan: Plan, places: Mapping[BufferKey, BlockAddress]) -> tuple[KernelCall, ...]:
    def place(step: int, argument: int, turn: int) -> BlockAddress:
        number, tensor = plan.steps[step].kernel, plan.steps[step].tensors[argument]
        if plan.kernels[number].arguments[argument].table:
            return places["table", number, tensor]
        storage = plan.storages[tensor]
        start = places["tensor", 0, storage.buffer]
        return evolve(start, offset=start.offset + storage.start(turn) * plan.types[tensor].dtype.size)

    passing = evict_first_tensors(plan)
    return tuple(
        KernelCall(
            step.kernel,
            tuple(tuple(place(n, a, turn) for a in range(len(step.tensors))) for turn in range(plan.turns(n))),
            (step.tensors.index(passing[n][0]), passing[n][1]) if n in passing else None,
        )
        for n, step in enumerate(plan.steps)
    )


def _outlets(
    plan: Plan, blocks: Mapping[str, int], places: Mapping[BufferKey, BlockAddress], written: Collection[str]
) -> Iterator[OutputView]:
    taken: set[str] = set()
    for name in plan.outputs:
        storage, type_ = plan.storages[name], plan.types[name]
        start = (
            BlockAddress(blocks[storage.buffer]) if storage.buffer in blocks else places["tensor", 0, storage.buffer]
        )
        owned = storage.buffer in written and storage.buffer not in taken
        taken.add(storage.buffer)
        offset = start.offset // type_.dtype.size + storage.start()
        yield OutputView(name, type_.dtype, type_.shape, start.block, offset, storage.strides, owned)


class ExternalSession:
    """Plan opened over external buffers.

    Any thread may launch it; one launch waits for another.

    With `share`, sessions of equal large constants read one copy of each on the device.
    """

    def __init__(
        self,
        plan: Plan,
        chains: SequenceLauncher,
        held: Collection[str],
        allocate: Allocate,
        share: Share | None = None,
        images: ConstantImages | None = None,
    ) -> None:
        self.plan = plan = use_fallback_kernels(plan)
        self.chains = chains
        images = images or ConstantImages.of_plan(plan)
        self.layout = layout_of(plan, held, images.large if share else ())
        self.waits = chains.is_blocking
        self.constants, self.scratch = (allocate(self.layout.chain.blocks[n]) for n in (CONSTANTS, SCRATCH))
        self._shared = tuple(self._place(share, images, buffer) for buffer in self.layout.shared if share)
        self._chain = chains.load(self.layout.chain, plan.kernels, plan.binaries)
        self._lock = Lock()
        self._upload(images)

    def fixed_addresses(self, held: Sequence[int], scratch: int | None = None) -> tuple[int, ...]:
        """Return the addresses of blocks that rarely move.

        Held inputs are at the addresses `held`.
        """
        return (self.constants, self.scratch if scratch is None else scratch, *self._shared, *held)

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch on a stream.

        The other inputs, and then blocks of outputs, are at the addresses `moving`.
        """
        with self._lock:
            self._chain.launch(fixed, moving, stream)

    def launch_captured(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch on a stream under capture.

        `fixed` has a scratch block that no other launch uses.
        """
        with self._lock:
            self._chain.launch_individually(fixed, moving, stream)

    def _place(self, share: Share, images: ConstantImages, buffer: str) -> int:
        """Return the address of a constant, uploaded where no other session has it on the device."""

        def fill(address: int) -> None:
            self.chains.upload(address, images.image(buffer))
            self.chains.settle()

        return share(images.digest(buffer), self.plan.buffers[buffer].nbytes, fill)

    def _upload(self, images: ConstantImages) -> None:
        for buffer in images.buffers:
            if buffer not in self.layout.shared:
                self.chains.upload(self._address("tensor", 0, buffer), images.image(buffer))
        for number, kernel in enumerate(self.plan.kernels):
            for table, values in kernel.tables.items():
                self.chains.upload(self._address("table", number, table), np.array(values, np.int32))
        self.chains.settle()

    def _address(self, *key: object) -> int:
        return self.constants + self.layout.places[key].offset  # type: ignore[index]
