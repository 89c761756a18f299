"""Expert quality of derived gradients.

They have textbook operation counts and no detours, and their declarations survive printing and parsing.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.expr import Call, Read
from cuts.ir.source import Source
from cuts.ir.types import TensorType
from cuts.ops import Registry
from cuts.ops.costs import program_costs
from cuts.ops.gradient.adjoint import Adjoint, adjoint
from cuts.ops.gradient.declare import declare
from cuts.ops.gradient.gradients import Gradients
from cuts.ops.language.text.parser import parse
from cuts.ops.language.text.printer import print_declaration
from cuts.ops.reference import evaluate
from cuts.tests.operations import REGISTRY, Use, f32, uses

from .finite import derive, read_back

N, C, K, H = 2, 4, 6, 8


def gradient(use: Use, operand: str) -> Adjoint:
    return adjoint(use.instance.program, [operand], use.instance.outputs)


def flops(found: Adjoint) -> int:
    return program_costs(read_back(found).program).flops


@pytest.mark.parametrize(
    ("size", "kernel", "attributes", "groups"),
    [
        (H, 3, {"pads": (1, 1, 1, 1)}, 1),
        (H, 1, {}, 1),
        (H, 3, {"pads": (1, 1, 1, 1), "strides": (2, 2)}, 1),
        (H, 1, {"strides": (2, 2)}, 1),
        (H, 2, {"strides": (2, 2)}, 1),
        (H, 4, {"strides": (4, 4)}, 1),
        (H, 3, {"pads": (2, 2, 2, 2), "dilations": (2, 2)}, 1),
        (H, 3, {"pads": (1, 1, 1, 1)}, 2),
        (H, 3, {"pads": (1, 1, 1, 1), "strides": (2, 2)}, 2),
    ],
)
def test_convolution_backward_has_the_textbook_count(
    size: int, kernel: int, attributes: dict[str, tuple[int, ...]], groups: int
) -> None:
    use = uses("conv", (N, C, size, size), (K, C // groups, kernel, kernel), groups=groups, **attributes)
    _, _, p, q = use.instance.output_types[0].shape
    textbook = 2 * N * K * (C // groups) * p * q * kernel * kernel
    assert flops(gradient(use, "x")) == textbook
    assert flops(gradient(use, "w")) == textbook


@pytest.mark.parametrize(
    ("rank", "kernel", "stride", "pad"), [(1, 3, 1, 1), (1, 3, 2, 1), (3, 3, 1, 1), (3, 3, 2, 1), (3, 2, 2, 0)]
)
def test_convolution_gradients_have_textbook_operation_counts(rank: int, kernel: int, stride: int, pad: int) -> None:
    shapes = (N, C, *(H,) * rank), (K, C, *(kernel,) * rank)
    use = uses("conv", *shapes, strides=(stride,) * rank, pads=(pad,) * 2 * rank)
    textbook = 2 * use.instance.output_types[0].size * C * kernel**rank
    assert flops(gradient(use, "x")) == flops(gradient(use, "w")) == textbook


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 1, 1), (2, 2, 0), (4, 2, 1), (3, 3, 0)])
def test_transposed_convolution_backward_has_the_textbook_count(kernel: int, stride: int, pad: int) -> None:
    use = uses("conv_transpose", (N, C, H, H), (C, K, kernel, kernel), strides=(stride, stride), pads=(pad,) * 4)
    textbook = 2 * N * C * K * H * H * kernel * kernel
    assert flops(gradient(use, "x")) == flops(gradient(use, "w")) == textbook


def test_filter_gradient_is_one_statement_in_forward_order() -> None:
    found = gradient(uses("conv", (N, C, H, H), (K, C, 3, 3), pads=(1, 1, 1, 1)), "w")
    (line,) = [line for line in declare("g", "", found.program).splitlines() if " = " in line]
    assert line.strip() == (
        "d_w[i0, i1, i2, i3] = sum[r0 < 2, r1 < 8, r2 < 8] "
        "(d_y[r0, i0, r1, r2] * x[r0, i1, i2 + r1 - 1, i3 + r2 - 1] outside 0)"
    )  # fmt: skip


def test_matrix_product_backward_has_the_textbook_count() -> None:
    use = uses("matmul", (3, 4, 5), (5, 6))
    assert flops(gradient(use, "a")) == flops(gradient(use, "b")) == 2 * 3 * 4 * 5 * 6


@pytest.mark.parametrize(("op", "most"), [("softmax", 9), ("log_softmax", 9)])
def test_rows_have_no_gradient_through_their_maximum(op: str, most: int) -> None:
    rows, n = 16, 64
    found = gradient(uses(op, (rows, n)), "x")
    assert not any(s.combine in ("argmax", "prod") for s in found.program.statements)
    assert flops(found) <= most * rows * n + 4 * rows


def test_attention_backward_is_five_matrix_products() -> None:
    heads, m, n, e, f = 2, 16, 24, 8, 12
    use = uses("attention", (1, heads, m, e), (1, heads, n, e), (1, heads, n, f))
    products = 2 * heads * m * n * (3 * e + 2 * f)  # scores again, dq, dk, and d(weights), dv
    assert (
        products <= flops(derive(use.instance)) <= products + 16 * heads * m * n + 8 * heads * (m * e + n * e + n * f)
    )


def test_broadcasts_become_sums_and_sums_broadcasts() -> None:
    bias = gradient(uses("conv", (N, C, H, H), (K, C, 3, 3), (K,)), "b").program
    assert [(s.combine, len(s.reduce)) for s in bias.statements] == [("sum", 3)]
    total = gradient(uses("reduce_sum", (3, 4), axes=(1,)), "x").program
    assert [(s.combine, flops(gradient(uses("reduce_sum", (3, 4), axes=(1,)), "x"))) for s in total.statements] == [
        (None, 0)
    ]


@pytest.mark.parametrize(
    ("shape", "other"), [((4, 6), (3, 8)), ((2, 3, 4), (4, 6)), ((6, 5), (5, 3, 2)), ((30,), (2, 3, 5))]
)
def test_a_reshape_is_undone_without_a_sum(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    program = gradient(uses("reshape", shape, shape=other), "x").program
    assert [(s.combine, s.body.__class__.__name__) for s in program.statements] == [(None, "Read")]


PRINTED_CASES = [
    uses("conv", (1, 2, 5), (2, 2, 3), strides=(2,)),
    uses("layer_norm", (2, 3), (3,)),
    uses("lstm", (2, 1, 2), (1, 8, 2), (1, 8, 2)),
]


@pytest.mark.parametrize("use", PRINTED_CASES, ids=lambda use: use.op)
def test_a_derived_declaration_prints_and_comes_back(use: Use) -> None:
    text = declare("gradient", "a gradient", derive(use.instance).program)
    (declaration,) = parse(Source("g", text))
    printed = print_declaration(declaration)
    assert parse(Source("g", printed)) == (declaration,)
    again = (
        Registry()
        .extend(Source("g", printed))["gradient"]
        .instantiate([derive(use.instance).program.tensors[n] for n in derive(use.instance).program.inputs])
    )
    first = declare("gradient", "a gradient", again.program)
    second = (
        Registry()
        .extend(Source("g", first))["gradient"]
        .instantiate([again.program.tensors[n] for n in again.program.inputs])
    )
    assert declare("gradient", "a gradient", second.program) == first


def test_types_other_than_f32_keep_their_own() -> None:
    use = Use("softmax", (TensorType(f32().dtype.__class__.F16, (2, 3)),))
    assert {str(t.dtype) for t in derive(use.instance).program.tensors.values()} == {"f16"}


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_a_stated_gradient_equals_the_derived_one(op: str) -> None:
    use = uses(op, (3, 5), axis=0)
    (step,) = Gradients(REGISTRY).steps(use.instance, ["x"], ["y"])
    assert (step.op, step.inputs, step.outputs, step.attributes) == (f"{op}_grad", ("y", "dy"), ("dx",), {"axis": 0})
    values = use.values()
    seed = np.random.default_rng(1).standard_normal((3, 5))
    result = evaluate(use.instance.program, values)["y"]
    stated = REGISTRY[step.op].instantiate((*use.types, *use.types), step.attributes)
    derived = gradient(use, "x").program
    given = {"x": values["x"], "y": result, "d_y": seed}
    expected = evaluate(derived, {name: given[name] for name in derived.inputs})["d_x"]
    np.testing.assert_allclose(
        evaluate(stated.program, {"y": result, "dy": seed})["dx"], expected, rtol=1e-9, atol=1e-12
    )


def test_operands_that_share_work_share_a_declaration() -> None:
    gradients = Gradients(REGISTRY)
    use = uses("layer_norm", (3, 4), (4,), (4,))
    (step,) = gradients.steps(use.instance, ["x", "scale", "bias"], ["y"])
    assert step.outputs == ("dx", "dscale", "dbias")
    assert gradients.steps(uses("layer_norm", (3, 4), (4,), (4,)).instance, ["x", "scale", "bias"], ["y"]) == (step,)
    assert list(gradients.texts) == [step.op]


def test_guards_of_masked_attention_hide_no_product() -> None:
    """No gradient passes through the greatest score.

    The divisor of a row's sum stays outside of sums.
    """
    use = uses("attention", (1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 3), (3, 4))
    found = read_back(gradient(use, "q")).program
    assert not any(s.target.startswith("d_m") for s in found.statements)
    (total,) = (s for s in found.statements if s.target.startswith("d_t") and s.combine == "sum")
    assert isinstance(total.body, Call)
    assert (total.body.fn, {type(arg) for arg in total.body.args}) == ("mul", {Read})
