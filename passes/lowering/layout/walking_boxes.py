"""Boxes of tensor maps that walk the pixels of a convolution.

Its results are columns in order. A run of results is a run of pixels, moved by an offset for each place of the window.
A K block lies within one place:

    x[n, 2*h + r - 1, 2*w + s - 1, c] for columns (n, h, w) and k = (r, s, c)
        ->    walk of pixels (w, h) from (-1, -1) by (2, 2); copies at channel c with offsets (s, r)

Elements outside the tensor are 0, as the guards of the read say. So are those past the last image.

The run of pixels is k where columns are channels of the places of a window, as in a filter gradient: each line of
columns is one copy. Pixels past the end of a part of images are those of the next one, which the rows multiply by 0:

    x[32*part + n, 2*h + r - 1, 2*w + s - 1, c] for columns (r, s, c) and k = (n, h, w)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

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
    delinearise,
    operands,
    substitute,
    variables,
)
from ...geometry import MatrixTile, matrix_tile, reads_shared_matrices
from .tensor_boxes import TensorBox, lines_of, tensor_box


@frozen
class _PlaceDim:
    """Dim of a tensor along which pixels and windows move, or which has a number of the tile alone.

    It has its extent, pitch, first element and steps, and other terms.
    """

    axis: Var | None
    extent: int
    pitch: int
    start: int
    step: int
    window: Var | None
    pace: int
    others: Index

    @property
    def first(self) -> int:
        """Offset of the first place of a window from its least one."""
        return self._reach * (self.pace < 0)

    @property
    def reach(self) -> int:
        """Largest offset of a copy."""
        return self._reach + self.others.bounds()[1]

    @property
    def _reach(self) -> int:
        return 0 if self.window is None else abs(self.pace) * (self.window.extent - 1)


@frozen
class WalkingBox:
    """Map that walks pixels, and the offsets of its copies.

    `window` has the axes of the places of the window and that of the channels, `places` the dims that the walk moves
    along, `images` that of the images. A tile has a copy for each of some `rows`. Pixels are its rows or columns, or,
    where it is not `deep`, k. Channels begin at `first`, that of a group.
    """

    map: TensorMap
    window: tuple[Var, ...]
    places: tuple[_PlaceDim, ...]
    images: _PlaceDim
    first: Index
    rows: tuple[int, ...] = (0,)
    deep: bool = True

    def coordinates(self, along: Index, deep: Index, places: Mapping[Var, Index]) -> tuple[Index, ...]:
        """Return the first channel and pixel of a box, and its offsets.

        It begins at row or column `along`, at place `deep` of k.
        """
        inside, pixel = (deep, along) if self.deep else (along, deep)
        found = dict(zip(self.window, delinearise(inside, [v.extent for v in self.window]), strict=True))
        if self.images not in self.places:
            pixel += substitute(self.images.others, places) * prod(self.map.pixels)
        offsets = (
            substitute(d.others, places) + d.first + (0 if d.window is None else found[d.window] * d.pace)
            for d in self.places
        )
        return (found[self.window[-1]] + substitute(self.first, places), pixel, *offsets)


def operand_box(
    tile: MatrixTile, read: Read, loop: ReductionSchedule, pitches: Sequence[int], kind: TensorType, name: str
) -> TensorBox | WalkingBox | None:
    """Return the box of an operand's tile, None where there is none."""
    box = tensor_box(tile, read, loop, pitches, kind.dtype, name)
    return walking_box(tile, read, loop, pitches, kind, name) if box is None else box


