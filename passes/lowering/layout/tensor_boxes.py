"""Boxes of tensor maps that fill a matrix in shared memory.

A tile of a dense strided matrix is one box where every axis of the tensor splits into *digits*, whose places in shared
memory rise in the order of the map's dims (`ir.machine.tensor_maps`). Rows of a chain's tile lie in the order of the
instruction (`shared_matrices.py`), which for `T` threads along them are four digits:

    row = 2*T*outer + T*second + 8*warp + lane    ->    dims (k, lane, second, warp, outer)

Elements of k past its end are 0. A row or column past the end may be another one's: its results are not stored. Where
the rows are not divisible into tiles, one that is copied once, or lies along its side, is several boxes of the first
digit, one for each value of the others. Axes of k that are no run are dims, if a K block lies within the last one.

A tile that begins further on in its tensor, as one place of a window or a slice, has a coordinate of 1 along a dim of
that step.

An element of an integer tensor that is equal for the whole tile adds to the coordinate of the first digit with its
step, or has a dim of its own, or extends a run, which ends where the guard of its read does:

    a[first[p] + row, k], b[group[p], k, n] outside 0    ->    dims (k, first[p] + lane, ...) and (n, k, group[p])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import define, field, frozen

from ....ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    BOX_BYTES,
    DType,
    Guard,
    Index,
    Indirect,
    Primary,
    Read,
    ReductionSchedule,
    SharedMatrixLayout,
    TensorMap,
    Var,
    delinearise,
    linearise,
    primary_index,
    substitute,
    variables,
)
from ...geometry import MatrixTile


@frozen
class TileDigit:
    """Digit of the number of a row, column or place of k.

    It has `extent` values; each counts `step` elements.
    """

    deep: bool
    extent: int
    step: int


@frozen
class TensorBox:
    """Tensor map of a tile, and the coordinates of a box.

    A tile has a box at each of some `rows` from its first row, in the order of shared memory. `outer` has, by the axis
    (`deep` or not), the coordinate that counts `step` elements of it; `others` the steps of further variables, of
    quotients of them, and of elements of integer tensors, in coordinates; `begins` the coordinates without all these.
    Axes of k that are no run are `depth`: a box lies along the last one of them.
    """

    map: TensorMap
    outer: Mapping[bool, tuple[int, int]]
    others: tuple[tuple[int, Primary, int], ...]
    begins: tuple[int, ...]
    rows: tuple[int, ...] = (0,)
    depth: tuple[Var, ...] = ()

    def coordinates(self, along: Index, deep: Index, places: Mapping[Var, Index]) -> tuple[Index, ...]:
        """Return the first element of a box.

        It is row or column `along`, at place `deep` of k.
        """
        found = [*map(Index, self.begins)]
        if self.depth:
            numbers = delinearise(deep, [v.extent for v in self.depth])
            places, deep = {**places, **dict(zip(self.depth, numbers, strict=True))}, numbers[-1]
        for is_deep, start in ((False, along), (True, deep)):
            if is_deep in self.outer:
                position, step = self.outer[is_deep]
                assert not any(n % step for n in (start.const, *(f for _, f in start.terms))), "tiles are whole digits"
                found[position] += Index(start.const // step, tuple((p, f // step) for p, f in start.terms))
        for position, primary, step in self.others:
            found[position] += substitute(Index(0, ((primary, step),)), places)
        return tuple(found)


@define
class _Dims:
    """Dims of a map: sizes, strides in elements, elements of the box, first places, and primaries that walk along."""

    sizes: list[int] = field(factory=list)
    strides: list[int] = field(factory=list)
    box: list[int] = field(factory=list)
    begins: list[int] = field(factory=list)
    others: list[tuple[int, Primary, int]] = field(factory=list)

    def append(self, size: int, stride: int, elements: int = 1, begin: int = 0) -> None:
        self.sizes.append(size)
        self.strides.append(stride)
        self.box.append(elements)
        self.begins.append(begin)

    def tensor_map(self, name: str, tensor: str, dtype: DType, swizzle: int) -> TensorMap:
        """Return the map of these dims of a tensor."""
        inner = tuple(stride * dtype.size for stride in self.strides[1:])
        return TensorMap(name, tensor, dtype, tuple(self.sizes), inner, tuple(self.box), swizzle)

    def append_walked(self, primary: Primary, size: int, stride: int) -> None:
        """Add a dim along which a primary walks."""
        self.others.append((len(self.sizes), primary, 1))
        self.append(size, stride)

    def append_number(self, number: Primary, extent: int, stride: int, runs: Sequence[int]) -> None:
        """Add the dim of a tile's own number, or extend a run."""
        place = next((n for n in runs if stride == self.strides[n] * self.sizes[n]), None)
        if place is None:
            self.append_walked(number, extent, stride)
        else:
            self.others.append((place, number, self.sizes[place]))
            self.sizes[place] *= extent


