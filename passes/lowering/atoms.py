"""Reductions that atoms compute: which factor is which operand, and which elements a lane holds of each.

An atom multiplies matrices whose rows, columns and depth may be any of the block's, as long as its operands agree. The
rows of C lie along one tile dim and its columns along another, as `TileDim` spreads elements over threads: lanes of a
warp along it, then warps, then a thread's own runs of neighbours. So accumulators are registers like any other, and
what follows a reduction knows nothing of atoms. Only A and B are shared otherwise: a lane loads what its registers of a
fragment hold, and `AtomAccumulate` says which variables number those.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import frozen

from ...ir import (
    ELEMENT,
    LANE,
    LANES,
    MATH_MODES,
    MATRIX_ATOMS,
    NEIGHBOURS,
    THREADS,
    AtomAccumulate,
    DType,
    Expr,
    Index,
    IndexLike,
    MatrixAtom,
    MatrixFragment,
    Op,
    Reduction,
    ReductionSchedule,
    Share,
    TileDim,
    Value,
    Var,
    as_index,
    expr_variables,
    factors,
    narrow,
    substitute,
)


def atom_operands(reduction: Reduction, rows: Sequence[Var], columns: Sequence[Var]) -> tuple[Expr, Expr] | None:
    """Return the factors of a sum of products that are A and B, None where there are no two such: A varies along the
    rows and not along the columns, B along the columns and not along the rows.
    """
    parts = tuple(map(narrow, factors(reduction.body)))
    if reduction.combine != "sum" or len(parts) != 2:
        return None
    for a, b in (parts, parts[::-1]):
        of_a, of_b = expr_variables(a), expr_variables(b)
        if of_a.intersection(rows) and of_b.intersection(columns):
            return None if of_a.intersection(columns) or of_b.intersection(rows) else (a, b)
    return None


@frozen
class AtomFrame:
    """A warp in a block: `lane` numbers its threads, `warps` gives its coordinate along each tile dim."""

    lane: Var
    warps: tuple[Var, ...]


def thread_places(loop: ReductionSchedule, lane: Index, warps: Sequence[Index]) -> tuple[Index, ...]:
    """Return a thread's coordinate along each tile dim: lanes lie over rows and columns as over those of an atom's
    C.
    """
    inside = {loop.rows: lane // THREADS[1], loop.columns: lane % THREADS[1]}
    return tuple(
        warp * lanes_along(loop.rows, loop.columns, d) + inside.get(d, Index()) for d, warp in enumerate(warps)
    )


def lanes_along(rows: int, columns: int, dim: int) -> int:
    """Return how many lanes of a warp lie along a tile dim, given those of an atom's rows and columns."""
    return THREADS[0] if dim == rows else THREADS[1] if dim == columns else 1


def runs(atom: MatrixAtom) -> tuple[int, int]:
    """Return the elements that a lane holds of a fragment of C, along the rows and along the columns."""
    return atom.m // THREADS[0], atom.n // THREADS[1]


