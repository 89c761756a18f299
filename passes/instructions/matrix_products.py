"""Matrix instructions over the registers of a thread.

    multiply t[0, 2*j]: f32 by m16n8k8_tf32 columns 1 of %0 and %1  ->  mma m16n8k8_tf32 a[2*j, 2*j + 1, ..] = %0 * %1

The registers of a fragment of C are a lane's own runs of adjacent elements, as those of tile dims.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    ELEMENT,
    LANE,
    MMA_INSTRUCTIONS,
    Commit,
    Index,
    Load,
    Loop,
    Mma,
    MmaAccumulate,
    MmaInstruction,
    Phase,
    Wait,
    WarpgroupMma,
    evaluate,
    linearise,
    phases,
    post_order,
    primary_index,
    row_major,
    variables,
)

#: Iterations above which a loop of matrix instructions is unrolled by two: with 128 iterations TF32 gains 3 to 5 %;
#: with 64 bf16 and f16 lose 0.5 %, and some convolutions with fewer spill registers.
MIN_UNROLLED_ITERATIONS = 96
#: Unroll factors of loops that data end, and of trips over rows in shared memory: norms gain 2 to 4 %, four no more.
DATA_LOOP_UNROLL, CACHED_ROW_UNROLL = 4, 2


def select_mma(node: MmaAccumulate, shape: tuple[int, ...]) -> Mma | WarpgroupMma:
    """Return the instruction of a product, whose registers have a shape."""
    row = MMA_INSTRUCTIONS[node.mma]
    if row.reads_shared:
        return _select_warpgroup_mma(node, shape)
    a, b = node.axes[:2]
    results = tuple(linearise(at, row_major(shape)) for at in _fragment_places(node, row))
    return Mma(row.name, node.name, results, node.a, node.b, (a, b), node.over, node.dtype)


def _select_warpgroup_mma(node: MmaAccumulate, shape: tuple[int, ...]) -> WarpgroupMma:
    """Return the instruction of a warpgroup, which multiplies all columns that a thread holds."""
    lower = tuple(at + node.mixed[0] if d == node.rows else at for d, at in enumerate(node.at))
    upper, below = (linearise(at, row_major(shape)) for at in (node.at, lower))
    columns = shape[node.columns] * ACCUMULATOR_THREADS[1]
    pitch = row_major(shape)[node.columns]
    operands = node.a, node.b, node.over, node.dtype
    return WarpgroupMma(node.mma, node.name, columns, upper, below, *operands, pitch, node.begins)


def _fragment_places(node: MmaAccumulate, row: MmaInstruction) -> Iterator[tuple[Index, ...]]:
    """Yield the place of each element of a thread's C fragment; those of other instructions may lie between them."""
    for element in range(row.c.size):
        place = {LANE: 0, ELEMENT: element}
        at = list(node.at)
        for axis, (d, index) in enumerate(((node.rows, row.c.row), (node.columns, row.c.column))):
            position = evaluate(index, place)
            along = ACCUMULATOR_THREADS[axis] * ACCUMULATOR_VECTOR[axis]
            number = position // along * ACCUMULATOR_VECTOR[axis] + position % ACCUMULATOR_VECTOR[axis]
            at[d] = at[d] + number * node.mixed[axis]
        yield tuple(at)


def unroll_factor(loop: Loop) -> int:
    """Return the unroll factor of a loop over K blocks.

    It is two where the loop has many matrix instructions, and copies without division by the iteration. Loops that data
    end for each thread load the terms of several iterations at once. So do trips over rows in shared memory.
    """
    found = [node for phase in phases(loop.body) for node in post_order(phase.roots)]
    multiplies = any(isinstance(node, MmaAccumulate) for node in found)
    if loop.until is not None and not multiplies and all(isinstance(item, Phase) for item in loop.body):
        return min(DATA_LOOP_UNROLL, loop.var.extent)
    loads = [node for node in found if isinstance(node, Load)]
    plain = all(isinstance(item, (Commit, Wait, Phase)) for item in loop.body)
    alone = plain and not any(phase.asynchronous for phase in phases(loop.body))
    if alone and not multiplies and any(node.space == "shared" for node in loads):
        return min(CACHED_ROW_UNROLL, loop.var.extent)
    copied = [node.address for node in loads if node.space == "global"]
    decoded = any(loop.var in variables(primary_index(p)) for a in copied for p, _ in a.terms if p != loop.var)
    even = loop.until is None and loop.var.extent >= MIN_UNROLLED_ITERATIONS and loop.var.extent % 2 == 0
    return 2 if multiplies and even and not decoded else 1
