"""Plans placed over blocks of memory, with their launch sequences.

An arena is one block, and each buffer has its place of the plan in it. Over external buffers, inputs are read and
outputs are written where they lie: the first block holds constants and tables, the second the intermediates. Each large
constant has a block, which plans of equal constants share; so has each input and each buffer of outputs, with addresses
given by each run. Inputs that are *held*, as a model holds its parameters, rarely move; addresses that move are set in
the recorded launches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from attrs import evolve, frozen

from ...backends import Array, BlockAddress, Copy, KernelCall, SequencePlan
from ...backends.library import DIALECT
from ...ir import DType
from ..memory import Lifetime, align_bytes, place_buffers
from ..plan import Plan, lifetimes_of
from .concurrent_launches import WHOLE_RUN, concurrent_lifetimes
from .constant_images import ConstantImages
from .hazards import MAX_CONCURRENT_LAUNCHES, LaunchDependencies, launch_dependencies
from .l2_policy import evict_first_tensors

CONSTANTS, SCRATCH = 0, 1


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
class PlacedPlan:
    """Plan over blocks: its launch sequence, and all places.

    `shared` are the buffers of constants with a block each; their blocks come before those of the inputs `held` and
    `moving` and of the outputs. The last blocks are those of `temporary` intermediates, several in each.
    """

    plan: Plan
    sequence: SequencePlan
    places: Mapping[str, BlockAddress]
    held: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()
    output_views: tuple[OutputView, ...] = ()
    shared: tuple[str, ...] = ()
    temporary: tuple[tuple[str, ...], ...] = ()

    @property
    def in_place(self) -> Mapping[str, str]:
        """The outputs that are written where an input lies, by input."""
        return self.plan.in_place

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each block."""
        return self.sequence.blocks

    @property
    def fresh(self) -> tuple[int, ...]:
        """Numbers of blocks that runs allocate: outputs, then intermediates."""
        return tuple(range(2 + len(self.shared) + len(self.held) + len(self.moving), len(self.sizes)))

    def upload(self, images: ConstantImages, write: Callable[[BlockAddress, Array], None]) -> None:
        """Write constants without a block of their own."""
        for buffer in images.buffers:
            if buffer not in self.shared:
                write(self.places[buffer], images.image(buffer))


def place_in_arena(plan: Plan) -> PlacedPlan:
    """Return a plan over an arena, at the plan's own places."""
    places = {name: BlockAddress(0, place.offset) for name, place in plan.buffers.items()}
    return PlacedPlan(plan, _sequence(plan, places, (plan.arena,), 1, _dependencies(plan)), places)


def place_over_blocks(
    plan: Plan,
    held: Collection[str] = (),
    shared: Sequence[str] = (),
    bound_once: bool = True,
    inside: tuple[Collection[str], Collection[str]] = ((), ()),
    temporary: Sequence[Sequence[str]] = (),
) -> PlacedPlan:
    """Return a plan over external buffers.

    `held` are inputs that rarely move, `shared` buffers of constants; each list of `temporary` intermediates has a
    block. Library routines that are `bound_once` touch copies of buffers that move. Inputs and outputs `inside` get no
    block; the caller copies them. An output in place of an input lies in the input's block.
    """
    buffers = {name: plan.storages[name].buffer for name in (*plan.inputs, *plan.outputs)}
    kept = {plan.storages[name].buffer for name in plan.constants}
    held_inputs = tuple(name for name in plan.inputs if name in held and name not in inside[0])
    moving_inputs = tuple(name for name in plan.inputs if name not in held and name not in inside[0])
    given_outputs = [name for name in plan.outputs if name not in inside[1]]
    outside = dict.fromkeys(buffers[name] for name in (*held_inputs, *moving_inputs, *given_outputs))
    first = 2 + len(shared)
    blocks = {buffer: number for number, buffer in enumerate((b for b in outside if b not in kept), first)}
    moving = {b for b in blocks if b not in {buffers[name] for name in held_inputs}}
    staged = _staged_buffers(plan, moving, bound_once)
    waits = _dependencies(plan, separate_buffers=True)
    outer = blocks | {buffer: number for number, buffer in enumerate(shared, 2)}
    own = {name: number for number, names in enumerate(temporary, first + len(blocks)) for name in names}
    places, sizes = _place_inside(plan, kept, outer, staged, own, waits)
    copied = [buffers[name] for name in moving_inputs if buffers[name] in staged]
    before = [_copy(plan, blocks, places, buffer, inwards=True) for buffer in copied]
    written = {b for b in blocks if b not in {buffers[name] for name in plan.inputs}}
    changed = written | {buffers[name] for name in plan.in_place}
    after = [_copy(plan, blocks, places, b, inwards=False) for b in blocks if b in staged and b in changed]
    known = (plan.buffers[b].nbytes for b in (*shared, *blocks))
    nbytes = (*sizes[:2], *known, *sizes[2:])
    launched = _sequence(plan, places, nbytes, first + len(held_inputs), waits)
    sequence = evolve(launched, before=tuple(before), after=tuple(after))
    views = tuple(_output_views(plan, blocks, places, written))
    return PlacedPlan(
        plan, sequence, places, held_inputs, moving_inputs, views, tuple(shared), tuple(map(tuple, temporary))
    )