@frozen
class _Side:
    """One side of an atom: rows with A, or columns with B.

    `dim` is the tile dim, `local` its block-local variable, `warp` the warp's coordinate along it, `atoms` numbers the
    atoms of a thread along it.
    """

    operand: str
    axis: int
    dim: TileDim
    local: Var
    warp: Index
    atoms: Var

    def place(self, run: int, position: Index) -> Index:
        """Return the element of the block at a position of the side's atom."""
        neighbours = NEIGHBOURS[self.axis]
        along = THREADS[self.axis] * neighbours
        group = as_index(self.atoms) * (run // neighbours) + position // along
        return group * (self.dim.threads * neighbours) + self.warp * along + position % along


@frozen
class AtomLoop:
    """Everything of one chunk of a reduction that atoms compute: the shares of the three operands, a thread's variables
    in loop order, and those that number the registers of A and of B, and the elements in a register of A and of B.
    """

    shares: tuple[Share, ...]
    unrolled: tuple[Var, ...]
    axes: tuple[Var, ...]


def atom_loop(
    loop: ReductionSchedule, dims: Sequence[TileDim], tiles: Sequence[Var], depth: Var, frame: AtomFrame, prefix: str
) -> AtomLoop:
    """Return the shares of a chunk; `tiles` are the block-local variables of the tile dims, `depth` that of the reduced
    dim.
    """
    atom = MATRIX_ATOMS[loop.atom]
    step = Var(f"{prefix}step", depth.extent // atom.k)
    shares: list[Share] = [Share(depth, Index(), as_index(step), (), "c")]
    unrolled, registers, elements = [step], [], []
    sides = [_side(operand, axis, loop, dims, tiles, frame, prefix) for axis, operand in enumerate("ab")]
    for side, fragment in zip(sides, (atom.a, atom.b), strict=True):
        run = runs(atom)[side.axis]
        register = Var(f"{prefix}{side.operand}r", fragment.registers)
        element = Var(f"{prefix}{side.operand}e", fragment.packed)
        along, deep = _places(fragment, side.axis, frame.lane, as_index(register) * fragment.packed + element)
        shares += [
            Share(side.local, side.place(run, along), Index(), (), side.operand),
            Share(depth, as_index(step) * atom.k + deep, Index(), (), side.operand),
            Share(side.local, Index(), as_index(side.atoms) * run, (), "c"),
        ]
        registers.append(register)
        elements.append(element)
        unrolled += [side.atoms, register, element]
    return AtomLoop(tuple(shares), tuple(unrolled), (*registers, *elements))


def _side(
    operand: str,
    axis: int,
    loop: ReductionSchedule,
    dims: Sequence[TileDim],
    tiles: Sequence[Var],
    frame: AtomFrame,
    prefix: str,
) -> _Side:
    d = (loop.rows, loop.columns)[axis]
    atoms = Var(f"{prefix}{operand}n", dims[d].thread // runs(MATRIX_ATOMS[loop.atom])[axis])
    return _Side(operand, axis, dims[d], tiles[d], as_index(frame.warps[d]), atoms)


def _places(fragment: MatrixFragment, axis: int, lane: Var, element: Index) -> tuple[Index, Index]:
    """Return where an element of a lane lies along its side, and along the depth."""
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
    axes: tuple[Var, ...],
    lane: Var,
) -> list[AtomAccumulate]:
    """Return the multiplications of one chunk in the order of the reduction's math mode, into the registers called
    `name`.
    """
    mode, atom = MATH_MODES.get(reduction.math), MATRIX_ATOMS[loop.atom]
    pairs = [operands]
    if mode is not None:
        split = [[Op(fn, (value,), DType.F32) for fn in mode.parts] for value in operands]
        pairs = [(split[0][i], split[1][j]) for i, j in mode.products]
    return [
        AtomAccumulate(name, at, atom.name, a, b, (over,), atom.accumulator, loop.rows, loop.columns, axes, lane)
        for a, b in pairs
    ]


def atom_faults(loop: ReductionSchedule, dims: Sequence[TileDim], threads: int) -> list[str]:
    """Return why a thread distribution cannot hold an atom's fragments; nothing where it can."""
    atom, found = MATRIX_ATOMS[loop.atom], []
    if loop.rows == loop.columns or not {loop.rows, loop.columns} <= set(range(len(dims))):
        return [f"atom {atom.name}: rows and columns must lie along two of the {len(dims)} tile dims"]
    for d, dim in enumerate(dims):
        axis = {loop.rows: 0, loop.columns: 1}.get(d)
        if axis is None:
            if dim.block != 1:
                found.append(f"atom {atom.name}: a tile dim without rows or columns has blocks of 1, not {dim.block}")
            continue
        run = runs(atom)[axis]
        if dim.threads % THREADS[axis] or dim.vector != NEIGHBOURS[axis] or dim.thread % run:
            side = ("rows", "columns")[axis]
            found.append(
                f"atom {atom.name}: its {side} need a multiple of {THREADS[axis]} threads that hold a multiple of "
                f"{run} elements each, vectors of {NEIGHBOURS[axis]}"
            )
    if threads != prod(d.threads for d in dims) or threads % LANES:
        found.append(f"atom {atom.name}: all threads of the block take part, in whole warps")
    if len(loop.dims) != 1 or loop.dims[0].chunk % atom.k:
        found.append(f"atom {atom.name}: one reduced dim, in chunks of a multiple of {atom.k}")
    return found
