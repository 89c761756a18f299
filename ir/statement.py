"""Index IR: statements over iteration axes, and programs of them.

A statement computes elements of one tensor, either pointwise or by a reduction:

    target[write(axes)] = body(axes)                            (combine is None)
    target[write(axes)] = combine over reduce of body(axes, reduce)

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

from attrs import field, frozen

from .expr import Expr, Read
from .index import Index, Var, as_index
from .source import Span
from .types import TensorType
from .walk import reads, tensors_read


def _frozen_map(value: Mapping[str, TensorType]) -> dict[str, TensorType]:
    return dict(value)


@frozen(cache_hash=True)
class Statement:
    """One assignment, for all values of its axes.

    `write` maps the axes injectively to elements of `target`. `combine` names a reduction of `functions.COMBINERS` over
    the `reduce` axes, or is None when there are none; `argmax`/`argmin` yield the first position (flat over `reduce`)
    as an integer. `step` is the axis of a recurrence, one of `axes`. `span` is the text that says it, for messages.
    """

    target: str
    axes: tuple[Var, ...]
    write: tuple[Index, ...]
    body: Expr
    reduce: tuple[Var, ...] = ()
    combine: str | None = None
    step: Var | None = None
    span: Span | None = field(default=None, eq=False, repr=False, kw_only=True)

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """The distinct reads of the body."""
        return reads(self.body)

    @cached_property
    def tensors_read(self) -> tuple[str, ...]:
        """The tensors that the body reads, as values first, then in indices."""
        return tensors_read(self.body)

    @property
    def is_pointwise(self) -> bool:
        """Whether there is no reduction."""
        return self.combine is None

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
