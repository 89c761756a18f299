"""PyTorch operators of declarations, over every element type.

Integers wrap; NaN, infinities and zeros are among the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cuts
from cuts.frontends.torch.import_context import DTYPES
from cuts.tests.amounts import NIGHTLY
from cuts.tests.frontends.test_torch_compiled_function import everywhere

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides

#: A kernel each for every operation and type: by day of the types that C or PyTorch treat in a way of their own.
KINDS = DTYPES if NIGHTLY else [torch.bool, torch.uint8, torch.int8, torch.int64, torch.bfloat16, torch.float32]
FLOATS = [kind for kind in KINDS if kind.is_floating_point]
INTEGERS = [kind for kind in KINDS if not kind.is_floating_point and kind is not torch.bool]
SPECIAL = (0.0, -0.0, 1.0, -1.5, 3.25, float("inf"), float("-inf"), float("nan"))


def values(kind: Any) -> Any:
    """Return a vector of the ends and special values of a type."""
    if kind is torch.bool:
        return torch.tensor([True, False, False, True, True])
    if not kind.is_floating_point:
        info = torch.iinfo(kind)
        return torch.tensor([0, 1, 2, 3, 5, 7, info.max, info.max - 1, info.min, info.min + 1], dtype=kind)
    info = torch.finfo(kind)
    return torch.tensor([*SPECIAL, info.max, info.min, info.eps, 1 + info.eps], dtype=kind)


def pairs(kind: Any) -> tuple[Any, Any]:
    """Return every two of these values."""
    some = values(kind)
    a, b = torch.meshgrid(some, some, indexing="ij")
    return a.contiguous(), b.contiguous()


def is_equal(found: Any, expected: Any) -> bool:
    """Return whether types and elements are equal, NaN included."""
    if found.dtype is not expected.dtype or found.shape != expected.shape:
        return False
    return bool(torch.equal(found, expected) or torch.equal(found.nan_to_num(nan=7.5), expected.nan_to_num(nan=7.5)))


#: Operation -> PyTorch's function of two tensors, and the call of the operator.
OF_TWO: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (torch.add, lambda op, a, b: op(a, b)),
    "sub": (torch.sub, lambda op, a, b: op(a, b)),
    "mul": (torch.mul, lambda op, a, b: op(a, b)),
    "max": (torch.maximum, lambda op, a, b: op([a, b])),
    "min": (torch.minimum, lambda op, a, b: op([a, b])),
}
OF_ONE: dict[str, Callable[..., Any]] = {"relu": torch.relu, "abs": torch.abs, "neg": torch.neg}


@everywhere
@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS], ids=str)
def test_arithmetic_is_that_of_pytorch(kind: Any, place: str) -> None:
    a, b = (x.to(place) for x in pairs(kind))
    for name, (expected, call) in OF_TWO.items():
        assert is_equal(call(cuts.torch_op((), name), a, b), expected(a, b)), name
    for name, expected in OF_ONE.items():
        if kind is not torch.uint8:  # it has no negative values
            assert is_equal(cuts.torch_op((), name)(values(kind).to(place)), expected(values(kind).to(place))), name


@everywhere
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_choices_and_comparisons_are_those_of_pytorch(kind: Any, place: str) -> None:
    a, b = (x.to(place) for x in pairs(kind))
    equal = cuts.torch_op((), "equal")(a, b)
    assert is_equal(equal, a == b)
    assert is_equal(cuts.torch_op((), "where")(equal, a, b), torch.where(a == b, a, b))


@everywhere
@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS], ids=str)
def test_reductions_find_nan_and_type_limits(kind: Any, place: str) -> None:
    a, _ = (x.to(place) for x in pairs(kind))
    greatest = cuts.torch_op((), "reduce_max")
    assert is_equal(greatest(a, axes=[0], keepdims=False), a.amax(0))
    if kind.is_floating_point:
        given = values(torch.float32).nan_to_num().to(kind).to(place)[:, None].requires_grad_()
        greatest(given * 2, axes=[1], keepdims=False).sum().backward()
        assert is_equal(given.grad, torch.full_like(given, 2))


@everywhere
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_gradients_pass_nan_on(kind: Any, place: str) -> None:
    ours, theirs = (values(kind).to(place).requires_grad_() for _ in range(2))
    seed = values(kind).flip(0).to(place)
    cuts.torch_op((), "mul")(ours, ours).backward(seed)
    (theirs * theirs).backward(seed)
    assert is_equal(ours.grad, theirs.grad)


@everywhere
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_tensors_lie_as_they_like(kind: Any, place: str) -> None:
    a, b = (x.to(place) for x in pairs(kind))
    add = cuts.torch_op((), "add")
    assert is_equal(add(a.t(), b), a.t() + b)
    assert is_equal(add(a[:, 1:], b[:, 1:]), a[:, 1:] + b[:, 1:])
    assert is_equal(add(a.reshape(-1)[1:], b.reshape(-1)[1:]), a.reshape(-1)[1:] + b.reshape(-1)[1:])
    assert is_equal(add(a[:0], b[:0]), a[:0] + b[:0])


def test_tensors_of_two_devices_are_one_error() -> None:
    add = cuts.torch_op((), "add")
    with pytest.raises(cuts.CutsError, match="operation 'add': its operands lie on cpu and meta"):
        add(torch.ones(3), torch.ones(3, device="meta"))
