"""Fragments that a warp loads from shared memory together.

The address of a register, as a function of the lane, decides whether the register is an element of a matrix of
`ldmatrix`, and where the row of a lane lies (`ir.machine.instructions.MatrixLoadInstruction`):

    %0: f16 = load shared s[64*(lane//4) + 2*(lane%4) + e]      ->      %1: u32 = ldmatrix_x1 s[64*(lane%8)]
    %1: u32 = pack %0 over e
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ...ir import (
    MATRIX_ROWS,
    MATRIX_WORDS,
    ROW_BYTES,
    DfgNode,
    DType,
    Index,
    IndexLike,
    LdMatrix,
    Load,
    MmaAccumulate,
    Pack,
    Phase,
    RegisterWrite,
    Var,
    as_index,
    delinearise,
    matrix_load_row,
    own_variables,
    substitute,
)


def select_matrix_load(
    node: Pack | Load, rest: Sequence[Var], phase: Phase, users: Mapping[DfgNode, Sequence[DfgNode]]
) -> LdMatrix | None:
    """Return a warp's load of fragments; None where it cannot.

    Registers along a further variable of `rest` are loaded together where these are one, two or four matrices.
    """
    found = _fragment(node, phase, users.get(node, ()))
    if found is None:
        return None
    registers, lane = found
    over = {v for r in phase.roots if isinstance(r, MmaAccumulate) for v in r.over}
    others = [(v, registers) for v in reversed(rest) if v != registers and v not in over]
    loads = (_matrix_load(node, axes, lane) for axes in (*others, (registers,)))
    return next((load for load in loads if load is not None), None)


def _fragment(node: Pack | Load, phase: Phase, users: Sequence[DfgNode]) -> tuple[Var, Var] | None:
    """Return the variable that numbers the registers of a value's fragment, and that of the lanes."""
    for user in users:
        if isinstance(user, RegisterWrite) and user.lane:
            return user.axes[0], user.lane
        if isinstance(user, MmaAccumulate) and user.lane:
            return user.axes[0] if user.a == node else user.axes[1], user.lane
    multiplying = (r for r in phase.roots if isinstance(r, (MmaAccumulate, RegisterWrite)))
    lanes = {v: r.lane for r in multiplying for v in r.axes if r.lane}
    return next(((v, lanes[v]) for v in own_variables(node) if v in lanes), None)


def _matrix_load(node: Pack | Load, axes: Sequence[Var], lane: Var) -> LdMatrix | None:
    """Return the load that fills the registers numbered by `axes` at once.

    None where they do not form one, two or four matrices.
    """
    load = node.arg if isinstance(node, Pack) else node
    count = prod(v.extent for v in axes)
    if not isinstance(load, Load) or load.space != "shared" or load.guards or count not in (1, 2, 4):
        return None
    element = node.axis if isinstance(node, Pack) else Var("whole", 1)
    if element.extent * load.dtype.size != ROW_BYTES // MATRIX_WORDS:
        return None
    row, place = Var("matrix_row", MATRIX_ROWS), Var("matrix_word", MATRIX_WORDS)
    spread = substitute(load.address, {lane: as_index(row) * MATRIX_WORDS + place})
    inside, matrix = as_index(lane) % MATRIX_ROWS, as_index(lane) // MATRIX_ROWS % count
    first: dict[Var, IndexLike] = dict(zip(axes, delinearise(matrix, [v.extent for v in axes]), strict=True))
    if spread - substitute(spread, {place: 0, element: 0}) == as_index(place) * element.extent + element:
        first |= {lane: inside * MATRIX_WORDS, element: 0}
        transposed = False
    elif load.dtype.size == 2 and spread - substitute(spread, {row: 0}) == as_index(row):
        first |= {lane: inside // 2, element: inside % 2}
        transposed = True
    else:
        return None
    start: Index = substitute(load.address, first)
    whole = ROW_BYTES // load.dtype.size
    if start.const % whole or any(factor % whole for _, factor in start.terms):
        return None
    dtype = DType.U32 if isinstance(node, Pack) else load.dtype
    return LdMatrix(matrix_load_row(count, transposed, dtype).name, load.buffer, start, tuple(axes), dtype)
