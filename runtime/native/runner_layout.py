"""Memory and copies of a packed plan's runs.

inputs x, state s, outputs y   ->   blocks of a caller for x and y, of the session for s and the intermediates
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from attrs import frozen

from ...backends import BlockAddress
from ...backends.native import NONE
from ...ir import TensorType
from ..placement import PlacedPlan, place_over_blocks, tensor_address
from ..plan import Plan
from .interface_copies import RowCopy, direct_tensors, row_copies, updated_state

#: Numbers of kinds of blocks and of roles of tensors in a file.
CONSTANT_BLOCK, SESSION_BLOCK, INPUT_BLOCK, OUTPUT_BLOCK = 0, 1, 2, 3
INPUT, OUTPUT, STATE = 0, 1, 2
#: Least bytes of state whose next value lies in a block of its own, and is not copied: a copy of fewer bytes takes less
#: time than the update of the launches that use them.
MIN_SWAPPED_BYTES = 1 << 20


@frozen
class InterfaceTensor:
    """Input, output or state of a packed plan, dense in a block.

    `partner` is the block of the next value of state that is not copied.
    """

    name: str
    role: int
    type: TensorType
    place: BlockAddress
    partner: int = NONE


@frozen
class RunnerLayout:
    """Memory of a run: blocks by kind and bytes, interface tensors, copies.

    Copies are made before or after the launches.
    """

    placed: PlacedPlan
    blocks: tuple[tuple[int, int], ...]
    tensors: tuple[InterfaceTensor, ...]
    before: tuple[RowCopy, ...]
    after: tuple[RowCopy, ...]


def layout_of(plan: Plan) -> RunnerLayout:
    """Return the memory and the copies of a plan's runs."""
    state = plan.interface.state
    kept, replacing = ({getattr(tensor, end) for tensor in state.values()} for end in ("input", "output"))
    inputs, outputs = direct_tensors(plan)
    # A state that another one takes over would be read after it was replaced: it is copied before a run.
    updated = updated_state(plan)
    views = {plan.storages[name].buffer for name in replacing - {tensor.output for tensor in updated}}
    inputs -= {name for name in kept if plan.storages[name].buffer in views}
    turns = _turns(plan, inputs, outputs)
    outputs -= replacing - turns.keys()
    copied = (
        [name for name in plan.inputs if name not in inputs],
        [name for name in plan.outputs if name not in outputs],
    )
    placed = place_over_blocks(plan, kept & inputs, session_constants(plan, copied[0]), inside=copied)
    kinds = [CONSTANT_BLOCK, *[SESSION_BLOCK] * (1 + len(placed.shared) + len(placed.held))]
    kinds += [INPUT_BLOCK] * len(placed.moving) + [OUTPUT_BLOCK] * len(placed.fresh)
    for name in turns:
        kinds[placed.places[plan.storages[name].buffer].block] = SESSION_BLOCK
    blocks = [*zip(kinds, placed.sizes, strict=True)]

    def block_of(name: str, kind: int, is_direct: bool) -> BlockAddress:
        """Return a dense tensor's place: a new block unless direct."""
        if is_direct:
            return placed.places[plan.storages[name].buffer]
        blocks.append((kind, plan.types[name].nbytes))
        return BlockAddress(len(blocks) - 1)

    given = {n: block_of(n, SESSION_BLOCK if n in kept else INPUT_BLOCK, n in inputs) for n in plan.inputs}
    results = {n: block_of(n, OUTPUT_BLOCK, n in outputs) for n in plan.outputs if n not in replacing}
    before = [c for name in copied[0] for c in _copies(plan, placed, name, given[name])]
    after = [c for name in copied[1] if name in results for c in _copies(plan, placed, name, results[name])]
    for tensor in state.values():
        in_place = tensor in updated and tensor.input in inputs
        if turns.get(tensor.output) != tensor.input and not in_place:
            after += _copies(plan, placed, tensor.output, given[tensor.input])
    partners = {now: placed.places[plan.storages[following].buffer].block for following, now in turns.items()}
    tensors = tuple(_tensors(plan, given, results, partners))
    return RunnerLayout(placed, tuple(blocks), tensors, tuple(before), tuple(c.backwards() for c in after))


def _turns(plan: Plan, inputs: Collection[str], outputs: Collection[str]) -> dict[str, str]:
    """Map outputs to the state that they replace without a copy.

    Both are large, and kernels use a block of the session for each.
    """
    found: dict[str, str] = {}
    for tensor in plan.interface.state.values():
        is_direct = tensor.input in inputs and tensor.output in outputs
        if is_direct and plan.types[tensor.input].nbytes >= MIN_SWAPPED_BYTES:
            found.setdefault(tensor.output, tensor.input)
    return found


def session_constants(plan: Plan, copied: Sequence[str]) -> tuple[str, ...]:
    """Return the constant buffers that a run writes.

    Each session has its own copy of these.
    """
    constant = dict.fromkeys(plan.storages[name].buffer for name in plan.constants)
    written = {plan.storages[name].buffer for name in copied}
    for step in plan.steps:
        for argument, tensor in zip(plan.kernels[step.kernel].arguments, step.tensors, strict=True):
            written |= {plan.storages[tensor].buffer} if argument.written else set()
    return tuple(buffer for buffer in constant if buffer in written)


def _copies(plan: Plan, placed: PlacedPlan, name: str, caller: BlockAddress) -> Iterator[RowCopy]:
    """Yield the copies from a dense tensor to its place in the plan."""
    return row_copies(plan, name, tensor_address(plan, placed.places, name), caller)


def _tensors(
    plan: Plan,
    given: Mapping[str, BlockAddress],
    results: Mapping[str, BlockAddress],
    partners: Mapping[str, int],
) -> Iterator[InterfaceTensor]:
    """Yield inputs, outputs and state, each in the order of the plan."""
    interface = plan.interface
    for name in interface.caller_inputs(plan.inputs):
        yield InterfaceTensor(name, INPUT, plan.types[name], given[name])
    for name in interface.caller_outputs(plan.outputs):
        yield InterfaceTensor(name, OUTPUT, plan.types[name], results[name])
    for name, tensor in interface.state.items():
        partner = partners.get(tensor.input, NONE)
        yield InterfaceTensor(name, STATE, plan.types[tensor.input], given[tensor.input], partner)
