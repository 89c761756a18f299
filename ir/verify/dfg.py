"""Verifier of data-flow graphs: named checks on a phase's roots.

Each check states one invariant and yields violations in words; `ir.verify.kernel` adds the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TypeAlias

from ..affine import Guard, Index, Var, vector_piece
from ..dfg import (
    Accumulate,
    AsyncCopy,
    DfgNode,
    IndexNode,
    LaneProduct,
    LaneReduce,
    LdMatrix,
    Mma,
    MmaAccumulate,
    Op,
    Pack,
    PackedLoad,
    RegisterRead,
    RegisterWrite,
    Root,
    Store,
    Test,
    VectorLoad,
    VectorStore,
    WarpgroupMma,
    WideStore,
    Window,
    buffer_accesses,
    post_order,
)
from ..functions import FUNCTIONS, VALUE_COMBINERS
from ..machine import COPIES, MATRIX_LOADS, MMA_INSTRUCTIONS, PACKED_CONVERSIONS
from ..types import DType

#: Elements that one access may move.
WIDTHS = (1, 2, 4, 8, 16)


def check_functions_applied(roots: Sequence[Root]) -> Iterator[str]:
    """Every function is in the table and has its number of operands."""
    for node in post_order(roots):
        if isinstance(node, Op) and (node.fn not in FUNCTIONS or FUNCTIONS[node.fn].arity != len(node.args)):
            yield f"{node.fn} of {len(node.args)} operands is no function"


def check_operands_typed(roots: Sequence[Root]) -> Iterator[str]:
    """The operands of a function have one type.

    The condition of `select` is a bool, and a result has the type of the table.
    """
    for node in post_order(roots):
        if isinstance(node, Test) and node.dtype is not DType.BOOL:
            yield f"a test of type {node.dtype}"
        if not isinstance(node, Op) or node.fn not in FUNCTIONS:
            continue
        types = [a.dtype for a in node.args]
        if node.fn == "select" and types.pop(0) is not DType.BOOL:
            yield f"select by a value of {node.args[0].dtype}"
        wanted = FUNCTIONS[node.fn].result_type(types[0])
        if len(set(types)) > 1 or node.dtype is not wanted:
            yield f"{node.fn} of {', '.join(d.value for d in types)} is a value of {node.dtype}"


def check_effects_typed(roots: Sequence[Root]) -> Iterator[str]:
    """Stored and kept values have the type of their place.

    Accumulated values have the type of their accumulator, or one held in it.
    """
    for root in roots:
        values = (
            root.values
            if isinstance(root, WideStore)
            else (root.value,)
            if isinstance(root, (Store, VectorStore, Accumulate, RegisterWrite))
            else ()
        )
        for value in values:
            held = isinstance(root, Accumulate) and value.dtype.accumulator is root.dtype
            converts = PACKED_CONVERSIONS.get(root.conversion) if isinstance(root, VectorStore) else None
            held = held or converts == (root.dtype, value.dtype)
            if value.dtype is not root.dtype and not held:
                yield f"a value of {value.dtype} goes where {root.dtype} is held"


def check_combiners_known(roots: Sequence[Root]) -> Iterator[str]:
    """Every combiner of an accumulation is a function of two values."""
    for root in roots:
        if isinstance(root, (Accumulate, LaneReduce)) and root.combine not in VALUE_COMBINERS:
            yield f"'{root.combine}' combines nothing"


def check_instructions_known(roots: Sequence[Root]) -> Iterator[str]:
    """Every instruction is one of its table.

    The operands of a matrix instruction have the type that it multiplies, or are registers full of them, and its
    accumulator has the type that it adds in. A load of matrices fills as many registers as its axes number, of its
    type; a copy moves the bytes of its elements.
    """
    for node in post_order(roots):
        if isinstance(node, LdMatrix):
            row = MATRIX_LOADS.get(node.instruction)
            if row is None or (row.count, row.dtype) != (prod(v.extent for v in node.axes), node.dtype):
                yield f"'{node.instruction}' loads no {prod(v.extent for v in node.axes)} matrices into {node.dtype}"
        if isinstance(node, AsyncCopy):
            copy = COPIES.get(node.instruction)
            if copy is None or copy.nbytes != node.width * node.dtype.size:
                yield f"'{node.instruction}' copies no {node.width} elements of {node.dtype}"
    for root in (r for r in roots if isinstance(r, (MmaAccumulate, Mma, WarpgroupMma))):
        name = root.mma if isinstance(root, MmaAccumulate) else root.instruction
        if name not in MMA_INSTRUCTIONS:
            yield f"'{name}' multiplies nothing"
            continue
        atom = MMA_INSTRUCTIONS[name]
        for value, fragment, dtype in zip((root.a, root.b), (atom.a, atom.b), atom.operand_dtypes, strict=True):
            held = value.arg if isinstance(value, Pack) else value
            kept = isinstance(value, (RegisterRead, PackedLoad, LdMatrix)) and value.dtype is DType.U32
            if held.dtype is not dtype and not kept:
                yield f"{name} multiplies {dtype}, not {held.dtype}"
            if isinstance(value, Pack) and value.axis.extent != fragment.packed:
                yield f"a register of {name} holds {fragment.packed} elements, not {value.axis.extent}"
        if root.dtype is not atom.accumulator:
            yield f"{name} adds up in {atom.accumulator}, not in {root.dtype}"
        registers_of = (atom.c.size, atom.a.registers, atom.b.registers)
        if isinstance(root, Mma) and (len(root.results), *(v.extent for v in root.axes)) != registers_of:
            yield f"{name} takes {', '.join(map(str, registers_of))} registers of C, A and B"
        if isinstance(root, WarpgroupMma) and root.columns not in atom.columns:
            yield f"{name} multiplies {', '.join(map(str, atom.columns))} columns, not {root.columns}"


def check_windows_addressed(roots: Sequence[Root]) -> Iterator[str]:
    """A window has a place for each of its axes, within it."""
    for node in post_order(roots):
        if not isinstance(node, Window):
            continue
        if len(node.at) != len(node.axes):
            yield f"a window of {len(node.axes)} axes is read at {len(node.at)} places"
            continue
        for axis, place in zip(node.axes, node.at, strict=True):
            low, high = place.bounds()
            if low < 0 or high >= axis.extent:
                yield f"a window over {axis.name} of {axis.extent} is read at {place.text}"


def check_vectors_whole(roots: Sequence[Root]) -> Iterator[str]:
    """A vector access moves 1, 2, 4, 8 or 16 elements, aligned.

    The place is a multiple of their number, and the vectors along an axis cover it.
    """
    for node in post_order(roots):
        if isinstance(node, WideStore):
            width = len(node.values)
            if width not in WIDTHS or any(n % width for n in (node.address.const, *(f for _, f in node.address.terms))):
                yield f"{width} elements are stored at {node.address.text}"
        elif isinstance(node, VectorLoad):
            line = node.line
            yield from _broken_pieces(line.address, line.guards, line.axis, line.pieces)
        elif isinstance(node, VectorStore):
            yield from _broken_pieces(node.address, node.guards, node.axis, _equal_pieces(node.axis, node.width))
        elif isinstance(node, AsyncCopy) and node.axis is not None:
            for address, guards in ((node.address, node.guards), (node.start, node.valid)):
                yield from _broken_pieces(address, guards, node.axis, _equal_pieces(node.axis, node.width))


def _equal_pieces(axis: Var, width: int) -> tuple[int, ...]:
    return (width,) * (axis.extent // width)


def _broken_pieces(address: Index, guards: tuple[Guard, ...], axis: Var, pieces: Sequence[int]) -> Iterator[str]:
    if sum(pieces) != axis.extent:
        yield f"vectors of {sum(pieces)} elements cover {axis.name} of {axis.extent}"
    start = 0
    for width in pieces:
        lanes = range(start, start + width)
        if width not in WIDTHS or (width > 1 and vector_piece(address, guards, axis, lanes) is None):
            yield f"{width} elements from {start} of {axis.name} are no vector at {address.text}"
        start += width


def check_values_bound(roots: Sequence[Root]) -> Iterator[str]:
    """Indices as values are not bools; loads are of an existing space."""
    for node in post_order(roots):
        if isinstance(node, IndexNode) and node.dtype is DType.BOOL:
            yield f"index {node.index.text} as a bool"
        for space in (a.space for a in buffer_accesses(node) if a.space not in ("global", "shared", "constant")):
            yield f"'{space}' is no memory"


def registers(node: DfgNode) -> tuple[str, ...]:
    """Return the name of the reduction whose registers a node uses."""
    return (
        (node.name,)
        if isinstance(node, (RegisterRead, Accumulate, LaneProduct, MmaAccumulate, Mma, WarpgroupMma, LaneReduce))
        else ()
    )


Check: TypeAlias = Callable[[Sequence[Root]], Iterator[str]]

CHECKS: tuple[Check, ...] = (
    check_functions_applied,
    check_operands_typed,
    check_effects_typed,
    check_combiners_known,
    check_instructions_known,
    check_windows_addressed,
    check_vectors_whole,
    check_values_bound,
)