def _dependencies(plan: Plan, separate_buffers: bool = False) -> LaunchDependencies | None:
    """Return the dependencies of a plan with concurrent launches, where these are few enough."""
    branched = plan.branched and plan.launch_count <= MAX_CONCURRENT_LAUNCHES
    return launch_dependencies(plan, separate_buffers=separate_buffers) if branched else None


def _staged_buffers(plan: Plan, moving: Collection[str], bound_once: bool) -> set[str]:
    """Return the buffers with an internal place beside the caller's, copied between the two: those that library
    routines touch, which are bound once, and inputs that are written to but not updated in place.
    """
    given = {plan.storages[name].buffer for name in {*plan.inputs} - plan.in_place.keys()}
    found = set()
    for step in plan.steps:
        kernel = plan.kernels[step.kernel]
        for argument, tensor in zip(kernel.arguments, step.tensors, strict=True):
            buffer = plan.storages[tensor].buffer
            fixed = bound_once and kernel.dialect == DIALECT
            if buffer in moving and (fixed or (argument.written and buffer in given)):
                found.add(buffer)
    return found


def _place_inside(
    plan: Plan,
    kept: Collection[str],
    blocks: Mapping[str, int],
    staged: Collection[str],
    own: Mapping[str, int],
    waits: LaunchDependencies | None,
) -> tuple[dict[str, BlockAddress], tuple[int, ...]]:
    """Return places inside, and the bytes of constants, of scratch memory and of the blocks `own` to intermediates.

    Constants lie one after another. Intermediates share memory, with concurrent launches so that these get no further
    dependencies.
    """
    places: dict[str, BlockAddress] = {}
    end = 0
    inside: dict[int, dict[str, int]] = {number: {} for number in (SCRATCH, *own.values())}
    for name, place in plan.buffers.items():
        if name in blocks and name not in staged:
            places[name] = BlockAddress(blocks[name])
        elif name in kept:
            places[name] = BlockAddress(CONSTANTS, end)
            end += align_bytes(place.nbytes)
        else:
            inside[own.get(name, SCRATCH)][name] = place.nbytes
    if waits is None:
        whole = dict.fromkeys(staged, Lifetime(-1, len(plan.steps)))
        lifetimes = lifetimes_of(plan, plan.inputs, plan.outputs, plan.constants, plan.storages) | whole
        place_all = partial(place_buffers, lifetimes=lifetimes)
    else:
        concurrent = concurrent_lifetimes(plan, waits) | dict.fromkeys(staged, WHOLE_RUN)
        place_all = partial(place_buffers, lifetimes=concurrent)
    sizes = [end]
    for number, held in inside.items():
        found, total = place_all(held)
        places |= {key: BlockAddress(number, placement.offset) for key, placement in found.items()}
        sizes.append(total)
    return places, tuple(sizes)


def _copy(
    plan: Plan, blocks: Mapping[str, int], places: Mapping[str, BlockAddress], buffer: str, inwards: bool
) -> Copy:
    ours, theirs = places[buffer], BlockAddress(blocks[buffer])
    nbytes = plan.buffers[buffer].nbytes
    return Copy(theirs, ours, nbytes) if inwards else Copy(ours, theirs, nbytes)


def tensor_address(plan: Plan, places: Mapping[str, BlockAddress], tensor: str, iteration: int = 0) -> BlockAddress:
    """Return the address of a tensor's first element in an iteration."""
    storage = plan.storages[tensor]
    start = places[storage.buffer]
    return BlockAddress(start.block, start.offset + storage.start(iteration) * plan.types[tensor].dtype.size)


def _sequence(
    plan: Plan,
    places: Mapping[str, BlockAddress],
    blocks: tuple[int, ...],
    fixed: int,
    waits: LaunchDependencies | None,
) -> SequencePlan:
    """Return the launch sequence of a plan over blocks; the first `fixed` seldom move."""

    def place(step: int, argument: int, iteration: int) -> BlockAddress:
        return tensor_address(plan, places, plan.steps[step].tensors[argument], iteration)

    evict_first = evict_first_tensors(plan)
    calls = tuple(
        KernelCall(
            step.kernel,
            tuple(
                tuple(place(n, a, iteration) for a in range(len(step.tensors))) for iteration in range(plan.turns(n))
            ),
            (step.tensors.index(evict_first[n][0]), evict_first[n][1]) if n in evict_first else None,
        )
        for n, step in enumerate(plan.steps)
    )
    return SequencePlan(blocks, fixed, calls, tuple(plan.launches()), waits=waits.direct if waits else None)


def _output_views(
    plan: Plan, blocks: Mapping[str, int], places: Mapping[str, BlockAddress], written: Collection[str]
) -> Iterator[OutputView]:
    taken: set[str] = set()
    for name in plan.outputs:
        storage, type_ = plan.storages[name], plan.types[name]
        start = BlockAddress(blocks[storage.buffer]) if storage.buffer in blocks else places[storage.buffer]
        owned = storage.buffer in written and storage.buffer not in taken
        taken.add(storage.buffer)
        offset = start.offset // type_.dtype.size + storage.start()
        yield OutputView(name, type_.dtype, type_.shape, start.block, offset, storage.strides, owned)