def tensor_box(tile: MatrixTile, read: Read, loop: ReductionSchedule, pitches: Sequence[int], dtype: DType,
               name: str) -> TensorBox | None:  # fmt: skip
    """Return the box of an operand's tile, None where there is none.

    The tensor has these pitches. The box of a tile that runs along k is one of its lines.
    """
    address = linearise(read.indices, pitches)
    steps = {v: n for v, n in address.terms if isinstance(v, Var)}
    axes = {False: tile.dim.axes, True: loop.dims[0].axes}
    moving = frozenset((*axes[False], *axes[True]))
    looked_up = _lookups(read, address, moving)
    still = [(p, n) for p, n in address.terms if not isinstance(p, (Var, Indirect)) and not _variables(p) & moving]
    found = len(steps) + len(looked_up or ()) + len(still)
    if looked_up is None or address.const < 0 or found != len(address.terms) or dtype.size != tile.layout.size:
        return None
    pitch, depth = {deep: _run_pitch(axes[deep], steps) for deep in axes}, tuple[Var, ...]()
    if pitch[True] is None and axes[True][-1].extent % loop.dims[0].block_k == 0:
        depth, axes[True] = axes[True], axes[True][-1:]
        pitch[True] = _run_pitch(axes[True], steps)
    extents = {deep: prod(a.extent for a in axes[deep]) for deep in axes}
    digits = _digits(tile, lines_of(tile, loop)[1])
    rest = [v for v in steps if v not in (*axes[False], *axes[True]) and v.extent > 1]
    if digits is None or None in pitch.values() or pitch[digits[0].deep] != 1:
        return None
    rows: tuple[int, ...] = (0,)
    once = loop.dims[0].trips == 1 or not tile.layout.deep
    if once and extents[False] % max(d.step for d in digits if not d.deep) and not digits[-1].deep:
        digits, rows = _split_rows(digits)
    last = {d.deep: n for n, d in enumerate(digits) if d.step == max(e.step for e in digits if e.deep == d.deep)}
    if any(extents[deep] % digits[n].step for deep, n in last.items()):
        return None
    boxed, outer = _Dims(), dict[bool, tuple[int, int]]()
    for n, digit in enumerate(digits):
        size = extents[digit.deep] // digit.step if last[digit.deep] == n else digit.extent
        if size == digit.extent == 1 and n:
            continue
        if last[digit.deep] == n:
            outer[digit.deep] = len(boxed.sizes), digit.step
        boxed.append(size, digit.step * (pitch[digit.deep] or 0), digit.extent)
    # Elements of k past its end would be those of the next number, not 0.
    runs = [outer[deep][0] for deep in outer if extents[True] % loop.dims[0].block_k == 0 or not deep]
    for lookup, pace, extent in looked_up:
        side = next((deep for deep, n in pitch.items() if n == pace), None)
        if side is None:
            boxed.append_number(lookup, extent, pace, runs)
            continue
        # Digits before the first one of a side have several values: its place is the same in digits and dims.
        first = next(n for n, digit in enumerate(digits) if digit.deep == side and digit.step == 1)
        if extent != lookup.extent or (side and first == last[side]):
            return None
        boxed.others.append((first, lookup, 1))
        boxed.sizes[first] += extent - 1
    numbers = [*((steps[v], v.extent, v) for v in rest), *((pace, _end_of(p), p) for p, pace in still)]
    for pace, extent, number in sorted(numbers, key=lambda each: each[0]):
        boxed.append_number(number, extent, pace, runs)
    if address.const:
        boxed.append(2, address.const, begin=1)
    result = boxed.tensor_map(name, read.tensor, dtype, tile.layout.swizzle)
    several = len(rows) > 1 or lines_of(tile, loop)[0] > 1
    if result.faults() or (several and result.nbytes % BOX_BYTES):
        return None
    return TensorBox(result, outer, tuple(boxed.others), tuple(boxed.begins), rows, depth)


