"""Fragments of half types that a warp loads from shared memory together: `ldmatrix`, eight rows of 16 bytes a matrix.

Each lane names a row, 16 bytes at any aligned address, and gets elements of all of them. Lane `t` receives elements
2*(t%4) and 2*(t%4)+1 of row t//4 of each matrix, or, transposed, element t//4 of rows 2*(t%4) and 2*(t%4)+1. So what a
register's address is as a function of the lane tells whether it is an element of such a matrix, and where its row lies
(PTX ISA, "Warp-level matrix load instruction: ldmatrix").
"""

from __future__ import annotations

from attrs import frozen

from ...ir import Index, IndexLike, Load, Pack, Var, as_index, substitute

#: Elements of a row, and rows of a matrix.
ROW = 8


@frozen
class MatrixLoad:
    """Where a lane's row lies in a shared buffer, and whether the matrix is loaded transposed."""

    buffer: str
    row: Index
    transposed: bool


def matrix_load(node: Pack, registers: Var, lane: Var) -> MatrixLoad | None:
    """Return the load that fills the `registers` of a fragment at once, None where its elements form no matrices."""
    load, element = node.arg, node.axis
    if not isinstance(load, Load) or load.space != "shared" or load.guards or load.dtype.size != 2:
        return None
    if element.extent != 2 or registers.extent not in (1, 2, 4):
        return None
    row, place = Var("matrix_row", ROW), Var("matrix_pair", ROW // 2)
    spread = substitute(load.address, {lane: as_index(row) * 4 + place})
    matrix = as_index(lane) // ROW % registers.extent
    inside = as_index(lane) % ROW
    first: dict[Var, IndexLike]
    if spread - substitute(spread, {place: 0, element: 0}) == as_index(place) * 2 + element:
        first, transposed = {lane: inside * 4, element: 0, registers: matrix}, False
    elif spread - substitute(spread, {row: 0}) == as_index(row):
        first, transposed = {lane: inside // 2, element: inside % 2, registers: matrix}, True
    else:
        return None
    start = substitute(load.address, first)
    if start.const % ROW or any(factor % ROW for _, factor in start.terms):
        return None
    return MatrixLoad(load.buffer, start, transposed)


def matrix_helpers(qualifier: str) -> dict[str, str]:
    """Return the helpers of CUDA C++ by name: one, two or four matrices, as they lie or transposed."""
    found = {}
    for count in (1, 2, 4):
        names = [f"d{n}" for n in range(count)]
        listed = ", ".join(f"%{n}" for n in range(count))
        out = ", ".join(f'"=r"({d})' for d in names)
        for suffix, word in (("", ""), ("_turned", ".trans")):
            name = f"cuts_matrix{count}{suffix}"
            text = f"ldmatrix.sync.aligned.m8n8.x{count}{word}.shared.b16 {{{listed}}}, [%{count}];"
            found[name] = (
                f"{qualifier} void {name}({', '.join(f'unsigned& {d}' for d in names)}, const void* p) {{ "
                f'asm volatile("{text}" : {out} : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory"); }}'
            )
    return found
