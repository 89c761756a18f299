"""Matrix-instruction reductions: operands, and the fragment elements of each lane.

An instruction multiplies matrices whose rows, columns and depth may be any of the block's, as long as its operands
agree. The rows of C lie along one tile dim and its columns along another, as `TileDim` spreads elements over threads:
lanes of a warp along it, then warps, then a thread's own runs of neighbours. So accumulators are registers like any
other, and the epilogue does not depend on the instruction. Only A and B are divided otherwise: a lane loads the
elements of its fragment registers, and `MmaAccumulate` names the variables that number those.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from attrs import frozen

from ....ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    ELEMENT,
    HALF_BYTES,
    LANE,
    MATH_MODES,
    MMA_INSTRUCTIONS,
    WARPGROUP,
    DType,
    Index,
    IndexLike,
    MatrixFragment,
    MmaAccumulate,
    MmaInstruction,
    Op,
    Reduction,
    ReductionSchedule,
    Share,
    TileDim,
    Value,
    Var,
    as_index,
    substitute,
)
from ...geometry import held_lane, interleaved_instructions, lanes_along, reads_shared_matrices, runs


@frozen
class WarpFrame:
    """A warp in a block.

    `lane` numbers its threads, `warps` gives its coordinate along each tile dim, `part` numbers the warps of a warp
    split-K, `ordered` is the tile dim of rows in the order of a warpgroup's instruction.
    """

    lane: Var
    warps: tuple[Var, ...]
    part: Var
    ordered: int = -1


def thread_places(
    loop: ReductionSchedule, dims: Sequence[TileDim], lane: Index, warps: Sequence[Index]
) -> tuple[Index, ...]:
    """Return a thread's coordinate along each tile dim.

    Lanes lie over rows and columns as over those of an instruction's C.
    """
    inside = {loop.rows: _lane_row(loop, dims, lane), loop.columns: lane % ACCUMULATOR_THREADS[1]}
    return tuple(
        warp * lanes_along(loop.rows, loop.columns, d) + inside.get(d, Index()) for d, warp in enumerate(warps)
    )


def _lane_row(loop: ReductionSchedule, dims: Sequence[TileDim], lane: Index) -> Index:
    """Return the place of a lane along the rows of a warp."""
    row, vector = lane // ACCUMULATOR_THREADS[1], dims[loop.rows].vector
    wide = reads_shared_matrices(loop.mma) and MMA_INSTRUCTIONS[loop.mma].held.size > HALF_BYTES
    return held_lane(row, vector) if wide and vector > 1 else row


@frozen
class _Side:
    """One side of a matrix instruction: rows with A, or columns with B.

    `dim` is the tile dim, `local` its block-local variable, `warp` the warp's coordinate along it. `outer` and `inner`
    number the instructions of a thread along it: the inner ones share a vector of the dim, or else a warp may load
    their fragments together. The choice of rows and columns is free, as long as the operands agree: a vector of a
    lane's elements of one instruction makes these neighbours, a longer one interleaves several instructions.
    """

    kind: MmaInstruction
    operand: str
    axis: int
    dim: TileDim
    local: Var
    warp: Index
    outer: Var
    inner: Var

    @property
    def run(self) -> int:
        """Elements that a lane holds of an instruction along the side."""
        return runs(self.kind)[self.axis]

    @property
    def mixed(self) -> int:
        """Instructions whose elements interleave."""
        return interleaved_instructions(self.dim.vector, self.run)

    @property
    def atom(self) -> Index:
        """The number of the instruction within a thread."""
        return as_index(self.outer) * self.inner.extent + self.inner

    def place(self, position: Index) -> Index:
        """Return the element of the block at a position of the instruction."""
        neighbours, vector = ACCUMULATOR_VECTOR[self.axis], self.dim.vector
        along = ACCUMULATOR_THREADS[self.axis] * neighbours
        inside, place = (
            self.warp * ACCUMULATOR_THREADS[self.axis] + position % along // neighbours,
            position % neighbours,
        )
        part = position // along
        if vector < self.run:
            group, within = self.atom * (self.run // neighbours) + part, place
        else:
            group = as_index(self.outer if self.mixed > 1 else self.atom)
            within = (part * neighbours + place) * self.mixed + (self.inner if self.mixed > 1 else 0)
        return group * (self.dim.threads * vector) + inside * vector + within

    @property
    def first(self) -> Index:
        """First register of a thread's part of C of an instruction."""
        if self.mixed == 1:
            return self.atom * self.run
        return as_index(self.outer) * (self.run * self.mixed) + self.inner


