"""Sums of deviations from a mean, which are zero.

Each deviation from a mean contributes to the gradient of that mean; the contribution through the variance is a multiple
of the sum of deviations:

    m[i] = (sum_r x[i, r]) / n;   dm[i] = sum_r -dy[i, r] * s[i] - 2 * dv[i] * (x[i, r] - m[i])
      ->   dm[i] = -s[i] * sum_r dy[i, r]

So the gradient of a norm reads its data once less, and the sum that is left is that of the shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....ir import Call, Const, Expr, Index, Program, Read, Statement, Var, as_index, substitute


def is_sum_of_deviations(body: Expr, free: Sequence[Var], program: Program) -> bool:
    """Return whether a sum is one of deviations from the mean.

    The sum is over `free`, the mean that of just those elements, as a program computes it, possibly negated.
    """
    while isinstance(body, Call) and body.fn == "neg":
        (body,) = body.args
    if not isinstance(body, Call) or body.fn != "sub":
        return False
    left, right = body.args
    if not isinstance(left, Read) or not isinstance(right, Read) or left.guards or right.guards:
        return False
    return any(_is_mean(a, b, free, program) for a, b in ((left, right), (right, left)))


def _is_mean(element: Read, mean: Read, free: Sequence[Var], program: Program) -> bool:
    """Return whether one tensor holds the means of the elements that a read of another runs over."""
    quotient = _statement(mean.tensor, program)
    if quotient is None or not isinstance(quotient.body, Call) or quotient.body.fn != "div":
        return False
    total, count = quotient.body.args
    if not isinstance(total, Read) or not isinstance(count, Const):
        return False
    summed = _statement(total.tensor, program)
    if summed is None or summed.combine != "sum" or not isinstance(summed.body, Read) or summed.body.guards:
        return False
    if summed.body.tensor != element.tensor or count.value != prod(v.extent for v in summed.reduce):
        return False
    places = _substitute_axes(total.indices, quotient.write, mean.indices)
    return places is not None and _runs_over(summed, places, element, free)


def _statement(tensor: str, program: Program) -> Statement | None:
    """Return the only statement that writes a tensor."""
    found = [s for s in program.statements if s.target == tensor]
    return found[0] if len(found) == 1 and found[0].step is None and found[0].into is None else None


def _substitute_axes(indices: Sequence[Index], write: Sequence[Index], places: Sequence[Index]) -> list[Index] | None:
    """Return indices of a statement that writes each element by its axes, where it writes at some places."""
    axes: dict[Var, Index] = {}
    for index, place in zip(write, places, strict=True):
        var = _variable(index)
        if var is None and index != place:
            return None
        if var is not None:
            axes[var] = place
    return [substitute(index, axes) for index in indices]


def _runs_over(summed: Statement, places: Sequence[Index], element: Read, free: Sequence[Var]) -> bool:
    """Return whether a sum that is written at some places runs over the elements of a read."""
    assert isinstance(summed.body, Read)
    values = {v: place for v, place in zip(map(_variable, summed.write), places, strict=True) if v is not None}
    for index, wanted in zip(summed.body.indices, element.indices, strict=True):
        unknown = [v for v in summed.reduce if v not in values and index.coefficient(v)]
        if len(unknown) == 1 and index.coefficient(unknown[0]) == 1:  # a place, or one within a group
            values[unknown[0]] = wanted - substitute(index - unknown[0], values)
    over = [_variable(values[v]) for v in summed.reduce if v in values]
    same = len(over) == len(summed.reduce) and None not in over and {v for v in over if v} == set(free)
    same_extents = all(v is not None and v.extent == r.extent for v, r in zip(over, summed.reduce, strict=False))
    return same and same_extents and tuple(substitute(i, values) for i in summed.body.indices) == element.indices


def _variable(index: Index) -> Var | None:
    """Return the variable that an index is."""
    if index.const or len(index.terms) != 1 or index.terms[0][1] != 1:
        return None
    (primary, _), *_ = index.terms
    return primary if isinstance(primary, Var) and index == as_index(primary) else None
