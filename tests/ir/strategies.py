"""Random indices, guards and expressions over a few variables."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from cuts.ir.affine import Guard, Index, Indirect, Var, as_index, clamp, floordiv, modulo, variables
from cuts.ir.expr import Call, Cast, Const, Expr, IndexValue, InRange, Read
from cuts.ir.functions import FUNCTIONS
from cuts.ir.types import DType
from hypothesis import strategies as st

VARIABLES = (Var("a", 1), Var("b", 2), Var("c", 3), Var("d", 4), Var("e", 6), Var("f", 8))

small = st.integers(-12, 12)
divisors = st.integers(1, 13)


def _extend(inner: st.SearchStrategy[Index]) -> st.SearchStrategy[Index]:
    return st.one_of(
        st.builds(lambda x, y: x + y, inner, inner),
        st.builds(lambda x, y: x - y, inner, inner),
        st.builds(lambda x, factor: x * factor, inner, st.integers(-6, 6)),
        st.builds(floordiv, inner, divisors),
        st.builds(modulo, inner, divisors),
        st.builds(lambda x, low, extent: clamp(x, low, low + extent), inner, small, st.integers(0, 9)),
    )


leaves = st.one_of(st.sampled_from(VARIABLES).map(as_index), small.map(Index))
#: Indices without indirect reads, built with the algebra's own operations.
indices = st.recursive(leaves, _extend, max_leaves=8)
#: Sums of variables, as most addresses are.
affine = st.builds(
    lambda const, factors: sum((v * f for v, f in zip(VARIABLES, factors, strict=True)), Index(const)),
    small,
    st.tuples(*(st.sampled_from((0, 0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -6)) for _ in VARIABLES)),
)
indirect = st.builds(
    lambda tensor, parts, *rest: Index(0, ((Indirect(tensor, tuple(parts), *rest), 1),)),
    st.sampled_from(("ids", "a/b:0", "clamp")),
    st.lists(indices, max_size=2),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
#: Indices of every kind.
all_indices = st.one_of(indices, st.builds(lambda x, y: x + y, indices, indirect))
guards = st.builds(lambda index, low, extent: Guard(index, low, low + extent), all_indices, small, st.integers(0, 9))

names = st.sampled_from(("x", "f", "y.1", "conv/kernel:0", "if", "max", "over", 'quo"te', "nan"))
_floats = st.floats(allow_nan=False, width=32)
_fills = st.sampled_from((0.0, 1.0, -0.5, float("inf"), float("-inf")))
constants = st.one_of(
    st.builds(Const, _floats, st.sampled_from((DType.F32, DType.F16, DType.F64))),
    st.builds(Const, st.integers(-(2**40), 2**40), st.sampled_from((DType.I64, DType.I32, DType.F32))),
    st.builds(Const, st.booleans(), st.just(DType.BOOL)),
)
_guard_tuples = st.lists(guards, max_size=2).map(tuple)
reads = st.builds(Read, names, st.lists(all_indices, max_size=3).map(tuple), _guard_tuples, _fills)
_scalars = st.one_of(
    constants,
    reads,
    st.builds(IndexValue, indices, st.sampled_from((DType.I64, DType.I32, DType.F32))),
    st.builds(InRange, _guard_tuples),
)


def _calls(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    functions = st.sampled_from(sorted(FUNCTIONS))
    applied = functions.flatmap(lambda fn: st.builds(Call, st.just(fn), st.tuples(*[inner] * FUNCTIONS[fn].arity)))
    return st.one_of(applied, st.builds(Cast, st.sampled_from(list(DType)), inner))


#: Scalar expressions of every kind, well-typed or not: text forms do not ask.
exprs: st.SearchStrategy[Expr] = st.recursive(_scalars, _calls, max_leaves=10)


def assignments(index: Index, *others: Index) -> list[Mapping[Var, int]]:
    """Return every assignment of the variables that occur in the indices."""
    found = sorted(frozenset().union(*(variables(i) for i in (index, *others))), key=lambda v: v.name)
    return [dict(zip(found, point, strict=True)) for point in product(*(range(v.extent) for v in found))]
