"""Register estimates of a thread, for all candidate schedules of a template.

The constants are fitted to the reports of ptxas for 500 kernels. Three figures: registers that a thread certainly
*holds* (accumulators of a reduction), the fewest it *needs* without spills, and those that a compiler is *expected* to
use, as it also loads the next elements early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from attrs import frozen

from ...ir import (
    MMA_INSTRUCTIONS,
    WIDEST_BYTES,
    DType,
    Expr,
    Reduction,
    Segment,
    Target,
    TensorType,
    as_index,
    dtype_of,
    expr_variables,
    indirects,
    is_affine,
    loaded_values,
    operands,
    reads,
)
from ..geometry import (
    MIN_COPY_BYTES,
    ROW_LANES,
    Count,
    Geometry,
    StagedTile,
    ceil_div,
    least,
    main_read,
    product,
    promotion_depth,
    reads_shared_matrices,
)
from .memory_access import copied_width, copy_cost, held_deep, register_staging_vector, running_axis, steps_evenly
from .mma_work import MmaWork, mma_work
from .roofline import node_cost, nodes
from .row_registers import column_registers, row_registers

#: Addresses, coordinates, loop counters and temporaries of any kernel.
BASE_REGISTERS = 26.0
#: Additional ones where a fetch decodes the coordinates of a halo, or each element of a flattened loop is decoded.
DECODING_REGISTERS = 10.0
#: Elements in flight of an operand that is used once.
MAX_TRANSIENT_ELEMENTS = 8.0
#: Share of narrow elements that is held converted: they come from global memory as vectors, all of a step together. Of
#: 40 kernels of a pool of halves those of 128 outputs a thread spilled 520 bytes or more, those of 64 took 100 to 142.
CONVERTED_SHARE, WORD = 0.7, 4
#: Registers per neighbour that an instance of a stencil reads besides its own element, in kernels with unrolled loops:
#: ptxas used 40 to 167 registers for filters of 3x3 to 7x7 taps and 4 to 32 outputs a thread, up to 255 with mirrored
#: borders.
NEIGHBOUR_REGISTERS, CLAMPED_NEIGHBOUR_REGISTERS = 0.2, 0.3
#: Registers per copy of a tile without constant strides between copies: 24 copies of 4 bytes took more than 90.
COPY_ADDRESS_REGISTERS = 4.0
#: Registers per such copy without matrix instructions: with 28 sums and 7 copies beside the words of a halo, 80
#: registers spilled 44 bytes; with 64 sums and 4 copies 103 were enough.
STRIDED_WORD_REGISTERS = 2.0
#: Registers for descriptors and stages where products read shared memory in place: with 128 sums 162 to 170 in all.
DESCRIPTOR_REGISTERS = 12.0
#: Registers of a chain for the numbers of its rows and the fragments of the second operands: 80 of fragments, results
#: and sums took 123 to 128, 132 took 168.
CHAIN_REGISTERS = 14.0
#: Registers of a chain of warpgroups, likewise: with 32, 48 and 64 results beside 32 sums 107, 130 and 154 to 162.
WARPGROUP_CHAIN_REGISTERS = 6.0
#: Registers of a chain beyond which it takes more, and their share. Where parts follow each other, results of one are
#: held beside weights of another: 64 results and 128 sums took 255, 96 and 64 spilled 88 bytes or more, as did 32 and
#: 128 beside 64 of fragments.
CROWDED_CHAIN, CROWDED_SHARE = 128.0, 0.2
#: Most registers of the values of their epilogue, one for each of its instructions, and those for each tensor it reads.
MAX_EPILOGUE_REGISTERS, EPILOGUE_TENSOR_REGISTERS = 24.0, 10.0
#: Most places that a loop unrolls, and the share of them that is held beside accumulators without fragments.
MAX_COPY_ADDRESSES, HELD_ADDRESS_SHARE = 128.0, 0.6
#: Most elements in flight of a tile that is computed from several tensors, with their operands and results: 16 spilled
#: 100 bytes beside 64 sums in 128 registers, 32 spilled 156 beside 128 in 255.
MAX_COMPUTED_ELEMENTS = 32
#: Share of the vectors along the depth of staged operands that a step holds at a time: tiles of 8x8 and 4x4 results
#: just spilled in 128 and 64 registers, and 8x4 did not in 128.
HELD_DEPTH_SHARE = 0.75
#: Registers per element of register staging during the multiplication: with 64 sums in 128 registers, 8 of them spilled
#: 28 bytes, or left no choice, so that 35 of 100 multiply-adds had three operands in one bank; 4 did neither.
STAGING_ELEMENT_REGISTERS = 3.0
#: Most single elements of a fetch that a thread holds while it multiplies, and their share beside addresses: 32 of two
#: fetches and 16 sums spilled 56 to 112 bytes in 64 registers, 45 and 6 sums 104 in 80; 23 and 6 took 72.
MAX_HELD_ELEMENTS, HELD_ELEMENT_SHARE = 32, 0.5
#: Warps share a register file by fours: one for each scheduler.
WARP_ALLOCATION_UNIT = 4


@frozen
class Registers:
    """Registers of a thread: held, needed without spills, and expected."""

    held: Count
    needed: Count
    expected: Count

    def with_held(self, held: Count) -> Registers:
        """Return the registers needed beside `held` others."""
        return Registers(self.held + held, self.needed + held, self.expected + held)

    def maximum(self, other: Registers) -> Registers:
        """Return the maximum: segments run one after another."""
        pairs = ((self.held, other.held), (self.needed, other.needed), (self.expected, other.expected))
        return Registers(*(np.maximum(a, b) for a, b in pairs))


def register_limit(threads: Count, min_blocks: Count, target: Target) -> Count:
    """Return the register limit of a thread.

    `min_blocks` blocks shall be resident: the compiler obeys, or spills.
    """
    warps = ceil_div(ceil_div(threads, target.warp_size), WARP_ALLOCATION_UNIT) * WARP_ALLOCATION_UNIT
    share = target.registers_per_sm // (warps * target.warp_size * np.maximum(1, min_blocks))
    return least(np.maximum(8, share // 8 * 8), target.max_registers)


def thread_registers(
    segment: Segment,
    geometry: Geometry,
    tiles: Sequence[StagedTile],
    tensors: Mapping[str, TensorType],
    rows: Sequence[str] = (),
) -> Registers:
    """Estimate the registers of one segment.

    `rows` are the tensors whose rows earlier segments left in shared memory.
    """
    instances = product(geometry.thread) * 1.0
    if not segment.reductions:
        used = (
            BASE_REGISTERS
            - 6
            + 0.8 * least(instances, 32.0)
            + instances * max(float(_shared_values(segment)), _stencil(segment), _looked_up_words(segment, tensors))
            + _repeated_values(segment, geometry)
        )
        return Registers(8.0, used, used)
    if geometry.structure.mma:
        return _atom_registers(segment, geometry, tiles, tensors)
    held = instances * len(segment.reductions)
    fragments: Count = 0.0
    vectors: Count = 0.0
    for position, reduction in enumerate(segment.reductions):
        fragments = np.maximum(fragments, _fragments(segment, reduction, geometry, position, tensors))
        deep = _vectors_deep(reduction, geometry, position, tiles) + _rows_deep(reduction, geometry, tensors, rows)
        vectors = np.maximum(vectors, deep)
    extra: Count = 0.0
    for tile in tiles:
        extra = np.maximum(extra, np.where(tile.halo, DECODING_REGISTERS, 0.0))
        if len(reads(tile.expr)) > 1:
            extra = np.maximum(extra, 2.0 * least(ceil_div(tile.count, geometry.threads), MAX_COMPUTED_ELEMENTS))
    for tile in tiles:
        extra = extra + _staging_registers(tile, geometry) + _stride_registers(tile, geometry, tensors)
    extra = extra + column_registers(segment, geometry)
    needed = BASE_REGISTERS + held + row_registers(segment, geometry) + fragments + vectors + extra
    return Registers(instances, needed, needed + fragments)


def chain_registers(geometry: Sequence[Geometry]) -> Registers:
    """Estimate a chain in registers: fragments, results of a part, sums.

    With one part, most sums live beside packed weights only.
    """
    if len(geometry) == 2:
        return _tile_chain_registers(geometry[0], geometry[1])
    first, rows, last = geometry
    results, sums = (product(part.thread) * 1.0 for part in (first, last))
    steps = first.block_k[0] / (4.0 * ROW_LANES) if len(first.structure.staged[0]) < 2 else 1.0
    fragments = first.thread[first.structure.rows] * 2.0 * steps
    looped = np.greater(rows.trips[0], 1)
    if reads_shared_matrices(last.structure.mma):  # scores of a part beside sums and packed weights of the one before
        atom, depth = MMA_INSTRUCTIONS[last.structure.mma], prod(axis.extent for axis in last.structure.loops[0])
        packed, sums_of_parts = results * (atom.held.size / DType.F32.size), sums * (1 + (0 < atom.every < depth))
        held = np.where(looped, results + packed + sums_of_parts, np.maximum(results + packed, packed + sums_of_parts))
        needed = BASE_REGISTERS + WARPGROUP_CHAIN_REGISTERS + held
        return Registers(sums, needed, needed)
    single = np.maximum(fragments + results + sums * 0.75, results / 2 + sums)
    together = np.where(looped, fragments + results + sums, single)
    weighed = 1.6 * fragments + 2.5 * results + 0.6 * sums
    needed = BASE_REGISTERS + CHAIN_REGISTERS + together + CROWDED_SHARE * np.maximum(0.0, together - CROWDED_CHAIN)
    needed = np.where(looped, np.maximum(needed, weighed), needed)
    return Registers(sums, needed, needed)


def _tile_chain_registers(first: Geometry, last: Geometry) -> Registers:
    """Estimate a chain of two segments: results of a part, the packed rows that they become, and sums."""
    results, sums = (product(part.thread) * 1.0 * len(part.structure.reduces) for part in (first, last))
    packed = product(first.thread) / 2.0 * len(last.structure.reduces)
    needed = BASE_REGISTERS + WARPGROUP_CHAIN_REGISTERS + results + packed + sums
    return Registers(sums, needed, needed)


def _atom_registers(
    segment: Segment, geometry: Geometry, tiles: Sequence[StagedTile], tensors: Mapping[str, TensorType]
) -> Registers:
    """Estimate a segment with matrix instructions: accumulators, twice where partial sums are promoted, and the
    fragments of a warp's step: one of each part, and those that are loaded ahead, besides the sources of several parts.
    """
    work = mma_work(segment, geometry)
    promoted = product(geometry.thread) * bool(promotion_depth(segment.reductions[0], work.mma.name))
    held = product(geometry.thread) * 1.0 + promoted
    sets = work.parts + np.where(geometry.loop.prefetch, 1.0 if work.parts == 1 else 2.0, 0.0)
    fragments = sum((side.atoms * side.fragment.registers * 1.0 for side in work.sides), 0.0) * sets
    # Where fragments are loaded ahead, copies are issued between products; else while no fragments are held.
    places = least(sum((_address_registers(tile, geometry, tensors) for tile in tiles), 0.0), MAX_COPY_ADDRESSES)
    beside = np.where(geometry.loop.prefetch, 1.0, HELD_ADDRESS_SHARE) * places
    elements = sum((_element_registers(tile, geometry, tensors) for tile in tiles), 0.0)
    needed = BASE_REGISTERS + held + fragments + 2.0 * len(tiles) + beside + elements
    if work.mma.reads_shared:
        spent = 0.0 + sum(node_cost(node).issue for output in segment.outputs for node in nodes(output.body))
        read = {r.tensor for o in segment.outputs for r in reads(o.body)} - {r.name for r in segment.reductions}
        spent = min(spent, MAX_EPILOGUE_REGISTERS) + EPILOGUE_TENSOR_REGISTERS * len(read)
        addresses = np.where(geometry.loop.tma, 2.0 * len(tiles), 0.0)
        # Partial sums have ended before the epilogue.
        spent = np.maximum(0.0, spent - promoted)
        passing = _passing_registers(work, tiles, geometry)
        passing = passing + np.where(np.greater(passing, 0) & np.equal(geometry.loop.tma, 0), beside, 0.0)
        needed = needed - beside + DESCRIPTOR_REGISTERS + spent - addresses + passing
    # Of 286 kernels the occupancy is right for 256 so, for 245 with half of the fragments once more.
    return Registers(held, needed, needed)


def _passing_registers(work: MmaWork, tiles: Sequence[StagedTile], geometry: Geometry) -> Count:
    """Return the registers of elements on their way to products in place.

    They are a K block's rows that registers hold, in all parts, and its elements that threads store in shared memory.
    """
    found: Count = 0.0
    for tile in tiles if work.splitting else ():
        elements = tile.count / geometry.threads
        found = found + (elements * work.parts if tile.held else np.where(geometry.loop.tma, 0.0, elements))
    return found


def _element_registers(tile: StagedTile, geometry: Geometry, tensors: Mapping[str, TensorType]) -> Count:
    """Return the registers of single elements that threads hold while they multiply."""
    main = main_read(tile.expr)
    if tile.size >= MIN_COPY_BYTES or copied_width(main, tensors[main.tensor].steps, geometry, WORD // tile.size) > 1:
        return 0.0
    elements = tile.count / geometry.threads
    moved = np.greater(geometry.loop.stages, 1) & np.less_equal(elements, MAX_HELD_ELEMENTS)
    return np.where(moved & np.equal(geometry.loop.tma, 0), HELD_ELEMENT_SHARE * elements, 0.0)


def _address_registers(tile: StagedTile, geometry: Geometry, tensors: Mapping[str, TensorType]) -> Count:
    """Return the registers for source and destination addresses of a thread's copies of a tile: none with constant
    strides, where threads take whole rows, or parts of one, at a time, and rows and columns are one axis each.
    """
    structure, used = geometry.structure, expr_variables(tile.expr)
    main = main_read(tile.expr)
    decoded = bool(main.guards) or any(len(used.intersection(d)) > 1 for d in (*structure.dims, *structure.loops))
    together = WIDEST_BYTES // tile.size
    shape = tensors[main.tensor].steps
    width = copied_width(main, shape, geometry, together)
    cost, _ = copy_cost(tile.expr, tile, shape, geometry, together, width)
    side = structure.rows if used.intersection(structure.dims[structure.rows]) else structure.columns
    row = np.where(tile.turned, geometry.block_k[structure.reduces[0][0]], geometry.block[side])
    trip = geometry.threads * width
    even = np.logical_or(np.equal(trip % row, 0), np.equal(row % trip, 0)) & (not decoded)
    return np.where(even, 0.0, COPY_ADDRESS_REGISTERS * tile.count * cost / geometry.threads)


def _stride_registers(tile: StagedTile, geometry: Geometry, tensors: Mapping[str, TensorType]) -> Count:
    """Return the address registers of words that lie along the depth and are moved one by one, without constant strides
    between a thread's words.
    """
    main = main_read(tile.expr)
    axis, _ = running_axis(main)
    if not any(axis == loop[-1] for loop in geometry.structure.loops):
        return 0.0
    straight = np.logical_or(tile.turned, tile.halo) | steps_evenly(main, tensors[main.tensor].steps, tile, geometry)
    trips = ceil_div(tile.count, geometry.threads * register_staging_vector(tile.expr, tile, geometry))
    return np.where(straight, 0.0, STRIDED_WORD_REGISTERS * least(trips, MAX_COPY_ADDRESSES))


def _staging_registers(tile: StagedTile, geometry: Geometry) -> Count:
    """Return the registers of register staging during the multiplication of a K block."""
    width = register_staging_vector(tile.expr, tile, geometry)
    held = np.greater(width, 1) & np.greater(geometry.loop.stages, 1)
    return np.where(held, STAGING_ELEMENT_REGISTERS * ceil_div(tile.count, geometry.threads * width) * width, 0.0)


def _shared_values(segment: Segment) -> int:
    """Return how many values the outputs of an instance share: a folded transform reads a tile and holds it."""
    found = [set(loaded_values(o.body)) for o in segment.outputs]
    distinct = len(set().union(*found))
    return distinct if sum(map(len, found)) > 2 * distinct else 0


def _repeated_values(segment: Segment, geometry: Geometry) -> Count:
    """Return the registers of values that several instances of a thread need, such as those of a channel in each pixel.

    The gradient of a batch norm, 16 channels of 16 pixels a thread, took 255 registers and spilled.
    """
    instances, found = product(geometry.thread) * 1.0, dict[Expr, None]()
    pending = [(o.body, expr_variables(o.body)) for o in segment.outputs]
    while pending:
        node, every = pending.pop()
        if expr_variables(node) == every:
            pending.extend((child, every) for child in node.children)
        elif expr_variables(node):
            found[node] = None
    elements = (geometry.thread_cover.dependent(expr_variables(node)) * 1.0 for node in found)
    return sum((np.where(n < instances, n, 0.0) for n in elements), start=0.0)


def _looked_up_words(segment: Segment, tensors: Mapping[str, TensorType]) -> float:
    """Return an instance's registers for elements that exist where integers say so: all are loaded before their use."""
    found = {r for o in segment.outputs for r in reads(o.body) if any(indirects(g.index) for g in r.guards)}
    return float(sum(max(1, tensors[r.tensor].dtype.size // WORD) for r in found))


def _stencil(segment: Segment) -> float:
    """Return an instance's registers for neighbours, where a tensor is read at several places for each output: sums and
    elements that the compiler loads early, and the addresses of clamped indices.
    """
    most = 0.0
    for output in segment.outputs:
        found = reads(output.body)
        straight = all(is_affine(i) for r in found for i in r.indices)
        neighbours = len(found) - len({r.tensor for r in found})
        most = max(most, neighbours * (NEIGHBOUR_REGISTERS if straight else CLAMPED_NEIGHBOUR_REGISTERS))
    return most


def _fragments(
    segment: Segment, reduction: Reduction, geometry: Geometry, position: int, tensors: Mapping[str, TensorType]
) -> Count:
    """Return the registers of one step of a reduction besides accumulators: the elements of each operand, guards and
    indices.
    """
    instances = product(geometry.thread) * 1.0
    parts = operands(reduction, [r.name for r in segment.reductions])
    total: Count = 0.0
    for number, part in enumerate(parts):
        used = expr_variables(part)
        elements = geometry.thread_cover.dependent(used) * 1.0
        passing = np.logical_or(elements >= instances, len(parts) == 1)
        staged = number in geometry.structure.staged[position]
        narrow = not staged and dtype_of(part, tensors).size < WORD
        once = (
            np.maximum(least(elements, MAX_TRANSIENT_ELEMENTS), CONVERTED_SHARE * elements)
            if narrow
            else least(elements, MAX_TRANSIENT_ELEMENTS)
        )
        total = total + np.where(passing, once, elements)
        if staged:
            continue
        if any(r.guards for r in reads(part)):
            total = total + 0.5 * least(elements, 32.0)
        if any(len(geometry.structure.loops[k]) > 1 and used.intersection(geometry.structure.loops[k][:-1])
               for k in geometry.structure.reduces[position]):  # fmt: skip
            total = total + DECODING_REGISTERS / len(parts)
    return total


def _vectors_deep(reduction: Reduction, geometry: Geometry, position: int, tiles: Sequence[StagedTile]) -> Count:
    """Return the registers of one step besides an element of each row, where threads load vectors along the depth of
    transposed tiles.
    """
    found: Count = 0.0
    for tile in (t for t in tiles if t.reduction == position):
        elements = geometry.thread_cover.dependent(expr_variables(tile.expr)) * 1.0
        more = np.maximum(0.0, HELD_DEPTH_SHARE * held_deep(tile.expr, tile, geometry) - 1.0)
        found = found + np.where(tile.turned, elements * more, 0.0)
    return found


def _rows_deep(
    reduction: Reduction, geometry: Geometry, tensors: Mapping[str, TensorType], rows: Sequence[str]
) -> Count:
    """Return the registers of one step besides an element of each row that an earlier segment left, where threads load
    vectors along the row.
    """
    found: Count = 0.0
    for read in reads(reduction.body):
        if (
            read.tensor in rows
            and not geometry.structure.reduction_threads
            and read.indices
            and read.indices[-1] in map(as_index, reduction.reduce)
        ):
            elements = geometry.thread_cover.dependent(expr_variables(read)) * 1.0
            found = found + elements * (HELD_DEPTH_SHARE * (WIDEST_BYTES // tensors[read.tensor].dtype.size) - 1.0)
    return found
