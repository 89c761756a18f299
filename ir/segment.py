"""Index IR of a fused group in normal form: what one kernel computes.

A *segment* is a register-level group. Every instance of its parallel `axes` is computed by one thread, or by the lanes
that share a reduction: first the reductions in order, then the outputs. A *fused group* is a list of segments; a later
one reads tensors of an earlier one through shared memory (DeepCuts section 4.4, the two fusion levels).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from attrs import field, frozen

from .expr import Call, Cast, Expr, Guard, Read
from .index import Index, Var
from .types import TensorType
from .walk import expr_indirects, expr_variables, indirects, reads

#: Which elements of a row a value along it combines: whether those that come later, and whether without its own.
ALONG = {"upto": (False, False), "before": (False, True), "from": (True, False), "behind": (True, True)}


#: The orders of rows, and whether they rise.
ORDERS = {"rising": True, "falling": False}


@frozen(cache_hash=True)
class Reduction:
    """`name[axes] = combine over reduce of body(axes, reduce)`, a value that each lane of an instance holds afterwards.

    Later reductions and outputs read it as `Read(name, axes)`. `combine` is sum, prod, max or min. `math` names how a
    sum of products may be computed (`ir.atoms.MATH_MODES`); where it is empty, in the types that stand there.

    With `along`, one of `ALONG`, there is a value for each element of the row, which lanes hold as they hold the row;
    others read it as `Read(name, (*axes, *reduce))`. It combines what stands up to the element, before it, from it on,
    or behind it. With one of `ORDERS`, element c of the row is the place of the c-th of all values of the body in that
    order: NaN is greatest, of equals the first comes first.
    """

    name: str
    reduce: tuple[Var, ...]
    combine: str
    body: Expr
    math: str = ""
    along: str = ""


@frozen(cache_hash=True)
class Output:
    """`tensor[write(axes, extra)] = body(axes, extra)` where all `guards` hold.

    The `extra` axes are spread over the lanes of an instance. With `into`, a reduction of values, the body is combined
    with what is there by one atomic operation: the kernel expects the identity in every element that nothing reached
    yet.
    """

    tensor: str
    write: tuple[Index, ...]
    body: Expr
    extra: tuple[Var, ...] = ()
    guards: tuple[Guard, ...] = ()
    into: str | None = None


@frozen(cache_hash=True)
class Segment:
    """A register-level group over common parallel axes.

    Row spaces (the `reduce` of a reduction, the `extra` of an output) of equal extents use the same variables, so that
    what two of them compute from the same elements is one node of the data-flow graph.
    """

    axes: tuple[Var, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Output, ...]

    @property
    def holds_rows(self) -> bool:
        """Whether lanes must hold whole rows, because a reduction has a value for each element."""
        return any(r.along for r in self.reductions)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """All bodies, reductions first."""
        return tuple(r.body for r in self.reductions) + tuple(o.body for o in self.outputs)

    @property
    def tensors_read(self) -> tuple[str, ...]:
        """Tensors read from memory in order of first use, as values first, then in indices."""
        own = {r.name for r in self.reductions}
        values = (r.tensor for body in self.expressions for r in reads(body))
        inner = (i.tensor for body in self.expressions for i in expr_indirects(body))
        written = (i.tensor for output in self.outputs for index in output.write for i in indirects(index))
        places = (*inner, *written)
        return tuple(dict.fromkeys(t for t in (*values, *places) if t not in own))


@frozen
class FusedGroup:
    """The normal form of a group of graph nodes: one kernel.

    `tensors` has the types of every tensor read or written and of every reduction value. `shared` are the tensors that
    only live in shared memory, written by one segment and read by a later one. `inputs` and `outputs` live in global
    memory. `constants` holds small tables that lowering folds, row-major. `fixed` are inputs that no kernel writes, as
    weights; the others are taken to lie in the cache, as whoever left them did so a moment ago. That is no part of what
    a group computes: equal groups may differ in it.
    """

    segments: tuple[Segment, ...]
    tensors: Mapping[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: tuple[str, ...] = ()
    constants: Mapping[str, tuple[float, ...]] = field(factory=dict)
    fixed: tuple[str, ...] = field(default=(), eq=False)

    @property
    def adds_to_memory(self) -> bool:
        """Whether an output is combined with what is there before, so that a second run gives another result."""
        return any(output.into for segment in self.segments for output in segment.outputs)


def factors(expr: Expr) -> tuple[Expr, ...]:
    """Return the factors of a product, itself where it is none."""
    if isinstance(expr, Call) and expr.fn == "mul":
        return factors(expr.args[0]) + factors(expr.args[1])
    return (expr,)


def narrow(factor: Expr) -> Expr:
    """Return a factor as it is stored: what is converted to four bytes or more where it is used, else itself."""
    return (
        factor.arg if isinstance(factor, Cast) and factor.dtype.size >= 4 and isinstance(factor.arg, Read) else factor
    )


def operands(reduction: Reduction, own: Iterable[str] = ()) -> tuple[Expr, ...]:
    """Return the parts of a reduction's body that may be staged, in order and without repeats.

    For a sum of products these are the factors that vary with an axis, whole expressions included (a factor such as
    `relu(x * a + b)` is staged as its value, one that is converted as what it is converted from); for anything else the
    reads. `own` names values of earlier reductions, which
    live in registers.
    """
    return _operands(reduction, frozenset(own))


@lru_cache(maxsize=1 << 14)
def _operands(reduction: Reduction, held: frozenset[str]) -> tuple[Expr, ...]:
    parts = tuple(map(narrow, factors(reduction.body))) if reduction.combine == "sum" else (reduction.body,)
    if len(parts) == 1:
        parts = reads(reduction.body)
    found = []
    for part in parts:
        inner = reads(part)
        if inner and expr_variables(part) and not any(r.tensor in held for r in inner):
            found.append(part)
    return tuple(dict.fromkeys(found))


def is_tiled(reduction: Reduction, axes: Iterable[Var], own: Iterable[str] = ()) -> bool:
    """Whether a reduction over instances `axes` is a contraction each of whose operands is used several times.

    Where one has an element for each term, none of which is used twice, what its row is weighed with makes it no
    product of matrices: it is distributed over threads like any sum of that row.
    """
    every = {*axes, *reduction.reduce}
    return is_contraction(reduction, own) and not any(every <= expr_variables(p) for p in operands(reduction, own))


def is_contraction(reduction: Reduction, own: Iterable[str] = ()) -> bool:
    """Whether a reduced axis touches two or more operands that other axes tell apart (DeepCuts Table 2, `complex`):
    an element of one is then used with several of another.
    """
    if not isinstance(reduction.body, Call) or reduction.combine != "sum" or reduction.along:
        return False
    parts = [expr_variables(part) for part in operands(reduction, own)]
    return any(len({used for used in parts if axis in used}) >= 2 for axis in reduction.reduce)
