"""Fragments that a warp loads from shared memory together (`ldmatrix`).

A matrix has eight rows of 16 bytes. Each lane names a row, 16 bytes at any aligned address, and gets elements of all of
them. Lane `t` receives the 32 bits at place t%4 of row t//4 of each matrix, or, transposed, halves t//4 of rows 2*(t%4)
and 2*(t%4)+1. So a register's address as a function of the lane decides whether it is an element of such a matrix, and
where its row lies (PTX ISA, "Warp-level matrix load instruction: ldmatrix").
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import frozen

from ...ir import Index, IndexLike, Load, Pack, Var, as_index, delinearise, substitute

#: Rows of a matrix, registers of 32 bits in a row, and bytes of a row.
ROWS, WORDS, ROW_BYTES = 8, 4, 16


@frozen
class MatrixLoad:
    """Address of a lane's row in a shared buffer, and transposition.

    `axes` number the matrices, the last one fastest.
    """

    buffer: str
    row: Index
    transposed: bool
    axes: tuple[Var, ...]


def matrix_load(node: Pack | Load, axes: Sequence[Var], lane: Var) -> MatrixLoad | None:
    """Return the load that fills the registers numbered by `axes` at once.

    None where they do not form one, two or four matrices.
    """
    load = node.arg if isinstance(node, Pack) else node
    if (
        not isinstance(load, Load)
        or load.space != "shared"
        or load.guards
        or prod(v.extent for v in axes) not in (1, 2, 4)
    ):
        return None
    element = node.axis if isinstance(node, Pack) else Var("whole", 1)
    if element.extent * load.dtype.size != ROW_BYTES // WORDS:
        return None
    row, place = Var("matrix_row", ROWS), Var("matrix_word", WORDS)
    spread = substitute(load.address, {lane: as_index(row) * WORDS + place})
    inside = as_index(lane) % ROWS
    first: dict[Var, IndexLike] = dict(
        zip(
            axes,
            delinearise(as_index(lane) // ROWS % prod(v.extent for v in axes), [v.extent for v in axes]),
            strict=True,
        )
    )
    if spread - substitute(spread, {place: 0, element: 0}) == as_index(place) * element.extent + element:
        first |= {lane: inside * WORDS, element: 0}
        transposed = False
    elif load.dtype.size == 2 and spread - substitute(spread, {row: 0}) == as_index(row):
        first |= {lane: inside // 2, element: inside % 2}
        transposed = True
    else:
        return None
    start, whole = substitute(load.address, first), ROW_BYTES // load.dtype.size
    if start.const % whole or any(factor % whole for _, factor in start.terms):
        return None
    return MatrixLoad(load.buffer, start, transposed, tuple(axes))


def matrix_helpers(qualifier: str) -> dict[str, str]:
    """Return the helpers of CUDA C++ by name.

    They load one, two or four matrices, plain or transposed, into words or floats.
    """
    found = {}
    for count in (1, 2, 4):
        names = [f"d{n}" for n in range(count)]
        listed = ", ".join(f"%{n}" for n in range(count))
        for suffix, word, kind in (("", "", "unsigned"), ("_turned", ".trans", "unsigned"), ("_f32", "", "float")):
            out = ", ".join(f'"={kind[0] if kind == "float" else "r"}"({d})' for d in names)
            name = f"cuts_matrix{count}{suffix}"
            text = f"ldmatrix.sync.aligned.m8n8.x{count}{word}.shared.b16 {{{listed}}}, [%{count}];"
            found[name] = (
                f"{qualifier} void {name}({', '.join(f'{kind}& {d}' for d in names)}, const void* p) {{ "
                f'asm volatile("{text}" : {out} : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory"); }}'
            )
    return found
