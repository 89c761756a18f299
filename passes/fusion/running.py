"""Running reductions as statements say them: a reduction over a row whose terms count where they stand no later (or no
earlier) than an axis of the result, and are the same for all elements otherwise.

    y[i] = sum[j < n] (x[j] if i - j >= 0 else 0)
"""

from __future__ import annotations

from attrs import frozen

from ...ir import (
    ALONG,
    COMBINERS,
    Call,
    Const,
    Expr,
    Guard,
    Index,
    IndexLike,
    InRange,
    Statement,
    Var,
    as_index,
    expr_variables,
    indices,
    indirects,
    variables,
)


@frozen
class RunningReduction:
    """A statement as a running reduction: of `value` over `term`, of which those count that stand at least `skip`
    places before `axis` (or behind it, where it runs `backwards`).
    """

    statement: Statement
    axis: Var
    term: Var
    value: Expr
    skip: int
    backwards: bool

    def axes(self, along: Var) -> tuple[Var, ...]:
        """Return the axes of the statement, with another one in the place of that along the row."""
        return tuple(along if a == self.axis else a for a in self.statement.axes)

    def places(self, along: IndexLike) -> tuple[Index, ...]:
        """Return where an element lies in a tensor over the axes, by its place along the row."""
        return tuple(as_index(along if a == self.axis else a) for a in self.statement.axes)

    def counts(self, place: Index, term: Index, skip: int) -> InRange:
        """Return the condition that a term counts for a place."""
        distance = term - place if self.backwards else place - term
        return InRange((Guard(distance, skip, max(distance.bounds()[1] + 1, skip + 1)),))

    @property
    def along(self) -> str:
        """Which elements of the row count for one, as `ALONG` names it."""
        return next(name for name, kind in ALONG.items() if kind == (self.backwards, self.skip == 1))


def running_of(statement: Statement) -> RunningReduction | None:
    """Return a statement as the running reduction that it is."""
    body = statement.body
    combiner = COMBINERS.get(str(statement.combine))
    if combiner is None or combiner.position or statement.step is not None or statement.into is not None:
        return None
    if len(statement.reduce) != 1 or not isinstance(body, Call) or body.fn != "select":
        return None
    condition, value, other = body.args
    if not isinstance(condition, InRange) or len(condition.guards) != 1 or not isinstance(other, Const):
        return None
    (guard,), (term,) = condition.guards, statement.reduce
    if other.value != combiner.identity(other.dtype) or guard.index.bounds()[1] >= guard.high:
        return None
    factors = dict(guard.index.terms)
    axis = next((a for a in statement.axes if a in factors), None)
    if axis is None or axis.extent != term.extent or set(factors) != {axis, term}:
        return None
    skip, backwards = guard.low - guard.index.const, factors[axis] == -1
    right = {factors[axis], factors[term]} == {1, -1} and skip in (0, 1) and axis not in expr_variables(value)
    looked_up = any(term in variables(i) and indirects(i) for i in indices(value))
    return RunningReduction(statement, axis, term, value, skip, backwards) if right and not looked_up else None
