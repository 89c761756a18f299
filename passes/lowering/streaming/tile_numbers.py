"""Numbers of rows and columns beside the products of a chain."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from ....ir import (
    MAP_UNIT_BYTES,
    WIDEST_BYTES,
    BulkCopy,
    DType,
    Expr,
    Index,
    Item,
    Load,
    RegisterRead,
    RegisterWrite,
    SharedBuffer,
    TensorMap,
    Value,
    Var,
    as_index,
    linearise,
    row_major,
    substitute,
)
from ...geometry import TileChain, ceil_div, column_pitch, numbers_of_columns, numbers_of_rows
from ..index_values import resolve, value_of
from ..segment_state import SegmentState
from .chained_contraction import instance_phase


@frozen
class ColumnNumbers:
    """Numbers of the columns of a part.

    A stage of the buffer has `pitch` elements.
    """

    map: TensorMap
    places: tuple[Index, ...]
    buffer: str
    pitch: int

    def copy(self, stage: Index, values: Mapping[Var, Index]) -> BulkCopy:
        """Return the copy of a part to a stage."""
        return BulkCopy(
            self.map.name, tuple(substitute(c, values) for c in self.places), self.buffer, stage * self.pitch
        )


def row_numbers(first: SegmentState, chain: TileChain) -> tuple[list[Item], dict[Expr, Value]]:
    """Return the phases that load numbers of rows, and their registers."""
    items, values = list[Item](), dict[Expr, Value]()
    row = chain.rows[0]
    at, count = as_index(first.frame.tiles[row]), first.frame.schedule.dims[row].thread
    for n, read in enumerate(numbers_of_rows(first.frame.segment, chain)):
        value = value_of(read, first.context(first.bind((), (), ()), {}))
        write = RegisterWrite(f"{read.tensor}.row{n}", (at,), (count,), value, value.dtype)
        items.append(instance_phase(first, f"row{n}", [write]))
        values[read] = RegisterRead(write.name, (at,), value.dtype)
    return items, values


def column_numbers(first: SegmentState, chain: TileChain, stage: Var) -> tuple[list[ColumnNumbers], dict[Expr, Value]]:
    """Return the bulk copies of numbers of columns, and their values.

    Their maps and buffers are declared. Tensors that lie in memory otherwise than their types say are left out.
    """
    layout, schedule = first.layout, first.frame.schedule
    part, pairs = schedule.dims[chain.column].block, zip(schedule.dims, first.frame.starts, strict=True)
    starts = {axis: start for dim, start in pairs for axis in dim.axes}
    pitch, context = int(column_pitch(part)), first.context(first.bind((), (), ()), {})
    found, values = list[ColumnNumbers](), dict[Expr, Value]()
    unit = MAP_UNIT_BYTES // DType.F32.size
    for n, read in enumerate(numbers_of_columns(layout.group, chain)):
        kind, storage = layout.group.tensors[read.tensor], first.storages.get(read.tensor)
        strides = kind.strides if storage is None else storage.strides
        moved = storage is not None and storage.by * kind.dtype.size % WIDEST_BYTES
        indices, shape = read.indices, kind.shape
        if strides == row_major(shape):
            # Rows are a run, in which boxes begin at multiples of bytes. They have elements of other rows, too.
            indices, shape = (Index(), linearise(indices, strides)), (1, kind.size)
            strides = (int(ceil_div(kind.size, unit)) * unit, 1)
        *outer, start = (resolve(substitute(i, starts), context) for i in indices)
        before = start % unit
        name, box = f"numbers{n}", (part + (unit if before != Index() else 0), *(1 for _ in shape[1:]))
        inner = tuple(stride * kind.dtype.size for stride in reversed(strides[:-1]))
        map_ = TensorMap(name, read.tensor, kind.dtype, shape[::-1], inner, box)
        if moved or strides[-1] != 1 or map_.faults() or first.aligned[read.tensor] % WIDEST_BYTES:
            continue
        places = start // unit * unit, *reversed(outer)
        buffer = SharedBuffer(f"{first.frame.prefix}{name}", kind.dtype, pitch * stage.extent, boxed=True)
        layout.maps.append(map_)
        layout.buffers[buffer.name] = buffer
        address = as_index(stage) * pitch + before + first.frame.tiles[chain.column]
        values[read] = Load("shared", buffer.name, address, kind.dtype)
        found.append(ColumnNumbers(map_, places, buffer.name, pitch))
    return found, values
