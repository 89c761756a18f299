"""Packs a plan into one file, which runs without Python.

    plan.json, kernels/*, weights.safetensors   ->   model.cutsplan

Every choice of a run is made here: the memory of each tensor, the launches in order with their addresses and
dependencies, the copies before and after them. The runner in `source/` only checks, allocates and launches.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen

from ...backends import BlockAddress, SequencePlan
from ...ir import WAITING_SUFFIX, Array, DType, KernelFunction, PlanError, TensorMap, TensorType, quote
from ..fallback_kernels import without_routines
from ..placement import ConstantImages, PlacedPlan, place_over_blocks, tensor_address
from ..plan import Plan
from .interface_copies import RowCopy, direct_tensors, row_copies
from .kernel_programs import KernelCode, kernel_code
from .records import NONE, RecordTables

#: Numbers of dialects, of kinds of blocks and of roles of tensors in a file.
DIALECTS = {"opencl": 1, "cuda": 2}
CONSTANT_BLOCK, SESSION_BLOCK, INPUT_BLOCK, OUTPUT_BLOCK = 0, 1, 2, 3
INPUT, OUTPUT, STATE = 0, 1, 2
#: Least bytes of state whose next value lies in a block of its own, and is not copied: a copy of fewer bytes takes less
#: time than the update of the launches that use them.
MIN_SWAPPED_BYTES = 1 << 20
#: DLPack's codes of element types, by kind and for the floats that it names.
_CODES = {"signed": 0, "unsigned": 1, "float": 2, "condition": 6}
_FLOAT_CODES = {DType.BF16: 4, DType.F8E4M3: 10, DType.F8E5M2: 12}
#: The driver's numbers of element types and swizzles of tensor maps, and of the sectors that L2 reads together.
_MAP_TYPES = {
    DType.I8: 0, DType.U8: 0, DType.F8E4M3: 0, DType.F8E5M2: 0, DType.F16: 6, DType.F32: 7, DType.BF16: 9,
}  # fmt: skip
_ROUNDED_MAP_TYPE, _SWIZZLES, _PROMOTION = 11, {0: 0, 32: 1, 64: 2, 128: 3}, 2


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


def write_packed(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan as one file.

    Raises `PlanError` where the file cannot be written, or the plan cannot run without Python.
    """
    target, content = Path(path), pack_plan(plan)
    draft = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise PlanError(f"cannot write plan {target}: {error.strerror}") from error


def pack_plan(plan: Plan) -> bytes:
    """Return a plan as one file.

    Raises `PlanError` for a plan that calls a library without a generated kernel for it, that checks indices, or that
    is for a target without kernels.
    """
    if plan.target.dialect not in DIALECTS:
        raise PlanError(f"plan {quote(plan.name)} is for target {quote(plan.target.name)}, which launches no kernels")
    if plan.checks:
        raise PlanError(
            f"plan {quote(plan.name)} checks indices, which needs Python", hint="compile it without --debug"
        )
    plan = without_routines(plan)
    layout = layout_of(plan)
    tables = RecordTables()
    code = kernel_code(plan)
    digits = "".join(c for c in plan.target.arch if c.isdigit())
    info = (plan.name, plan.cuts, plan.target.name, code.options)
    texts = [number for text in info for number in tables.text(text)]
    tables.add("info", *texts, DIALECTS[plan.target.dialect], int(digits or 0), 0)
    for kind, nbytes in layout.blocks:
        tables.add("block", kind, 0, nbytes)
    _add_tensors(tables, layout.tensors)
    _add_images(tables, plan, layout)
    _add_kernels(tables, plan.kernels, code)
    _add_launches(tables, layout.placed.sequence)
    for after, copies in enumerate((layout.before, layout.after)):
        for each in copies:
            _add_copy(tables, after, each)
    return tables.to_bytes()


