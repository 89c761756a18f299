"""Values of guarded bodies outside of their bounds.

They have the element's own type and the reference's value, for every function.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.affine import Guard, Index, Values, Var
from cuts.ir.evaluation import Evaluation
from cuts.ir.expr import Call, Cast, Const, Expr, Read, call
from cuts.ir.functions import FUNCTIONS
from cuts.ir.traversal import reads
from cuts.ir.types import DType, TensorType
from cuts.passes.statements.inline import apply_guards
from hypothesis import given
from hypothesis import strategies as st

from .build import graph, op
from .test_semantics import MODES, check

INTEGERS = [d for d in DType if d.is_int]
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bit_shift"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", BITWISE)
def test_a_bitwise_operation_is_read_by_pad(name: str, dtype: DType, mode: str) -> None:
    operands = ("x",) if name == "bitwise_not" else ("x", "z")
    attributes = {"direction": "LEFT"} if name == "bit_shift" else {}
    inputs = dict.fromkeys(operands, TensorType(dtype, (3, 4)))
    made = graph(
        inputs, op("a", name, *operands, **attributes), op("y", "pad", "a", pads=(0, 1, 2, 0), value=3.0), out="y"
    )
    check(made, mode)  # type: ignore[arg-type]


I = Var("i", 6)  # noqa: E741
OUTSIDE = Guard(I - 1, 0, 4)
_NUMBERS = st.integers(-128, 255)
_WHOLE = st.sampled_from([d for d in INTEGERS if d is not DType.BOOL])
_CLOSED_FUNCTIONS = sorted(
    {"add", "sub", "mul", "neg", "abs", "bitand", "bitor", "bitxor", "bitnot", "min", "max"} & FUNCTIONS.keys()
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[Expr, dict[str, TensorType]]:
    """Draw a body over elements of one integer type.

    A conversion may stand at its end.
    """
    dtype, result = draw(_WHOLE), draw(st.sampled_from([*INTEGERS, DType.F32, DType.F64]))
    numbers = _NUMBERS.map(lambda n: Const(int(np.asarray(n).astype(dtype.numpy)), dtype))
    elements = st.sampled_from("xz").map(lambda name: Read(name, (I - 1,)))
    functions = st.sampled_from(_CLOSED_FUNCTIONS)

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return functions.flatmap(lambda fn: st.tuples(*[inner] * FUNCTIONS[fn].arity).map(lambda args: call(fn, *args)))

    leaves: st.SearchStrategy[Expr] = st.one_of(numbers, elements)
    body = draw(st.recursive(leaves, extend, max_leaves=6))
    return Cast(result, body), {name: TensorType(dtype, (4,)) for name in "xz"}


class EvaluationAt(Evaluation):
    """Evaluation at one value of `i` over arrays."""

    def __init__(self, place: int, arrays: dict[str, Values]) -> None:
        self.place_of_i, self.arrays = place, arrays

    def axis(self, var: Var) -> Values:
        return np.asarray(self.place_of_i)

    def element(self, tensor: str, indices: tuple[Index, ...], inside: Values | None = None) -> Values:
        (where,) = (self.index(i) for i in indices)
        assert inside is None or not inside or 0 <= where < 4
        return self.arrays[tensor][np.where(True if inside is None else inside, where, 0)]


@given(bodies(), st.sampled_from([-1.0, 0.0, 1.0, 3.0, 127.0, 128.0, 255.0, -128.0]))
def test_a_guarded_body_yields_its_fill_outside(case: tuple[Expr, dict[str, TensorType]], fill: float) -> None:
    body, tensors = case
    arrays = {name: np.arange(4).astype(t.dtype.numpy) for name, t in tensors.items()}
    guarded = apply_guards(body, (OUTSIDE,), fill, tensors, frozenset())
    assert all(OUTSIDE in r.guards for r in reads(guarded))
    for place in range(6):
        found = EvaluationAt(place, arrays).value(guarded)
        if 1 <= place < 5:
            assert found == EvaluationAt(place, arrays).value(body)
        else:
            assert found == np.asarray(fill).astype(found.dtype)


def test_an_integer_wraps_outside_too() -> None:
    """A border of -1 is not the body's own value.

    0 - 1 of u8 is 255.
    """
    tensors = {"x": TensorType(DType.U8, (4,))}
    body = Cast(DType.F32, call("sub", Read("x", (I - 1,)), Const(1, DType.U8)))
    wrong, right = (apply_guards(body, (OUTSIDE,), fill, tensors, frozenset()) for fill in (-1.0, 255.0))
    assert isinstance(wrong, Call)
    assert wrong.fn == "select"
    assert isinstance(right, Cast)