@frozen
class MmaLoop:
    """Matrix-instruction work of one K block, or of one step of it.

    It has the shares of the three operands, a thread's variables in loop order, and the variables that number the
    registers of A and of B, and the elements in a register of A and of B. `shapes` are the registers of a thread for
    all its fragments of A, and of B.
    """

    shares: tuple[Share, ...]
    unrolled: tuple[Var, ...]
    axes: tuple[Var, ...]
    shapes: tuple[tuple[int, int], ...]
    mixed: tuple[int, ...]


def mma_loop(
    loop: ReductionSchedule,
    dims: Sequence[TileDim],
    tiles: Sequence[Var],
    depth: Var,
    frame: WarpFrame,
    prefix: str,
    at: int | None = None,
) -> MmaLoop:
    """Return the shares of a K block, or of its step `at`.

    `tiles` are the block-local variables of the tile dims, `depth` that of the reduced dim.
    """
    atom, parts = MMA_INSTRUCTIONS[loop.mma], frame.part.extent
    if atom.reads_shared:
        return _warpgroup_loop(loop, dims, tiles, depth, frame, prefix, at)
    step = Var(f"{prefix}step", depth.extent // (atom.k * parts))
    place = (as_index(step) if at is None else Index(at)) * parts + frame.part
    shares: list[Share] = [Share(depth, Index(), as_index(step) if at is None else Index(), (), "c")]
    unrolled, registers, elements = [step] if at is None else [], [], []
    sides = [_matrix_side(operand, axis, loop, dims, tiles, frame, prefix) for axis, operand in enumerate("ab")]
    for side, fragment in zip(sides, (atom.a, atom.b), strict=True):
        register = Var(f"{prefix}{side.operand}r", fragment.registers)
        element = Var(f"{prefix}{side.operand}e", fragment.packed)
        along, deep = _element_place(fragment, side.axis, frame.lane, as_index(register) * fragment.packed + element)
        shares += [
            Share(side.local, side.place(along), side.atom, (), side.operand),
            Share(depth, place * atom.k + deep, as_index(register), (), side.operand),
            Share(side.local, Index(), side.first, (), "c"),
        ]
        registers.append(register)
        elements.append(element)
        unrolled += [side.outer, side.inner, register, element]
    shapes = tuple((s.outer.extent * s.inner.extent, r.extent) for s, r in zip(sides, registers, strict=True))
    return MmaLoop(tuple(shares), tuple(unrolled), (*registers, *elements), shapes, tuple(side.mixed for side in sides))


def _warpgroup_loop(
    loop: ReductionSchedule,
    dims: Sequence[TileDim],
    tiles: Sequence[Var],
    depth: Var,
    frame: WarpFrame,
    prefix: str,
    at: int | None,
) -> MmaLoop:
    """Return the shares of a K block, or of its step `at`, whose operands are read in place.

    Those of A and B give the element that the matrix of an instruction begins with, or the number of the instruction
    whose rows registers hold; the columns of a warpgroup are one instruction.
    """
    atom, rows = MMA_INSTRUCTIONS[loop.mma], dims[loop.rows]
    run = runs(atom)[0]
    mixed = interleaved_instructions(rows.vector, run)
    step, number = Var(f"{prefix}step", depth.extent // atom.k), Var(f"{prefix}an", rows.thread // run)
    place = as_index(step) if at is None else Index(at)
    neighbours = WARPGROUP * ACCUMULATOR_THREADS[0] * (run if frame.ordered == loop.rows else rows.vector)
    group = as_index(frame.warps[loop.rows]) // WARPGROUP * neighbours
    first = as_index(number) // mixed * (run * mixed) + as_index(number) % mixed
    deep = place * atom.k
    shares = (
        Share(depth, Index(), place, (), "c"),
        Share(tiles[loop.rows], first * rows.threads + group, as_index(number), (), "a"),
        Share(depth, deep, Index(), (), "a"),
        Share(tiles[loop.columns], Index(), Index(), (), "b"),
        Share(depth, deep, Index(), (), "b"),
        Share(tiles[loop.rows], Index(), first, (), "c"),
        Share(tiles[loop.columns], Index(), Index(), (), "c"),
    )
    return MmaLoop(shares, (number,) if at is not None else (step, number), (), (), (mixed, 1))


def held_rows_loop(
    loop: ReductionSchedule,
    dims: Sequence[TileDim],
    tiles: Sequence[Var],
    depth: Var,
    frame: WarpFrame,
    prefix: str,
    at: int,
) -> MmaLoop:
    """Return the shares of a step's rows that lie in registers.

    Neighbouring rows of a lane are the innermost ones of a loop, so that a vector of them is one load. An instruction
    holds pairs of rows for each place along the depth.
    """
    atom, dim, local = MMA_INSTRUCTIONS[loop.mma], dims[loop.rows], tiles[loop.rows]
    fragment, run = atom.held_a, runs(atom)[0]
    assert fragment is not None, "an instruction of a warpgroup"
    outer, inner = Var(f"{prefix}an", dim.thread // dim.vector), Var(f"{prefix}am", dim.vector)
    register, element = Var(f"{prefix}ar", fragment.registers // run), Var(f"{prefix}ae", fragment.packed)
    _, deep = _element_place(fragment, 0, frame.lane, as_index(register) * (run * fragment.packed) + element)
    thread = as_index(frame.warps[loop.rows]) * ACCUMULATOR_THREADS[0] + _lane_row(loop, dims, as_index(frame.lane))
    row, mixed = as_index(outer) * dim.vector + inner, interleaved_instructions(dim.vector, run)
    group, within = row // (run * mixed), row % (run * mixed)
    shares = (
        Share(
            local,
            as_index(outer) * (dim.threads * dim.vector) + thread * dim.vector + inner,
            group * mixed + within % mixed,
            (),
            "a",
        ),
        Share(depth, Index(at * atom.k) + deep, as_index(register) * run + within // mixed, (), "a"),
    )
    shape = dim.thread // run, fragment.registers
    return MmaLoop(shares, (outer, register, inner, element), (register, element), (shape,), (mixed, 1))


#: Most fragment registers that a warp loads together (`ldmatrix` brings four matrices).
_MAX_LOADED_REGISTERS = 4


def _matrix_side(
    operand: str,
    axis: int,
    loop: ReductionSchedule,
    dims: Sequence[TileDim],
    tiles: Sequence[Var],
    frame: WarpFrame,
    prefix: str,
) -> _Side:
    d, atom = (loop.rows, loop.columns)[axis], MMA_INSTRUCTIONS[loop.mma]
    run = runs(atom)[axis]
    atoms, mixed = dims[d].thread // run, interleaved_instructions(dims[d].vector, run)
    fragment = (atom.a, atom.b)[axis]
    together = mixed if mixed > 1 else gcd(atoms, max(1, _MAX_LOADED_REGISTERS // fragment.registers))
    outer, inner = Var(f"{prefix}{operand}n", atoms // together), Var(f"{prefix}{operand}m", together)
    return _Side(atom, operand, axis, dims[d], tiles[d], as_index(frame.warps[d]), outer, inner)


def held_register(element: Index, threads: int, vector: int) -> Index:
    """Return the register of an element of a tile dim."""
    return element // (threads * vector) * vector + element % vector


def _element_place(fragment: MatrixFragment, axis: int, lane: Var, element: Index) -> tuple[Index, Index]:
    """Return the place of a lane's element along its side, and along the depth."""
    at: dict[Var, IndexLike] = {LANE: lane, ELEMENT: element}
    row, column = substitute(fragment.row, at), substitute(fragment.column, at)
    return (column, row) if axis else (row, column)


def products(
    reduction: Reduction,
    loop: ReductionSchedule,
    name: str,
    at: tuple[Index, ...],
    operands: tuple[Value, Value],
    over: Var,
    shared: MmaLoop,
    lane: Var,
) -> list[MmaAccumulate]:
    """Return the multiplications of one K block, into registers `name`.

    They follow the order of the reduction's math mode, which splits an operand in registers into several parts, or into
    one.
    """
    mode, atom = MATH_MODES.get(reduction.math), MMA_INSTRUCTIONS[loop.mma]
    pairs = [operands]
    if mode is not None and len(mode.parts) > 1 and not atom.reads_shared:
        split = [[Op(fn, (value,), DType.F32) for fn in mode.parts] for value in operands]
        pairs = [(split[0][i], split[1][j]) for i, j in mode.products]
    return [
        MmaAccumulate(
            name,
            at,
            atom.name,
            a,
            b,
            (over,),
            atom.accumulator,
            loop.rows,
            loop.columns,
            shared.axes,
            lane,
            shared.mixed,
        )
        for a, b in pairs
    ]