def _split_rows(digits: Sequence[TileDigit]) -> tuple[list[TileDigit], tuple[int, ...]]:
    """Return digits with the first one of the rows alone, and the rows that the values of the others begin."""
    own, rows = [d for d in digits if not d.deep], [0]
    for digit in own[1:]:
        rows = [value * digit.step + row for value in range(digit.extent) for row in rows]
    return [d for d in digits if d.deep or d is own[0]], tuple(rows)


def lines_of(tile: MatrixTile, loop: ReductionSchedule) -> tuple[int, int]:
    """Return the number of boxes along k, and their extent."""
    depth, line = loop.dims[0].block_k, tile.layout.width // tile.layout.size
    return (depth // line, line) if tile.layout.deep and depth % line == 0 else (1, depth)


def _lookups(read: Read, address: Index, moving: frozenset[Var]) -> list[tuple[Indirect, int, int]] | None:
    """Return the elements of integer tensors in an address, each with its step and the end of its dim.

    None where one varies within a tile, or where a guard is no such end.
    """
    ends = {guard.index: guard for guard in read.guards}
    found = []
    for primary, step in address.terms:
        if isinstance(primary, Indirect):
            index = Index(0, ((primary, 1),))
            guard = ends.pop(index, Guard(index, 0, primary.extent)) if index in read.indices else None
            extent = primary.extent if guard is None else guard.high
            if variables(index) & moving or (guard is not None and guard.low):
                return None
            found.append((primary, step, extent))
    return None if ends else found


def _variables(primary: Primary) -> frozenset[Var]:
    return frozenset(variables(primary_index(primary)))


def _end_of(primary: Primary) -> int:
    """Return the end of the values of a primary."""
    return primary_index(primary).bounds()[1] + 1


def _run_pitch(axes: Sequence[Var], steps: Mapping[Var, int]) -> int | None:
    """Return the distance of neighbours of a flattened run of axes, None where it is none."""
    pitch = below = 0
    for axis in (a for a in reversed(axes) if a.extent > 1):
        if axis not in steps or (pitch and steps[axis] != below):
            return None
        pitch = pitch or steps[axis]
        below = steps[axis] * axis.extent
    return pitch or None


def _digits(tile: MatrixTile, block_k: int) -> list[TileDigit] | None:
    """Return the digits of a tile in the order of shared memory; None where a line holds several of one side."""
    layout: SharedMatrixLayout = tile.layout
    line = layout.width // layout.size
    side = _side_digits(tile)
    if not layout.deep and len(side) > 1:
        return None
    if layout.deep:
        inner, between, outer, extent = TileDigit(True, line, 1), side, TileDigit(True, block_k // line, line), block_k
    else:
        inner, between = TileDigit(False, line, 1), [TileDigit(True, block_k, 1)]
        outer, extent = TileDigit(False, layout.extent // line, line), layout.extent
    return [inner, *between, *([outer] if extent > line else [])]


def _side_digits(tile: MatrixTile) -> list[TileDigit]:
    """Return the digits of a tile's rows or columns in the order of their places."""
    dim, axis = tile.dim, tile.axis
    vector, lanes, neighbours = dim.vector, ACCUMULATOR_THREADS[axis], ACCUMULATOR_VECTOR[axis]
    inner: tuple[tuple[int, int], ...] = ((dim.block, 1),)
    if tile.held or tile.in_order:
        return [TileDigit(False, *inner[0])]
    around = dim.threads * vector
    if axis:
        inner = ((neighbours, 1), (lanes, vector), (vector // neighbours, neighbours), (dim.block // around, around))
    elif vector > 1:  # pairs of a lane, so that warps have neighbouring rows
        inner = ((lanes, vector), (vector, 1), (dim.block // (lanes * vector), lanes * vector))
    else:
        inner = ((lanes, 1), (2, dim.threads), (dim.threads // lanes, lanes), (dim.thread // 2, 2 * dim.threads))
    return [TileDigit(False, *each) for each in inner]
