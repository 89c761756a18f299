"""Packs a plan into one file, which runs without Python.

    plan.json, kernels/*, weights.safetensors   ->   model.cutsplan

Every choice of a run is made here: the memory of each tensor, the launches in order with their addresses and
dependencies, the copies before and after them. The runner in `source/` only checks, allocates and launches.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...backends import BlockAddress, SequencePlan
from ...ir import WAITING_SUFFIX, Array, DType, KernelFunction, PlanError, TensorMap, quote
from ..fallback_kernels import without_routines
from ..placement import ConstantImages
from ..plan import Plan
from .element_types import dlpack_code
from .interface_copies import RowCopy
from .kernel_programs import KernelCode, kernel_code
from .records import DIALECTS, NONE, RecordTables
from .runner_layout import STATE, InterfaceTensor, RunnerLayout, layout_of

#: The driver's numbers of element types and swizzles of tensor maps, and of the sectors that L2 reads together.
_MAP_TYPES = {
    DType.I8: 0, DType.U8: 0, DType.F8E4M3: 0, DType.F8E5M2: 0, DType.F16: 6, DType.F32: 7, DType.BF16: 9,
}  # fmt: skip
_ROUNDED_MAP_TYPE, _SWIZZLES, _PROMOTION = 11, {0: 0, 32: 1, 64: 2, 128: 3}, 2


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


def _add_tensors(tables: RecordTables, tensors: Sequence[InterfaceTensor]) -> None:
    for tensor in tensors:
        dtype = tensor.type.dtype
        first = tables.numbers(tensor.type.shape)
        tables.add(
            "tensor", *tables.text(tensor.name), tensor.role, tensor.place.block, dlpack_code(dtype), 8 * dtype.size, 1,
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
        _PROMOTION, *pad(map_.dims, 5), *pad(map_.strides, 4), *pad(map_.box, 5), len(map_.pixels),
        *pad(map_.starts, 3), *pad(map_.ends, 3), *pad(map_.steps, 3), 0,
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
