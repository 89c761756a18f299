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

from ...backends import BlockAddress
from ...backends.native import DIALECTS, RecordTables, add_copy, add_info, add_kernels, add_launches
from ...ir import Array, PlanError, quote
from ..fallback_kernels import without_routines
from ..placement import ConstantImages
from ..plan import Plan
from .element_types import dlpack_code
from .kernel_programs import kernel_code
from .runner_layout import STATE, InterfaceTensor, RunnerLayout, layout_of


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
    add_info(tables, (plan.name, plan.cuts, plan.target.name, code.options), plan.target.dialect, plan.target.arch)
    for kind, nbytes in layout.blocks:
        tables.add("block", kind, 0, nbytes)
    _add_tensors(tables, layout.tensors)
    _add_images(tables, plan, layout)
    for content in code.programs:
        tables.add("program", tables.data(content), len(content))
    add_kernels(tables, plan.kernels, code.owners)
    add_launches(tables, layout.placed.sequence)
    for after, copies in enumerate((layout.before, layout.after)):
        for each in copies:
            shape = each.width, each.height, each.source_pitch, each.target_pitch
            add_copy(tables, after, each.source, each.target, shape)
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
