"""Declarations: printing, errors with their places, errors of instantiation."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from cuts.ir.errors import CutsError, ErrorList, GraphError, SpecError
from cuts.ir.functions import FUNCTIONS
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.language.evaluation.builtins import BUILTINS
from cuts.ops.language.text.parser import parse
from cuts.ops.language.text.printer import print_file
from cuts.ops.language.text.syntax import Declaration, Repetition
from hypothesis import given, settings
from hypothesis import strategies as st

SPEC = files("cuts.spec")
FILES = sorted(f.name for f in SPEC.iterdir() if f.name.endswith(".cuts"))
REGISTRY = Registry.builtin()


def types(*shapes: tuple[int, ...]) -> list[TensorType]:
    return [TensorType(DType.F32, s) for s in shapes]


def errors(text: str) -> list[str]:
    """Return the errors of a file as `line:column message | hint`."""
    with pytest.raises(CutsError) as caught:
        REGISTRY.extend(Source("op.cuts", text))
    found = caught.value.errors if isinstance(caught.value, ErrorList) else [caught.value]
    lines = []
    for error in found:
        line, column = error.span.source.line_column(error.span.start)
        lines.append(f"{line}:{column} {error.message}" + (f" | {error.hint}" if error.hint else ""))
    return lines


def refusal(op: str, operands: list[Any], text: str = "", **attributes: Any) -> str:
    """Return the vocabulary's or a text's error message for its operands."""
    registry = REGISTRY.extend(Source("op.cuts", text)) if text else REGISTRY
    with pytest.raises((GraphError, SpecError)) as caught:
        registry[op].instantiate(operands, attributes)
    return str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_print_parse_print_is_the_identity(name: str) -> None:
    tree = parse(Source(name, SPEC.joinpath(name).read_text()))
    text = print_file(tree)
    assert parse(Source("again", text)) == tree
    assert print_file(parse(Source("again", text))) == text


def test_parentheses_are_kept_where_they_matter() -> None:
    head = 'op t "t" {\n  in a: f32[N], b: f32[N]\n  out y: f32[N]\n  y = '
    value = "a - (b - a) * -b ** 2 / (sum[i < N] a[i] * b[i]) if not (a < b or b > 1) and a >= 0 else (a + b) * 2\n}\n"
    assert print_file(parse(Source("t", head + value))) == head + value


#: Operations that take more lines than most, each with its reason.
LONG_OPERATIONS = {
    "grid_sample": "places and weights of three modes and three paddings, at NaN and infinity too",
    "lu": "the statements of a step: a pivot, an exchange, multipliers, and the remaining matrix",
    "lstm": "four gates and two states, each of them a statement of the step",
    "gru": "seven statements of a step, and the attributes that ONNX gives its activations",
    "conv": "five algorithms, each a line and what it is made of",
    "dft": "the direct sum and five algorithms, each a line and what it is made of",
    "mixed_radix": "matrices of two factors of a radix, twiddles, and the layout between passes",
    "mixed_radix_real": "matrices of two factors of a radix, twiddles and signs, and the layout between passes",
    "attention": "scores, what each kind of mask chooses of them, and a softmax that kernels may take in parts",
    "attention_state": "the statements of attention, and the logarithm of its sums",
    "attention_scores_gradient": "scores, masks and weights once more, and two sums over the width",
    "grouped_matmul": "blocks of rows that belong to one group, and the place of each row in its block",
    "roi_align_adaptive": "regions with as many samples as pixels: bounds, counts and weights along each axis",
    "scaled_matmul": "scales of a tensor, of its rows or of blocks along each axis, and a requirement for each",
    "unique": "an order, where runs begin, their scan, and five results",
    "top_k": "the parts of a row and what is left of them are compared in the same way, NaN included",
}


def test_every_operation_is_summarised_and_short() -> None:
    for op in REGISTRY.values():
        assert op.summary
        own = [item for item in op.items if item.span.source is op.span.source and item.span.start > op.span.start]
        assert (
            len(own) + sum(len(item.items) for item in own if isinstance(item, Repetition)) <= 15
            or op.name in LONG_OPERATIONS
        ), op.name


def test_all_errors_of_a_file_come_together() -> None:
    assert errors(
        """\