def walking_box(
    tile: MatrixTile, read: Read, loop: ReductionSchedule, pitches: Sequence[int], kind: TensorType, name: str
) -> WalkingBox | None:
    """Return the box of pixels along a tile's side, or k.

    None where they are no walk.
    """
    deep, line, size = tile.layout.deep, tile.layout.width // tile.layout.size, kind.dtype.size
    walked, window = (tile.dim.axes, loop.dims[0].axes) if deep else (loop.dims[0].axes, tile.dim.axes)
    side, (*windows, channel) = [a for a in walked if a.extent > 1], window
    if not tile.in_order or size != tile.layout.size or read.fill or not side:
        return None
    if channel.extent % (loop.dims[0].block_k if deep else line):
        return None
    dims = list(zip(read.indices, pitches, kind.shape, strict=True))
    ends = {guard.index: guard for guard in read.guards}
    inner = [place for place, (index, pitch, _) in enumerate(dims) if index.coefficient(channel) == pitch == 1]
    others = [each for place, each in enumerate(dims) if place not in inner and each[2] > 1]
    found = [d for each in others if (d := _place_dim(*each, side, windows, ends)) is not None]
    moved, numbers = {d.axis: d for d in found if d.axis is not None}, [d for d in found if d.axis is None]
    if ends or len(inner) != 1 or len(found) != len(others) or len(moved) + len(numbers) != len(found):
        return None
    first = dims[inner[0]][0] - channel
    if variables(first) & {*walked, *window} or first.bounds()[0] < 0:
        return None
    if set(moved) != set(side) or len(numbers) > 1 or (deep and any(d.others.terms for d in found)):
        return None
    images = numbers[0] if numbers else moved[side[0]]
    every = images.extent == side[0].extent or bool(images.others.terms)
    alone = bool(numbers) or ((images.step, images.start, images.window) == (1, 0, None) and every)
    places = tuple(moved[axis] for axis in reversed(side[1:] if alone and not numbers else side))
    if {d.window for d in places if d.window is not None} != {v for v in windows if v.extent > 1}:
        return None
    count, pitch = (images.extent, images.pitch) if alone else (1, images.pitch * images.extent)
    result = TensorMap(
        name, read.tensor, kind.dtype, (dims[inner[0]][2], *(d.extent for d in places), count),
        (*(d.pitch * size for d in places), pitch * size),
        (lines_of(tile, loop)[1], tile.dim.block) if deep else (line, loop.dims[0].block_k),
        tile.layout.swizzle, "", tuple(d.axis.extent for d in places if d.axis is not None),
        tuple(d.start for d in places), tuple(d.step for d in places),
    )  # fmt: skip
    if not places or result.faults() or any(d.reach >> CORNER_BITS[len(places)] for d in places):
        return None
    rows = (0,) if deep else tuple(range(0, tile.dim.block, line))
    return WalkingBox(result, window, places, images, first, rows, deep)


def _place_dim(
    index: Index, pitch: int, extent: int, side: Sequence[Var], windows: Sequence[Var], ends: dict[Index, Guard]
) -> _PlaceDim | None:
    """Return the dim that an index moves along, None where it is none; a guard of its end is taken from `ends`."""
    steps: dict[Primary, int] = dict(index.terms)
    own, taps = [v for v in side if v in steps], [v for v in windows if v in steps]
    others = Index(0, tuple((p, n) for p, n in index.terms if p not in own and p not in taps))
    guard = ends.pop(index, Guard(index, 0, extent))
    if len(own) > 1 or len(taps) > 1 or variables(others) & {*side, *windows} or others.bounds()[0] < 0:
        return None
    if guard.low or guard.high > extent or (not own and (taps or index.const)):
        return None
    tap = taps[0] if taps else None
    pace = steps[tap] if tap is not None else 0
    if own and steps[own[0]] < 1:
        return None
    first = pace * (tap.extent - 1) if tap is not None and pace < 0 else 0
    axis, step = (own[0], steps[own[0]]) if own else (None, 1)
    return _PlaceDim(axis, guard.high, pitch, index.const + first, step, tap, pace, others)


def bulk_copy_faults(
    reduction: Reduction, loop: ReductionSchedule, dims: Sequence[TileDim], own: Sequence[str],
    tensors: Mapping[str, TensorType], alone: bool,
) -> list[str]:  # fmt: skip
    """Return why bulk copies cannot stage the operands of a reduction.

    `own` are the segment's reductions, which is `alone` in its group or has others beside it.
    """
    if not reads_shared_matrices(loop.mma) or len(loop.dims) != 1:
        return ["bulk copies stage operands that a warpgroup reads in shared memory"]
    found, boxes = [], []
    for choice in loop.staging:
        tile = matrix_tile(reduction, loop, dims, choice, own, alone)
        operand = operands(reduction, own)[choice.operand]
        box = None
        if tile is not None and isinstance(operand, Read):
            kind = tensors[operand.tensor]
            box = operand_box(tile, operand, loop, kind.strides, kind, operand.tensor)
        if box is None:
            found.append(f"operand {choice.operand} of {reduction.name} is no box of a tensor map")
        boxes.append(box)
    return found if found or are_zero_at_ends(boxes) else [f"both operands of {reduction.name} walk pixels along k"]


def are_zero_at_ends(boxes: Iterable[TensorBox | WalkingBox | None]) -> bool:
    """Return whether products past the end of k are 0.

    One operand has zeros there. Pixels that are walked along k go on with the next images.
    """
    return sum(isinstance(box, WalkingBox) and not box.deep for box in boxes) < 2