def layout_of(plan: Plan) -> RunnerLayout:
    """Return the memory and the copies of a plan's runs."""
    state = plan.interface.state
    kept, replacing = ({getattr(tensor, end) for tensor in state.values()} for end in ("input", "output"))
    inputs, outputs = direct_tensors(plan)
    # A state that another one takes over would be read after it was replaced: it is copied before a run.
    views = {plan.storages[name].buffer for name in replacing}
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
        if turns.get(tensor.output) != tensor.input:
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


def _add_tensors(tables: RecordTables, tensors: Sequence[InterfaceTensor]) -> None:
    for tensor in tensors:
        dtype = tensor.type.dtype
        code = _FLOAT_CODES.get(dtype, _CODES[dtype.element.kind])
        first = tables.numbers(tensor.type.shape)
        tables.add(
            "tensor", *tables.text(tensor.name), tensor.role, tensor.place.block, code, 8 * dtype.size, 1,
            len(tensor.type.shape), tensor.partner, 0, first, tensor.place.offset, tensor.type.nbytes,
        )  # fmt: skip


def _add_images(tables: RecordTables, plan: Plan, layout: RunnerLayout) -> None:
    """Add the initial bytes of constants and of state."""
    images, placed = ConstantImages.of_plan(plan), layout.placed
    for buffer in images.buffers:
        _add_image(tables, placed.places[buffer], images.image(buffer))
    initial = {name: tensor.initial for name, tensor in plan.interface.state.items()}
    for tensor in layout.tensors:
        if tensor.role == STATE:
            dense = np.ascontiguousarray(initial[tensor.name], tensor.type.dtype.numpy).reshape(-1)
            _add_image(tables, tensor.place, dense.view(np.uint8))


def _add_image(tables: RecordTables, place: BlockAddress, content: Array) -> None:
    if content.nbytes:
        tables.add("image", place.block, 0, place.offset, content.nbytes, tables.data(content.tobytes()))


def _add_kernels(tables: RecordTables, kernels: Sequence[KernelFunction], code: KernelCode) -> None:
    for content in code.programs:
        tables.add("program", tables.data(content), len(content))
    for kernel, program in zip(kernels, code.owners, strict=True):
        first = tables.count("argument")
        for argument in kernel.arguments:
            number = NONE if argument.map is None else _add_map(tables, argument.map)
            tables.add("argument", argument.dtype.size, number)
        tables.add(
            "kernel", *tables.text(kernel.name), program, first, len(kernel.arguments),
            kernel.name.endswith(WAITING_SUFFIX), *kernel.grid, *kernel.block, kernel.shared_bytes,
            kernel.dynamic_shared,
        )  # fmt: skip


def _add_map(tables: RecordTables, map_: TensorMap) -> int:
    def pad(values: Sequence[int], count: int) -> list[int]:
        return [*values, *[0] * (count - len(values))]

    return tables.add(
        "map", _ROUNDED_MAP_TYPE if map_.rounded else _MAP_TYPES[map_.dtype], len(map_.dims), _SWIZZLES[map_.swizzle],
        _PROMOTION, *pad(map_.dims, 5), *pad(map_.strides, 4), *pad(map_.box, 5), 0,
    )  # fmt: skip


def _add_launches(tables: RecordTables, sequence: SequencePlan) -> None:
    for number, (call, turn) in enumerate(sequence.order):
        made = sequence.calls[call]
        first = tables.count("address")
        for place in made.iterations[turn]:
            tables.add("address", place.block, 0, place.offset)
        waits = None if sequence.waits is None else sequence.waits[number]
        first_wait = tables.numbers(waits or ())
        argument, nbytes = made.evict_first or (NONE, 0)
        count = NONE if waits is None else len(waits)
        tables.add("launch", made.kernel, first, first_wait, count, argument, 0, nbytes)


def _add_copy(tables: RecordTables, after: int, copied: RowCopy) -> None:
    source, target = copied.source, copied.target
    tables.add(
        "copy", after, 0, source.block, 0, source.offset, target.block, 0, target.offset, copied.width, copied.height,
        copied.source_pitch, copied.target_pitch,
    )  # fmt: skip
