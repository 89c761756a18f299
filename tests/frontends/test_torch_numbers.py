"""Numbers beside PyTorch's tensors are converted or refused as in PyTorch.

Every supported overload that takes a number is called with numbers that types cannot hold. The expected outcome is that
of eager execution: a value, or an error.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch.decompositions import decompositions
from cuts.frontends.torch.import_context import array_of
from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.ir import CutsError
from cuts.ops.reference import evaluate_graph
from torch.fx.experimental.proxy_tensor import make_fx

from .test_torch_types import WHOLE, agrees
from .torch_calls import TYPES

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

F = torch.nn.functional
_SAMPLE = 40  # calls of each overload; all by night
#: Numbers within every type, beyond some of them, and beyond all.
NUMBERS = (
    0, 1, 3, -1, -5, -129, 127, 128, 200, 255, 256, 300, -300, 1000, 40000, 70000, 2**31 - 1, 2**31, -(2**31), 2**32,
    2**40, 2**63 - 1, -(2**63), True, False, 0.0, -0.0, 1.5, -0.5, 2.0, 300.5, -7.25, 70000.0, 1e10, -1e10, 1e300,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
Function = Callable[[Any, Any], Any]
_WITH_NUMBER = """add sub mul div floor_divide remainder fmod pow eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor
bitwise_left_shift bitwise_right_shift float_power rsub copysign clamp_min clamp_max full_like"""
_AFTER_NUMBER = "pow bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"


def _places() -> Any:
    return torch.ones(1, dtype=torch.int64)


def _set(x: Any, n: Any) -> Any:
    x = x.clone()
    x[1] = n
    return x


def _swap_arguments(function: Function) -> Function:
    return lambda x, n: function(n, x)


CALLS: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _WITH_NUMBER.split()},
    **{f"number {name}": _swap_arguments(getattr(torch, name)) for name in _AFTER_NUMBER.split()},
    "number less": lambda x, n: n < x, "number minus": lambda x, n: n - x, "number by": lambda x, n: n / x,
    "floor": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "add alpha": lambda x, n: torch.add(x, x, alpha=n), "sub alpha": lambda x, n: torch.sub(x, x, alpha=n),
    "rsub alpha": lambda x, n: torch.rsub(x, x, alpha=n), "number alpha": lambda x, n: torch.add(x, 2, alpha=n),
    "clamp": lambda x, n: x.clamp(0, n), "clamp both": lambda x, n: x.clamp(n, n),
    "hardtanh": lambda x, n: F.hardtanh(x, 0, n), "hardtanh below": lambda x, n: F.hardtanh(x, n, 100),
    "where": lambda x, n: torch.where(x > 2, x, n), "where first": lambda x, n: torch.where(x > 2, n, x),
    "where both": lambda x, n: torch.where(x > 2, n, 1), "fill": lambda x, n: x.clone().fill_(n),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype), "new_full": lambda x, n: x.new_full((2,), n),
    "full of a number": lambda x, n: torch.full((2,), n), "scalar": lambda x, n: torch.scalar_tensor(n, dtype=x.dtype),
    "masked_fill": lambda x, n: x.masked_fill(x > 2, n), "index_fill": lambda x, n: x.index_fill(0, _places(), n),
    "scatter": lambda x, n: x.scatter(0, _places(), n),
    "scatter add": lambda x, n: x.scatter(0, _places(), n, reduce="add"),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n), "threshold": lambda x, n: F.threshold(x, 2, n),
    "threshold below": lambda x, n: F.threshold(x, n, 7), "isin": lambda x, n: torch.isin(x, n), "set": _set,
    "leaky_relu": lambda x, n: F.leaky_relu(x, n), "elu": lambda x, n: F.elu(x, n),
}  # fmt: skip
#: PyTorch's messages where a number does not fit. It refuses more: truth values, divisions by 0, types of a function.
OVERFLOW = ("without overflow", "too large", "out of range", "Overflow")


def values(kind: Any) -> Any:
    return torch.tensor([0, 1, 5, 100]).to(kind)


def is_defined(name: str, kind: Any, number: Any) -> bool:
    """Return whether PyTorch's answer is well defined.

    It negates factors, which overflows for the least of a type. It reads paddings as floats, which the greatest integer
    exceeds. It traces fills by masks and indices as choices, which take halves beyond a type as infinities. An infinite
    slope meets a zero in the product that eager computes and does not select. Indices of truth values are not written.
    """
    if name in ("masked_fill", "index_fill"):
        return kind not in (torch.bool, torch.float16, torch.bfloat16)
    if name in ("sub alpha", "rsub alpha") or name == "pad":
        least = not kind.is_floating_point and kind is not torch.bool and abs(number) == -torch.iinfo(kind).min
        return isinstance(number, float) or (abs(number) < 2**63 - 1 and not least)
    return name != "leaky_relu" or math.isfinite(number)


def by_pytorch(name: str, kind: Any, number: Any) -> Any:
    """Return PyTorch's result, or its error."""
    try:
        return CALLS[name](values(kind), number)
    except Exception as error:  # of many kinds
        return error


