"""Order of statements: tensors are read after they are written whole."""

from __future__ import annotations

import pytest
from cuts.ir.errors import CutsError, SpecError
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType

from .test_language import REGISTRY, errors, refusal, types

HEAD = 'op t "t" {\n  in x: f32[N, D]\n  out y: f32[N, D]\n'
TENSOR_LIST = "  temp h[t < 3]: f32[N, D]\n"
ITSELF = (
    "is read by the statement that writes it | "
    "elements are written in no order: let an intermediate hold the result, and read that"
)
UNWRITTEN = "is read before a statement writes it | statements are run in the order in which they stand"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("  y[n, d] = y[n, d] + x[n, d]\n", [f"4:13 'y' {ITSELF}"]),
        ("  y = y + x\n", [f"4:7 'y' {ITSELF}"]),
        ("  y[n, d] = sum[e < D] x[n, e] * max(y[n, e], 0)\n", [f"4:38 'y' {ITSELF}"]),
        ("  y[n, d] = x[n, d] if d == 0 else (y[n, d - 1] outside 0)\n", [f"4:37 'y' {ITSELF}"]),
        ("  temp a: f32[N, D]\n  y = a\n  a = x\n", [f"5:7 'a' {UNWRITTEN}"]),
        ("  temp i: i64[N]\n  y[n, d] = x[index(i[n], N), d]\n  i[n] = 1\n", [f"5:21 'i' {UNWRITTEN}"]),
        ("  temp a: f32[N, D], b: f32[N, D]\n  a = b\n  b = a\n  y = b\n", [f"5:7 'b' {UNWRITTEN}"]),
    ],
)
def test_a_read_before_its_write_is_refused(lines: str, expected: list[str]) -> None:
    assert errors(HEAD + lines + "}\n") == expected


@pytest.mark.parametrize(
    "lines",
    [
        "  temp a: f32[N, D]\n  a = x\n  y = a\n",
        "  out z: f32[N, D]\n  y = x\n  z = y\n",
        "  temp a: f32[N, D]\n  a = x * rank(a)\n  y = a\n",
        "  temp h[t < 3]: f32[N, D]\n  h[0] = x\n  each t < 2: h[t + 1] = h[t] * 2\n  y = h[2]\n",
    ],
)
def test_a_valid_order_is_accepted(lines: str) -> None:
    assert REGISTRY.extend(_source(lines))["t"].instantiate(types((2, 3)), {}).program.statements


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (f"{TENSOR_LIST}  h[0] = x\n  each t < 2: h[t + 1] = h[t + 1] * 2\n  y = h[2]\n",
         ("6:26", "'h_1' is read by the statement")),
        (f"{TENSOR_LIST}  h[2] = x\n  each t < 2: h[t] = h[t + 1] * 2\n  y = h[2]\n",
         ("6:22", "'h_1' is read before a statement")),
        ("  let f(e) = e + y[0, 0]\n  y = f(x)\n", ("5:7", "'y' is read by the statement")),
        (
            "  temp a: f32[2, N, D], b: f32[N, D]\n  a[0, n, d] = x[n, d]\n  b[n, d] = a[0, n, d]\n  "
            "a[1, n, d] = b[n, d]\n"
            "  y[n, d] = a[1, n, d]\n",
            ("7:3", "'a' is read before this part of it is written"),
        ),
    ],
)  # fmt: skip
def test_refusals_that_need_shapes_name_their_place(lines: str, expected: tuple[str, str]) -> None:
    place, words = expected
    message = refusal("t", types((2, 3)), HEAD + lines + "}\n")
    assert f"op.cuts:{place}: error:" in message
    assert words in message


def test_the_error_is_one_of_the_specification() -> None:
    with pytest.raises(CutsError) as caught:
        REGISTRY.extend(_source("  y[n, d] = y[n, d] + x[n, d]\n"))
    assert isinstance(caught.value, SpecError)
    assert caught.value.exit_code == 3


def test_a_piece_of_no_elements_counts_as_written() -> None:
    join = REGISTRY["concat"].instantiate([TensorType(DType.F32, (0, 3)), TensorType(DType.F32, (2, 3))], {"axis": 0})
    assert join.output_types == (TensorType(DType.F32, (2, 3)),)


def _source(lines: str) -> Source:
    return Source("op.cuts", HEAD + lines + "}\n")
