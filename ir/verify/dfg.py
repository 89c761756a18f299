"""Verifier of data-flow graphs: named checks on a phase's roots.

Each check states one invariant and yields violations in words; `ir.verify.kernel` adds the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ..dfg import (
    Accumulate,
    DfgNode,
    IndexNode,
    LaneReduce,
    Load,
    MmaAccumulate,
    Op,
    Pack,
    RegisterRead,
    RegisterWrite,
    Root,
    Store,
    Test,
    WideStore,
    Window,
    post_order,
)
from ..functions import FUNCTIONS, VALUE_COMBINERS
from ..machine import MMA_INSTRUCTIONS
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
        wanted = DType.BOOL if FUNCTIONS[node.fn].result == "bool" else types[0]
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
            if isinstance(root, (Store, Accumulate, RegisterWrite))
            else ()
        )
        for value in values:
            held = isinstance(root, Accumulate) and value.dtype.accumulator is root.dtype
            if value.dtype is not root.dtype and not held:
                yield f"a value of {value.dtype} goes where {root.dtype} is held"


def check_combiners_known(roots: Sequence[Root]) -> Iterator[str]:
    """Every combiner of an accumulation is a function of two values."""
    for root in roots:
        if isinstance(root, (Accumulate, LaneReduce)) and root.combine not in VALUE_COMBINERS:
            yield f"'{root.combine}' combines nothing"


def check_instructions_known(roots: Sequence[Root]) -> Iterator[str]:
    """Every matrix instruction is one of the table.

    Its operands have the type that it multiplies, or are registers full of them, and its accumulator has the type that
    it adds in.
    """
    for root in roots:
        if not isinstance(root, MmaAccumulate):
            continue
        if root.atom not in MMA_INSTRUCTIONS:
            yield f"'{root.atom}' multiplies nothing"
            continue
        atom = MMA_INSTRUCTIONS[root.atom]
        for value, fragment in ((root.a, atom.a), (root.b, atom.b)):
            held = value.arg if isinstance(value, Pack) else value
            kept = isinstance(value, RegisterRead) and value.dtype is DType.U32
            if held.dtype is not atom.held and not kept:
                yield f"{root.atom} multiplies {atom.held}, not {held.dtype}"
            if isinstance(value, Pack) and value.axis.extent != fragment.packed:
                yield f"a register of {root.atom} holds {fragment.packed} elements, not {value.axis.extent}"
        if root.dtype is not atom.accumulator:
            yield f"{root.atom} adds up in {atom.accumulator}, not in {root.dtype}"


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
    """A wide store moves 1, 2, 4, 8 or 16 elements, aligned.

    The place is a multiple of their number.
    """
    for root in roots:
        if isinstance(root, WideStore):
            width = len(root.values)
            if width not in WIDTHS or any(n % width for n in (root.address.const, *(f for _, f in root.address.terms))):
                yield f"{width} elements are stored at {root.address.text}"


def check_values_bound(roots: Sequence[Root]) -> Iterator[str]:
    """Indices as values are not bools; loads are of an existing space."""
    for node in post_order(roots):
        if isinstance(node, IndexNode) and node.dtype is DType.BOOL:
            yield f"index {node.index.text} as a bool"
        if isinstance(node, (Load, Store, WideStore)) and node.space not in ("global", "shared", "constant"):
            yield f"'{node.space}' is no memory"


def registers(node: DfgNode) -> tuple[str, ...]:
    """Return the name of the reduction whose registers a node uses."""
    return (node.name,) if isinstance(node, (RegisterRead, Accumulate, MmaAccumulate, LaneReduce)) else ()


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
