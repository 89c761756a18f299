"""Index IR: statements over iteration axes, and programs of them.

A statement computes elements of one tensor, either pointwise or by a reduction:

    target[write(axes)] = body(axes)                            (combine is None)
    target[write(axes)] = combine over reduce of body(axes, reduce)
    target[p] = into over all axes with write(axes) = p of body(axes)

A `Program` is the meaning of an instantiated operation or a fusion group: typed tensors and ordered statements.
Statements of a recurrence have a *step*, the axis of time: neighbours with the same step are all computed at its first
value, then all at its second, so that one may read elements that another wrote a step before.

    h[0, n] = 0                                            for n
    m[t, n] = sum over q of r[n, q] * h[t, q]              for t, n      step t
    h[t + 1, n] = tanh(x[t, n] + m[t, n])                  for t, n      step t
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations, groupby

from attrs import evolve, field, frozen

from .affine import Guard, Index, Indirect, Var, as_index, indirects, rename_index, substitute, variables
from .expr import Call, Const, Expr, Read
from .functions import COMBINERS, ONE_ARRIVAL
from .source import Span
from .traversal import factors, reads, rename_expr, substitute_expr, tensors_read
from .types import TensorType

#: The largest `int`, and the largest one that an index may be added to.
_LARGEST_INDEX, _LARGEST_SUMMAND = (1 << 31) - 1, 1 << 30


def _frozen_map(value: Mapping[str, TensorType]) -> dict[str, TensorType]:
    return dict(value)


@frozen(cache_hash=True)
class Statement:
    """Assignment for all values of its axes.

    `write` maps the axes injectively to elements of `target`. `combine` names a reduction of `functions.COMBINERS` over
    the `reduce` axes, or is None when there are none; `argmax`/`argmin` yield the first position (flat over `reduce`)
    as an integer. `step` is the axis of a recurrence, one of `axes`. `along` is the scan axis, along which all elements
    derive from one row of terms: a kernel holds the row and computes them together. It changes no value. Where a
    pointwise body reads the target, elements are computed in the order of the scan axis. `span` is the statement's
    text, for messages.

    Where `into` names a reduction (of values), `write` may send several axes to one element, and read integer tensors
    (a scatter): every element of `target` is that reduction of all values that arrive there, or of nothing. A value
    whose integer lies outside of the tensor is dropped. Such a statement writes the whole tensor; where a statement
    before it does so too, it adds to that. The result is deterministic, unless it is `atomic`: then values arrive in
    any order. With `one` exactly one value arrives at each element, by contract, and the element becomes that value.
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
        """Return whether there is no reduction, neither of reads nor by `into`."""
        return self.combine is None and self.into is None and self.along is None

    @property
    def is_recurrence(self) -> bool:
        """Return whether each element along the row follows from the one before."""
        return self.along is not None and self.target in self.tensors_read

    @property
    def combines_in_memory(self) -> bool:
        """Return whether values are combined with elements in memory."""
        return self.into not in (None, ONE_ARRIVAL)

    def own_dims(self, shape: tuple[int, ...]) -> dict[int, Var]:
        """Map target dims to the axes that enumerate their elements.

        `shape` is the target's. Each value of such an axis writes its own element.
        """
        found: dict[int, Var] = {}
        for number, (index, extent) in enumerate(zip(self.write, shape, strict=True)):
            axis = next((a for a in self.axes if index == as_index(a) and a.extent == extent > 1), None)
            if axis is not None and sum(axis in variables(other) for other in self.write) == 1:
                found[number] = axis
        return found

    def arrival_guards(self, shape: tuple[int, ...]) -> tuple[Guard, ...]:
        """Return the conditions under which a single value arrives (`one`).

        Its integers, and those with variables added to them, are indices of the tensor.
        """
        found = []
        for index, extent in zip(self.write, shape, strict=True) if self.into == ONE_ARRIVAL else ():
            looked_up = [p for p, _ in index.terms if isinstance(p, Indirect)]
            alone = len(looked_up) == len(index.terms) == 1 and not index.const
            if not looked_up:
                found += [guard for guard in (Guard(index, 0, extent),) if not guard.always]
            else:
                largest = _LARGEST_INDEX if alone else _LARGEST_SUMMAND
                terms = tuple((evolve(p, extent=largest) if p in looked_up else p, f) for p, f in index.terms)
                found.append(Guard(Index(index.const, terms), 0, looked_up[0].extent if alone else extent))
        return tuple(found)

    @property
    def arrival_condition(self) -> Expr | None:
        """Condition under which a value arrives (`into`).

        Elsewhere the body is the identity, and has no effect.
        """
        body = self.body
        if (
            not self.combines_in_memory
            or not isinstance(body, Call)
            or body.fn != "select"
            or not isinstance(body.args[2], Const)
        ):
            return None
        other = body.args[2]
        return body.args[0] if other.value == COMBINERS[str(self.into)].identity(other.dtype) else None


@frozen
class Program:
    """Typed tensors and statements in order of definition.

    `inputs` are read and never written, `outputs` are the results; every other tensor is an intermediate. `constants`
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
    """Yield neighbours with the same step together, with their step.

    They are a recurrence, or without a step consecutive statements.
    """
    for step, run in groupby(statements, key=lambda statement: statement.step):
        yield step, tuple(run)


def rename_statement(statement: Statement, names: Mapping[str, str]) -> Statement:
    """Replace the names of all tensors of a statement.

    The tensors that the result reads follow from those of the statement, without a walk over its body.
    """
    made = evolve(
        statement,
        target=names.get(statement.target, statement.target),
        write=tuple(rename_index(w, names) for w in statement.write) if statement.into else statement.write,
        body=rename_expr(statement.body, names),
    )
    object.__setattr__(made, "tensors_read", tuple(dict.fromkeys(names.get(t, t) for t in statement.tensors_read)))
    return made


def rename_axes(statement: Statement, prefix: str) -> Statement:
    """Give all axes fresh names that start with `prefix`, numbered in order."""
    old = (*statement.axes, *statement.reduce)
    new = {axis: Var(f"{prefix}{n}", axis.extent) for n, axis in enumerate(old)}
    write = tuple(substitute(w, new) for w in statement.write)
    axes, reduce = (tuple(new[a] for a in group) for group in (statement.axes, statement.reduce))
    along = statement.along and new[statement.along]
    body = substitute_expr(statement.body, new)
    return evolve(statement, axes=axes, write=write, body=body, reduce=reduce, along=along)


def sums_products(statement: Statement) -> bool:
    """Return whether a statement sums products of elements of different tensors."""
    if statement.combine != "sum":
        return False
    read = [frozenset(r.tensor for r in reads(factor)) for factor in factors(statement.body)]
    return any(a and b and not a & b for a, b in combinations(read, 2))