def by_import(name: str, kind: Any, number: Any) -> Any:
    """Return the imported graph's result, or its error.

    Returns None where PyTorch does not trace the call.
    """
    x = values(kind)
    function = torch.func.functionalize(lambda x: CALLS[name](x, number))
    try:
        traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(x)
    except Exception:  # of many kinds
        return None
    try:
        captured = graph_of_nodes(traced.graph)
        given = {n: array_of(x) for n in captured.inputs if n is not None}
        results = evaluate_graph(captured.graph, captured.registry, given)
    except CutsError as error:
        return error
    (result,) = captured.results
    return results[result].astype(captured.graph.types[result].dtype.numpy)


def fault(name: str, kind: Any, number: Any) -> str:
    """Return the fault of a call, or ""."""
    wanted, made = by_pytorch(name, kind, number), by_import(name, kind, number)
    if made is None or not is_defined(name, kind, number):
        return ""
    where = f"{name} of {kind} and {number}"
    if isinstance(wanted, Exception):
        accepted = not isinstance(made, CutsError) and any(words in str(wanted) for words in OVERFLOW)
        return f"{where}: expected an error, {wanted}, found {made.tolist()}" if accepted else ""
    if isinstance(made, CutsError):
        return f"{where}: expected {wanted.tolist()}, found the error {made}"
    truth = array_of(wanted)
    if (truth.dtype, truth.shape) != (made.dtype, made.shape) or not agrees(made, truth):
        return f"{where}: expected {truth.dtype} {truth.tolist()}, found {made.dtype} {made.tolist()}"
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_a_number_is_converted_as_pytorch_converts_it(name: str) -> None:
    drawn = [(kind, number) for kind in TYPES for number in NUMBERS]
    if not WHOLE:
        drawn = random.Random(name).sample(drawn, _SAMPLE)
    assert [text for kind, number in drawn if (text := fault(name, kind, number))] == []


@pytest.mark.parametrize("number", [-5, -1, 255])
@pytest.mark.parametrize("name", ["full_like", "fill", "full", "masked_fill", "scatter", "clamp", "set"])
def test_negative_numbers_of_unsigned_types_match_pytorch(name: str, number: int) -> None:
    assert fault(name, torch.uint8, number) == ""


@pytest.mark.parametrize(("kind", "number"), [(torch.uint8, 300), (torch.int8, 200), (torch.int32, 2**40)], ids=str)
@pytest.mark.parametrize("name", ["clamp_min", "clamp_max", "clamp", "full", "fill", "scatter", "threshold", "pow"])
def test_numbers_that_types_cannot_hold_are_refused(name: str, kind: Any, number: int) -> None:
    assert isinstance(by_pytorch(name, kind, number), RuntimeError)
    assert isinstance(by_import(name, kind, number), CutsError)