op one : nothing "unknown family" { in x: f32[N] out y: f32[N] y = x }
op two "many slips" {
  type T: flot
  in x: T[N, C]
  attr a: ints = ones(M), k: number = 2
  require N == 3 "found {zz}"
  out y: T[N, C], z: T[N]
  y[n] = sum[c < C] x[n, c, 1] * frob(x) + exp(1, 2)
  q[n] = 1
}
op three "syntax" {
  in x: f32[N]
  out y: f32[N]
  y[n] = x[n] +* 3
  y = x @ 2
}
op three "again" { in x: f32[N] out y: f32[N] y = x }
op three "and again" { in x: f32[N] out y: f32[N] y = x }
"""
    ) == [
        "1:4 unknown family 'nothing' | families are " + ", ".join(sorted(REGISTRY._families)),
        "3:8 unknown element type class 'flot' | expected float, int, number, any, "
        + ", ".join(d.value for d in DType),
        "5:23 unknown name 'M' | names in scope: C, N, T, x",
        "5:30 unknown attribute type 'number' | expected axes, axis, bool, dtype, float, floats, int, ints, string, "
        "strings",
        "6:26 unknown name 'zz' | names in scope: C, N, T, a, k, x",
        "7:19 result 'z' of op 'two' is never assigned",
        "8:3 tensor 'y' has 2 dims, found 1 subscripts",
        "8:21 tensor 'x' has 2 dims, found 3 subscripts",
        "8:34 unknown function 'frob' | see spec/README.md",
        "8:44 'exp' takes 1 argument, found 2",
        "9:3 'q' is no result or intermediate | expected y or z",
        "14:16 unexpected '*' | expected an expression",
        "15:9 unexpected character '@' | expected an operator, '(', ')', ',', ':', '[', ']', '{', '}', a name or a "
        "string",
        "18:4 op 'three' is declared twice | the first is at op.cuts:17:4",
    ]


@pytest.mark.parametrize("function", sorted(name for name, row in FUNCTIONS.items() if row.domain != "numbers"))
def test_a_function_refuses_types_outside_its_domain(function: str) -> None:
    row = FUNCTIONS[function]
    dtype = next(d for d in (DType.I32, DType.F32) if not row.takes(d))
    called = f"{function}({', '.join(['x'] * row.arity)})"
    text = f'op other "other type" {{\n  in x: {dtype}[N]\n  out y: {dtype}[N]\n  y = {called}\n}}\n'
    found = refusal("other", [TensorType(dtype, (3,))], text)
    assert f"'{function}' is a function of {row.domain}, found {dtype}" in found


def test_an_error_shows_the_line_with_a_caret() -> None:
    with pytest.raises(SpecError) as caught:
        REGISTRY.extend(Source("my.cuts", 'op twice "2 x" {\n  in x: f32[N]\n  out y: f32[M]\n  y[n] = 2 * x[n]\n}\n'))
    assert str(caught.value) == (
        "my.cuts:3:14: error: unknown name 'M'\n   3 |   out y: f32[M]\n     |              ^ names in scope: N, x"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y[n] = x[n]", "4:3 tensor 'y' has 2 dims, found 1 subscripts"),
        ("y = rlu(x)", "4:7 unknown function 'rlu' | see spec/README.md"),
        ("y[n, c] = sum[n < N] x[n, c]", "4:13 'n' already has a meaning here | choose another name for the index"),
        ("y[n, c] = x[n, d]", "4:18 unknown name 'd' | names in scope: C, N, c, n, x, y"),
        ("x = y", "4:3 'x' is no result or intermediate | expected y"),
        ("y = (x + 1) outside 0", "4:7 'outside' follows the subscripts of a tensor"),
        ("let pi = 3  y = x", "4:7 'pi' is a reserved name"),
        ("attr y: int = 3  y = x", "4:8 'y' is defined twice | the first is at op.cuts:3:7"),
        ("y = select(x)", "4:7 'select' takes 3 arguments, found 1"),
    ],
)
def test_a_slip_is_named_where_it_stands(line: str, message: str) -> None:
    assert message in errors(f'op t "t" {{\n  in x: f32[N, C]\n  out y: f32[N, C]\n  {line}\n}}\n')


def test_text_outside_a_declaration_and_an_open_bracket() -> None:
    assert errors("hello\n") == ["1:1 expected 'op' or 'family' at the start of a line"]
    assert errors('op t "t" {\n  in x: f32[N\n  out y: f32[N]\n  y = x\n}\n') == [
        "3:3 unexpected 'out' | expected an operator, ',', ':' or ']'"
    ]


def test_operands_that_do_not_fit_are_explained() -> None:
    assert refusal("conv", types((1, 4, 8, 8), (6, 3, 3, 3))) == (
        "op 'conv': operand 'w': expected 4 / 1 input channels and a multiple of 1 output channels, found 3 and 6"
    )
    assert refusal("conv", types((1, 4, 8, 8))) == "op 'conv': expected 2 to 3 operands (x, w, b?), found 1"
    assert (
        refusal("conv", types((4,), (6, 3, 3))) == "op 'conv': operand 'x': expected at least 2 axes, found 1 in f32[4]"
    )
    assert (
        refusal("conv", types((1, 4, 8), (6, 4, 3), (5,)))
        == "op 'conv': operand 'b': expected K = 6, found 5 in f32[5]"
    )
    assert (
        refusal("relu", [TensorType(DType.BOOL, (3,))])
        == "op 'relu': operand 'x': expected element type number, found bool"
    )
    assert (
        refusal("add", [*types((3,)), TensorType(DType.F16, (3,))])
        == "op 'add': operand 'b': expected element type f32, found f16"
    )
    assert "op 'add' of (f32[2, 3], f32[4]): shapes [2, 3] and [4] do not broadcast: sizes 3 and 4 differ" in refusal(
        "add", types((2, 3), (4,))
    )
    assert (
        refusal("matmul", types((2, 3), (4, 5)))
        == "op 'matmul': operand 'b': expected inner size 3, found shape [4, 5]"
    )
    assert (
        refusal("batch_norm", types((1, 4), (4,), (4,), (3,), (4,)))
        == "op 'batch_norm': operand 'mean': expected C = 4, found 3 in f32[3]"
    )


def test_attributes_that_do_not_fit_are_explained() -> None:
    x = types((2, 3, 4))
    assert refusal("softmax", x, axis=3) == "op 'softmax': attribute 'axis': expected an axis from -3 to 2, found 3"
    assert (
        refusal("softmax", types(()), axis=0)
        == "op 'softmax': attribute 'axis': expected no axis, as there is none, found 0"
    )
    assert refusal("softmax", x, axes=3) == "op 'softmax': unknown attribute 'axes'; it has axis"
    assert refusal("softmax", x, axis="last") == "op 'softmax': attribute 'axis': expected an axis, found last"
    assert (
        refusal("transpose", x, perm=(0, 0, 1))
        == "op 'transpose': attribute 'perm': expected distinct axes, found [0, 0, 1]"
    )
    assert refusal("max_pool", x) == "op 'max_pool': attribute 'kernel_shape': expected a list of integers, found none"
    assert (
        refusal("max_pool", x, kernel_shape=(2, 2))
        == "op 'max_pool': attribute 'kernel_shape': expected 1 items, found [2, 2]"
    )
    assert refusal("pad", x, pads=(0,) * 6, mode="odd") == (
        'op \'pad\': attribute \'mode\': expected "constant" or "edge" or "reflect" or "wrap", found odd'
    )
    assert (
        refusal("reshape", x, shape=(5, -1))
        == "op 'reshape': attribute 'shape': [5, -1] does not hold the 24 elements of shape [2, 3, 4]"
    )


def test_shape_errors_point_into_the_declaration() -> None:
    head = 'op t "t" {\n  in x: f32[N]\n  out y: f32[N]\n  '
    assert refusal("t", types((4,)), head + "y[n] = x[n + 1]\n}") == (
        "op.cuts:4:10: error: op 't' of (f32[4]): 'x' is read out of bounds: index n + 1 of axis 0 runs from 1 to 4, "
        "the axis has 4 elements; "
        "say what is 'outside'\n"
        "   4 |   y[n] = x[n + 1]\n     |          ^^^^^^^^"
    )
    assert "writes 2 of the 4 elements of 'y'" in refusal("t", types((4,)), head + "y[2 * n] = x[n] for n < N // 2\n}")
    assert "'y' is written several times, for every value of m" in refusal(
        "t", types((4,)), head + "y[n] = x[n] for m < 2\n}"
    )
    assert "the product of n and n is not affine" in refusal("t", types((4,)), head + "y[n] = x[n * n]\n}")
    assert "'y' has element type f32, the value bool" in refusal("t", types((4,)), head + "y = x > 0\n}")


def test_an_unknown_op_suggests_near_ones() -> None:
    with pytest.raises(GraphError, match="unknown op 'sofmax'; did you mean 'softmax' or 'log_softmax'"):
        REGISTRY["sofmax"]


def test_user_files_get_what_built_in_ones_get(tmp_path: Path) -> None:
    (tmp_path / "mine.cuts").write_text('op twice : unary "two times x" { y = 2 * x }\n')
    registry = REGISTRY.load(tmp_path)
    assert registry["twice"].instantiate(types((3,))).output_types == (TensorType(DType.F32, (3,)),)
    assert "twice" not in REGISTRY


def test_constant_operands_can_give_a_shape() -> None:
    import numpy as np

    text = 'op fill "zeros of a shape" { in shape: i64[R] let s = value(shape) out y: f32[...s]  y = 0 }'
    decl = REGISTRY.extend(Source("op.cuts", text))["fill"]
    shape = TensorType(DType.I64, (2,))
    assert decl.instantiate([shape], {}, {0: np.array([2, 3])}).output_types[0].shape == (2, 3)
    with pytest.raises(GraphError, match="operand 'shape': expected a constant, found a computed value"):
        decl.instantiate([shape])


@pytest.mark.parametrize(
    ("n", "most", "factors"),
    [(4096, 16, (16, 16, 16)), (4096, 64, (64, 64)), (1 << 17, 16, (8, 8, 8, 16, 16)), (1000, 64, (25, 40)),
     (13, 16, (13,)), (34, 16, ()), (1, 16, ())],
)  # fmt: skip
def test_radices_are_few_and_near_one_another(n: int, most: int, factors: tuple[int, ...]) -> None:
    assert BUILTINS["radices"].apply(n, most) == factors


def test_smooth_numbers_and_distances_on_a_circle() -> None:
    assert [BUILTINS["smooth"].apply(n, 5) for n in (1, 7, 33, 8185)] == [1, 8, 36, 8192]
    for n in (1, 2, 5, 6):
        assert [BUILTINS["circle_distance"].apply(k, n) for k in range(n)] == [min(k, n - k) for k in range(n)]


def test_the_manual_names_functions_with_valid_examples() -> None:
    manual = SPEC.joinpath("README.md").read_text()
    words = set(re.findall(r"[a-z_0-9]+", manual))
    assert {*BUILTINS, *FUNCTIONS} - words - {
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
    } == set()
    registry = Registry().extend(Source("README.md", manual.split("```")[1]))
    assert registry["conv"].instantiate(types((1, 3, 9), (4, 3, 2))).output_types[0].shape == (1, 4, 8)


TOKEN = re.compile(r'"[^"\n]*"|\.\.\.|\w+|\+\+|\*\*|//|[<>=!]=|[^\s\w]')


@cache
def declarations() -> list[Declaration]:
    every = (parse(Source(name, SPEC.joinpath(name).read_text())) for name in FILES)
    return [declaration for each in every for declaration in each if declaration.kind == "op"]


@cache
def tokens() -> list[str]:
    return sorted({token for d in declarations() for token in TOKEN.findall(print_file([d]))})


@settings(deadline=None, max_examples=200)
@given(declaration=st.deferred(lambda: st.sampled_from(declarations())), random=st.randoms(use_true_random=False))
def test_mutated_declarations_fail_in_words_only(declaration: Any, random: Any) -> None:
    text = print_file([declaration])
    for _ in range(random.choice((0, 1, 2))):
        match = random.choice(list(TOKEN.finditer(text))[4:])
        text = text[: match.start()] + random.choice(("", *tokens())) + text[match.end() :]
    text = text.replace(f"op {declaration.name}", "op mutant", 1)
    shapes = [tuple(random.choice((1, 2, 3, 4, 6)) for _ in range(random.choice((0, 1, 2, 3, 4)))) for _ in range(9)]
    with suppress(CutsError):
        op = REGISTRY.extend(Source("mutant.cuts", text))["mutant"]
        op.instantiate(
            [TensorType(random.choice((DType.F32, DType.F32, DType.I64)), shapes.pop()) for _ in op.operands]
        )
