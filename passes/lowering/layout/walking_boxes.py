"""Boxes of tensor maps that walk the pixels of a convolution.

Its results are columns in order. A run of results is a run of pixels, moved by an offset for each place of the window.
A K block lies within one place:

    x[n, 2*h + r - 1, 2*w + s - 1, c] for columns (n, h, w) and k = (r, s, c)
        ->    walk of pixels (w, h) from (-1, -1) by (2, 2); copies at channel c with offsets (s, r)

Elements outside the tensor are 0, as the guards of the read say. So are those past the last image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from ....ir import (
    CORNER_BITS,
    Guard,
    Index,
    Primary,
    Read,
    Reduction,
    ReductionSchedule,
    TensorMap,
    TensorType,
    TileDim,
    Var,
    as_index,
    delinearise,
    operands,
)
from ...geometry import MatrixTile, matrix_tile, reads_shared_matrices
from .tensor_boxes import TensorBox, lines_of, tensor_box


@frozen
class WalkingBox:
    """Map that walks pixels, and the offsets of its copies.

    `depth` has the extents of the axes of k, the channels last. For each dim of a place `moves` has the position of its
    axis of k, the offset at its first step, and the elements of each.
    """

    map: TensorMap
    depth: tuple[int, ...]
    moves: tuple[tuple[int, int, int], ...]
    rows: tuple[int, ...] = (0,)

    def coordinates(self, along: Index, deep: Index, places: Mapping[Var, Index]) -> tuple[Index, ...]:
        """Return the first channel and pixel of a box, and its offsets.

        It begins at column `along`, at place `deep` of k.
        """
        del places
        found = delinearise(deep, self.depth)
        return (found[-1], along, *(found[axis] * step + first for axis, first, step in self.moves))


@frozen
class _PlaceDim:
    """Dim of a tensor along which columns and windows move: its extent, pitch, first element and steps."""

    axis: Var
    extent: int
    pitch: int
    start: int
    step: int
    window: Var | None
    pace: int

    @property
    def reach(self) -> int:
        """Elements between the first and the last place of a window."""
        return 0 if self.window is None else abs(self.pace) * (self.window.extent - 1)


def operand_box(
    tile: MatrixTile, read: Read, loop: ReductionSchedule, pitches: Sequence[int], kind: TensorType, name: str
) -> TensorBox | WalkingBox | None:
    """Return the box of an operand's tile, None where there is none."""
    box = tensor_box(tile, read, loop, pitches, kind.dtype, name)
    return walking_box(tile, read, loop, pitches, kind, name) if box is None else box


def walking_box(
    tile: MatrixTile, read: Read, loop: ReductionSchedule, pitches: Sequence[int], kind: TensorType, name: str
) -> WalkingBox | None:
    """Return the box of the pixels of a tile's columns.

    None where they are no walk.
    """
    side, (*windows, channel) = [a for a in tile.dim.axes if a.extent > 1], loop.dims[0].axes
    if not tile.in_order or not tile.layout.deep or kind.dtype.size != tile.layout.size or read.fill or not side:
        return None
    if channel.extent % loop.dims[0].block_k:
        return None
    dims = list(zip(read.indices, pitches, kind.shape, strict=True))
    ends = {guard.index: guard for guard in read.guards}
    inner = [place for place, (index, pitch, _) in enumerate(dims) if index == as_index(channel) and pitch == 1]
    others = [each for place, each in enumerate(dims) if place not in inner and each[2] > 1]
    found = [_place_dim(*each, side, windows, ends) for each in others]
    moved = {d.axis: d for d in found if d is not None}
    if ends or len(inner) != 1 or len(moved) != len(found) or set(moved) != set(side):
        return None
    images = moved[side[0]]
    alone = (images.step, images.start, images.window, images.extent) == (1, 0, None, side[0].extent)
    places = [moved[axis] for axis in reversed(side[1:] if alone else side)]
    if {d.window for d in places if d.window is not None} != {v for v in windows if v.extent > 1}:
        return None
    count, pitch = (images.extent, images.pitch) if alone else (1, images.pitch * images.extent)
    size = kind.dtype.size
    result = TensorMap(
        name, read.tensor, kind.dtype, (channel.extent, *(d.extent for d in places), count),
        (*(d.pitch * size for d in places), pitch * size), (lines_of(tile, loop)[1], tile.dim.block),
        tile.layout.swizzle, "", tuple(d.axis.extent for d in places), tuple(d.start for d in places),
        tuple(d.step for d in places),
    )  # fmt: skip
    moves = tuple((0 if d.window is None else windows.index(d.window), d.reach * (d.pace < 0), d.pace) for d in places)
    if not places or result.faults() or any(d.reach >> CORNER_BITS[len(places)] for d in places):
        return None
    return WalkingBox(result, (*(v.extent for v in windows), channel.extent), moves)


def _place_dim(
    index: Index, pitch: int, extent: int, side: Sequence[Var], windows: Sequence[Var], ends: dict[Index, Guard]
) -> _PlaceDim | None:
    """Return the dim that an index moves along, None where it is none; a guard of its end is taken from `ends`."""
    steps: dict[Primary, int] = dict(index.terms)
    own, taps = [v for v in side if v in steps], [v for v in windows if v in steps]
    guard = ends.pop(index, Guard(index, 0, extent))
    if len(own) != 1 or len(taps) > 1 or len(steps) != len(own) + len(taps) or guard.low or guard.high > extent:
        return None
    tap = taps[0] if taps else None
    pace = steps[tap] if tap is not None else 0
    if steps[own[0]] < 1:
        return None
    first = pace * (tap.extent - 1) if tap is not None and pace < 0 else 0
    return _PlaceDim(own[0], guard.high, pitch, index.const + first, steps[own[0]], tap, pace)


def bulk_copy_faults(
    reduction: Reduction, loop: ReductionSchedule, dims: Sequence[TileDim], own: Sequence[str],
    tensors: Mapping[str, TensorType],
) -> list[str]:  # fmt: skip
    """Return why bulk copies cannot stage the operands of a reduction.

    `own` are the segment's reductions.
    """
    if not reads_shared_matrices(loop.mma) or len(loop.dims) != 1:
        return ["bulk copies stage operands that a warpgroup reads in shared memory"]
    found = []
    for choice in loop.staging:
        tile, operand = matrix_tile(reduction, loop, dims, choice, own), operands(reduction, own)[choice.operand]
        box = None
        if tile is not None and isinstance(operand, Read):
            kind = tensors[operand.tensor]
            box = operand_box(tile, operand, loop, kind.strides, kind, operand.tensor)
        if box is None:
            found.append(f"operand {choice.operand} of {reduction.name} is no box of a tensor map")
    return found
