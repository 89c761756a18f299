"""Index IR: statements over iteration axes, and programs of them.

A statement computes elements of one tensor, either pointwise or by a reduction:

    target[write(axes)] = body(axes)                            (combine is None)
    target[write(axes)] = combine over reduce of body(axes, reduce)
    target[p] = into over all axes with write(axes) = p of body(axes)

A `Program` is what an instantiated operation or a fused group means: typed tensors and an ordered list of statements.
Statements of a recurrence have a *step*, the axis of time: neighbours with the same step are all computed at its first
value, then all at its second, so that one may read what another wrote a step before.

    h[0, n] = 0                                            for n
    m[t, n] = sum over q of r[n, q] * h[t, q]              for t, n      step t
    h[t + 1, n] = tanh(x[t, n] + m[t, n])                  for t, n      step t
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby

from attrs import evolve, field, frozen

from .expr import Call, Const, Expr, Read
from .functions import COMBINERS
from .index import Index, Var, as_index
from .source import Span
from .types import TensorType
from .walk import (
    indirects,
    reads,
    rename_expr,
    rename_index,
    substitute,
    substitute_expr,
    tensors_read,
    variables,
)


def _frozen_map(value: Mapping[str, TensorType]) -> dict[str, TensorType]:
    return dict(value)


@frozen(cache_hash=True)
class Statement:
    """One assignment, for all values of its axes.

    `write` maps the axes injectively to elements of `target`. `combine` names a reduction of `functions.COMBINERS` over
    the `reduce` axes, or is None when there are none; `argmax`/`argmin` yield the first position (flat over `reduce`)
    as an integer. `step` is the axis of a recurrence, one of `axes`. Where the elements along an axis are all found
    from one row of terms, `along` is that axis: a kernel holds the row and computes them together. It changes no value.
    `span` is the text that says it, for messages.

    Where `into` names a reduction (of values), `write` may send several axes to one element, and read integer tensors:
    every element of `target` is that reduction of all that arrives there, or of nothing. What an integer sends outside
    of the tensor arrives nowhere. Such a statement writes the whole tensor; where a statement before it does so too, it
    adds to that. The result is the same each time, unless it is `atomic`: then things arrive in any order.
    """

    target: str
    axes: tuple[Var, ...]
    write: tuple[Index, ...]
    body: Expr
    reduce: tuple[Var, ...] = ()
    combine: str | None = None
    into: str | None = None
    atomic: bool = False
    step: Var | None = None
    along: Var | None = None
    span: Span | None = field(default=None, eq=False, repr=False, kw_only=True)

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """The distinct reads of the body."""
        return reads(self.body)

    @cached_property
    def tensors_read(self) -> tuple[str, ...]:
        """The tensors that the statement reads, as values first, then in indices."""
        places = (i.tensor for index in self.write for i in indirects(index))
        return tuple(dict.fromkeys((*tensors_read(self.body), *places)))

    @property
    def is_pointwise(self) -> bool:
        """Whether there is no reduction, neither of what is read nor of what arrives."""
        return self.combine is None and self.into is None

    def own_dims(self, shape: tuple[int, ...]) -> dict[int, Var]:
        """Return the dims of a target of that shape along which each value of an axis writes its own element, each with
        its axis.
        """
        found: dict[int, Var] = {}
        for number, (index, extent) in enumerate(zip(self.write, shape, strict=True)):
            axis = next((a for a in self.axes if index == as_index(a) and a.extent == extent > 1), None)
            if axis is not None and sum(axis in variables(other) for other in self.write) == 1:
                found[number] = axis
        return found

    @property
    def arrives_where(self) -> Expr | None:
        """The condition under which something arrives (`into`): else the body is the identity, and goes nowhere."""
        body = self.body
        if (
            self.into is None
            or not isinstance(body, Call)
            or body.fn != "select"
            or not isinstance(body.args[2], Const)
        ):
            return None
        other = body.args[2]
        return body.args[0] if other.value == COMBINERS[self.into].identity(other.dtype) else None

    @property
    def is_identity_write(self) -> bool:
        """Whether the element written is named by the axes themselves, in order."""
        return len(self.axes) == len(self.write) and all(
            w == as_index(a) for w, a in zip(self.write, self.axes, strict=True)
        )


@frozen
class Program:
    """Typed tensors and statements in order of definition.

    `inputs` are read and never written, `outputs` are what is kept; every other tensor is an intermediate. `constants`
    holds small tables (Winograd matrices, twiddles) whose values lowering may fold, as nested tuples in row-major
    order.
    """

    tensors: Mapping[str, TensorType] = field(converter=_frozen_map)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statements: tuple[Statement, ...]
    constants: Mapping[str, tuple[float, ...]] = field(factory=dict)

    def producers(self, tensor: str) -> tuple[Statement, ...]:
        """Return the statements that write a tensor."""
        return tuple(s for s in self.statements if s.target == tensor)


def runs(statements: Iterable[Statement]) -> Iterator[tuple[Var | None, tuple[Statement, ...]]]:
    """Yield neighbours with the same step together, with their step: a recurrence, or statements one after another."""
    for step, run in groupby(statements, key=lambda statement: statement.step):
        yield step, tuple(run)


def rename_statement(statement: Statement, names: Mapping[str, str]) -> Statement:
    """Replace the names of all tensors of a statement."""
    return evolve(
        statement,
        target=names.get(statement.target, statement.target),
        write=tuple(rename_index(w, names) for w in statement.write) if statement.into else statement.write,
        body=rename_expr(statement.body, names),
    )


def rename_axes(statement: Statement, prefix: str) -> Statement:
    """Give all axes fresh names that start with `prefix`, numbered in order."""
    old = (*statement.axes, *statement.reduce)
    new = {axis: Var(f"{prefix}{n}", axis.extent) for n, axis in enumerate(old)}
    write = tuple(substitute(w, new) for w in statement.write)
    axes, reduce = (tuple(new[a] for a in group) for group in (statement.axes, statement.reduce))
    along = statement.along and new[statement.along]
    body = substitute_expr(statement.body, new)
    return evolve(statement, axes=axes, write=write, body=body, reduce=reduce, along=along)
