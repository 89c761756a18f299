"""Fragment loads from shared memory, and fetches of their tiles, as arrays.

A warp loads fragments by matrices, eight rows of 16 bytes each, where rows lie along the depth, or where halves lie
along the rows or columns and are transposed on the way; else lane by lane, four lanes along the depth and eight along
the other side. A matrix takes one cycle where its rows lie in different parts of the 128 bytes that shared memory
serves at once: the distance of rows is an odd multiple of 16 bytes. The same holds for numbers of four bytes along rows
or columns at a distance of an odd multiple of 32 bytes.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ....ir import ACCUMULATOR_THREADS, ACCUMULATOR_VECTOR, MatrixFragment, Target
from ...geometry import Count, Geometry, StagedTile
from ..memory_access import warp_cycles

#: Bytes of a matrix row, rows of a matrix, matrices of a load, and bytes of a register.
ROW, ROWS, MATRICES, WORD = 16, 8, 4, 4


@frozen
class FragmentLoads:
    """Loads of one fragment.

    They are load instructions of a lane, and cycles of shared memory, conflicts included.
    """

    instructions: Count
    cycles: Count


def fragment_loads(
    tile: StagedTile, axis: int, fragment: MatrixFragment, geometry: Geometry, target: Target
) -> FragmentLoads:
    """Return the loads of a fragment of A or B.

    `axis` is 0 for A and 1 for B.
    """
    structure, size = geometry.structure, tile.size
    d, whole = (structure.rows, structure.columns)[axis], ROW // size
    depth, side = tile.steps[0], tile.steps_along(structure.dims)[d]
    mixed = geometry.vector[d] // ACCUMULATOR_VECTOR[axis]
    full = fragment.packed * size == WORD
    along = np.equal(depth, 1) & np.equal(side % whole, 0) & full
    turned = np.equal(side, 1) & np.equal(mixed, 1) & np.equal(depth % whole, 0) & (size == ROW // ROWS)
    # Rows of a matrix are neighbours of one instruction; the rows of interleaved instructions lie between them.
    pitch: Count = np.where(along, side * mixed, depth)
    matrices = np.gcd(pitch * size // ROW, ROWS) * 1.0 * fragment.registers
    words = np.equal(depth, 1) & full
    loads = np.where(words, fragment.registers, fragment.size / np.where(size == WORD, mixed, 1))
    ways = _load_cycles(np.where(words, 1, depth * size * fragment.packed // WORD), -(-side * size // WORD), target)
    cycles = np.where(size == WORD, fragment.size, loads) * ways
    together = along | turned
    return FragmentLoads(np.where(together, fragment.registers / MATRICES, loads), np.where(together, matrices, cycles))


def _load_cycles(depth: Count, side: Count, target: Target) -> Count:
    """Return the cycles of a load with four lanes along the depth, eight along the other side, for steps in words."""
    banks = target.banks
    both = [np.where(np.equal(s, 0), 0, (s - 1) % banks + 1) for s in (depth, side)]
    different, places = np.unique(both[0] * (banks + 1) + both[1], return_inverse=True)
    strides = np.stack(np.divmod(different, banks + 1), axis=1)
    along = np.repeat(np.asarray([[ACCUMULATOR_THREADS[1], ACCUMULATOR_THREADS[0]]]), len(different), axis=0)
    found = warp_cycles(along, strides, banks, target.warp_size)[places]
    return found.reshape(np.broadcast_shapes(np.shape(both[0]), np.shape(both[1])))


def filling_ways(extent: Count, pad: Count, size: int) -> Count:
    """Return the cycles of eight neighbouring copies of 16 bytes.

    Rows have `extent` elements and padding.
    """
    units, pitch = np.maximum(1, extent * size // ROW), (extent + pad) * size // ROW
    places = [(lane // units * pitch + lane % units) % ROWS for lane in range(ROWS)]
    most: Count = 1
    for place in places:
        most = np.maximum(most, sum((np.equal(place, other).astype(np.int64) for other in places), np.int64(0)))
    return most * 1.0
