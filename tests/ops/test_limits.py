"""Limits of declarations.

An excess is an error that names the limit, within moments, with a hint on the cause.
"""

from __future__ import annotations

import time

import pytest
from cuts.frontends.graph_json import graph_from_json
from cuts.ir.errors import CutsError
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.language.evaluation import evaluator
from cuts.ops.language.text.parser import parse
from cuts.ops.language.text.printer import print_file

REGISTRY = Registry.builtin()
HEAD = 'op t "t" {\n  in x: f32[N], i: i64[N]\n  attr a: int = 1, f: float = 1\n  out y: f32[N]\n'
X = [TensorType(DType.F32, (8,)), TensorType(DType.I64, (8,))]


def refusal(lines: str, **attributes: object) -> str:
    """Return a declaration's error as `line:column message`, and its hint.

    It must come soon.
    """
    start = time.monotonic()
    with pytest.raises(CutsError) as caught:
        REGISTRY.extend(Source("op.cuts", f"{HEAD}  {lines}\n}}\n"))["t"].instantiate(X, attributes)  # type: ignore[arg-type]
    assert time.monotonic() - start < 5
    error = caught.value
    place = "{}:{} ".format(*error.span.source.line_column(error.span.start)) if error.span else ""
    return f"{place}{error.message}" + (f" | {error.hint}" if error.hint else "")


OF = "op 't' of (f32[8], i64[8]): "

LONG_LOOP_ERROR = f"{OF}a repetition has at most 65536 turns, found 10000000"
OUTSIDE = "'y' is written out of bounds: j runs from 0 to 9999999, axis 0 has 8 elements"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("let k = 9 ** 9 ** 9  y = x * k", f"5:11 {OF}9 ** 387420489 has more than 128 bits"),
        ("let k = 2 ** 100 * 2 ** 100  y = x * k", f"5:11 {OF}the value of 2^100 * 2^100 has more than 128 bits"),
        ("let k = 10.0 ** 400  y = x * k", f"5:11 {OF}10.0 ** 400 is too large for a number"),
        ("let k = (0 - 8) ** 0.5  y = x * k", f"5:11 {OF}-8 ** 0.5 is no real number"),
        ("each j < 10000000: y[j] = x[j]", f"5:12 {LONG_LOOP_ERROR} | it is no loop: {OUTSIDE}"),
        ("each j < 10000000 { y[j] = x[j] }", f"5:12 {LONG_LOOP_ERROR} | it is no loop: {OUTSIDE}"),
        (
            "temp h[t < 10000000]: f32[N]  h[0][n] = x[n]  y[n] = h[0][n]",
            f"1:4 {OF}op 't' writes 0 of the 8 elements of 'h_1'",
        ),
        (
            "temp h[t < 90000]: f32[N]  h[0] = x  each t < 89999: h[t + 1] = h[t // 2]  y = h[89999]",
            f"5:49 {OF}a repetition has at most 65536 turns, found 89999 | it is no loop: index (t // 2) is no"
            " multiple of 't' and what does not depend on it",
        ),
    ],
)
def test_what_takes_for_ever_is_refused(lines: str, message: str) -> None:
    if "2^100" in message:
        message = message.replace("the value of 2^100 * 2^100", f"{2**100} * {2**100}")
    assert refusal(lines) == message


def test_repetitions_within_each_other_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_MAX_ITEMS", 1000)
    lines = "each j < 90 { each k < 90: y[n] = x[n] }"
    assert refusal(lines) == f"5:26 {OF}repetitions have at most 1000 turns in all"


def test_lists_within_each_other_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_MAX_TOTAL_ITEMS", 1000)
    lines = "let k = [sum([p + q for p < 90]) for q < 90]  y = x * k[0]"
    assert refusal(lines) == f"5:16 {OF}lists have at most 1000 items in all"


@pytest.mark.parametrize("number", ["9" * 100_000, "9" * 41, "1e999", "1." + "9" * 100_000])
def test_a_number_of_many_digits_is_refused(number: str) -> None:
    with pytest.raises(CutsError) as caught:
        parse(Source("op.cuts", f"{HEAD}  y = x * {number}\n}}\n"))
    assert caught.value.span is not None
    assert caught.value.span.source.line_column(caught.value.span.start) == (5, 11)
    assert caught.value.message == (
        "this number is too large"
        if number == "1e999"
        else f"a number has at most 40 digits, found {sum(map(str.isdigit, number))}"
    )
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["a", "f"])
def test_an_attribute_that_no_machine_holds_is_refused(name: str) -> None:
    kind = "an integer" if name == "a" else "a number"
    assert (
        refusal("y = x", **{name: 10**400})
        == f"op 't': attribute '{name}': expected {kind}, found 1{'0' * 39}... (401 digits)"
    )


def test_an_oversized_attribute_of_a_document_is_refused() -> None:
    text = (
        '{"format": "cuts.graph", "version": 1, "name": "g", "outputs": ["y"],\n'
        '"inputs": [{"name": "x", "dtype": "f32", "shape": [4]}],\n'
        f'"nodes": [{{"name": "n", "op": "leaky_relu", "inputs": ["x"], "outputs": ["y"], '
        f'"attributes": {{"alpha": 1{"0" * 400}}}}}]}}'
    )
    with pytest.raises(
        CutsError, match=r"node 'n' \(leaky_relu\): op 'leaky_relu': attribute 'alpha': expected a number, found 10"
    ):
        graph_from_json(text)


def test_element_types_are_listed_as_operands_are() -> None:
    tree = parse(
        Source(
            "op.cuts",
            'op t "t" {\n  type T: float | i32, I: int\n  in x: T[N], i: I[N]\n  out y: T[N]\n  y[n] = x[i[n]]\n}\n',
        )
    )
    assert parse(Source("again", print_file(tree))) == tree
    assert "  type T: float | i32\n  type I: int\n" in print_file(tree)


@pytest.mark.parametrize("subscript", ["i[n] + 1", "n + i[n]", "i[n] * 2"])
def test_an_element_in_an_index_needs_a_function(subscript: str) -> None:
    column = 10
    assert refusal(f"y[n] = x[{subscript}] outside 0") == (
        f"5:{column} {OF}a subscript is an index or an element of an integer tensor, found an element value;"
        " to compute with an element of an integer tensor as an index, write index(element, size)"
    )
    assert REGISTRY.extend(Source("op.cuts", f"{HEAD}  y[n] = x[index(i[n], N) + 1] outside 0\n}}\n"))["t"].instantiate(
        X, {}
    )


def test_places_that_data_decides_cannot_be_written() -> None:
    assert refusal("y[i[n]] = x[n] for n < N") == (
        f"5:3 {OF}'y' is written where data says, at i[n] of axis 0: an element could be written twice, or never"
        " | say what becomes of values that meet, as in scatter sum y[i[n]] = value (or prod, min, max)"
    )
    assert (
        refusal("y[n + 1] = x[n] for n < N")
        == f"5:3 {OF}'y' is written out of bounds: n + 1 runs from 1 to 8, axis 0 has 8 elements"
    )
