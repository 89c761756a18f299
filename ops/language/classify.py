"""Classes of a statement's axes, read off its accesses.

In a reduction of a product of operands, an output axis that indexes the first operand alone is of class M, the second
alone N, both batch; summed axes are reduced. Nothing here knows which operation a statement came from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from ...ir import Read, Statement, Var, expr_variables


class AxisClass(Enum):
    """The part an axis plays in a statement."""

    M = "M"
    N = "N"
    BATCH = "batch"
    REDUCED = "reduced"


def contracted_reads(statement: Statement, constants: Collection[str] = ()) -> tuple[Read, ...]:
    """Return the reads that a reduced axis indexes, constant tables left out."""
    reduced = set(statement.reduce)
    return tuple(r for r in statement.reads if r.tensor not in constants and expr_variables(r) & reduced)


def is_complex(statement: Statement, constants: Collection[str] = ()) -> bool:
    """Return whether some reduced axis indexes two or more operands.

    Work then outgrows data (Table 2 of DeepCuts).
    """
    operands = contracted_reads(statement, constants)
    return any(sum(axis in expr_variables(r) for r in operands) >= 2 for axis in statement.reduce)


def classify_axes(statement: Statement, constants: Collection[str] = ()) -> Mapping[Var, AxisClass]:
    """Return the class of every axis of a statement.

    Without a contraction all output axes are batch.
    """
    classes = dict.fromkeys(statement.reduce, AxisClass.REDUCED)
    operands = contracted_reads(statement, constants)
    if not is_complex(statement, constants):
        return {**dict.fromkeys(statement.axes, AxisClass.BATCH), **classes}
    first, *others = [expr_variables(r) for r in operands]
    for axis in statement.axes:
        in_first, in_others = axis in first, any(axis in o for o in others)
        classes[axis] = AxisClass.BATCH if in_first == in_others else AxisClass.M if in_first else AxisClass.N
    return {axis: classes[axis] for axis in (*statement.axes, *statement.reduce)}
