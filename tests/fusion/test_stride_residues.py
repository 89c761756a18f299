"""Stride residues: sums under a condition, divided by residues.

The statements for each residue compute the same over fewer terms.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.affine import is_affine
from cuts.ir.compiled import CompileOptions
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate
from cuts.passes.statements.stride_residues import split_residues
from cuts.tests.amounts import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_opencl
from .build import REGISTRY, graph, op


@st.composite
def transposed_convolutions(draw: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Return operand shapes and attributes of a transposed convolution.

    It has one or two spatial dims.
    """
    rank, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2]))
    few = st.integers(1, 4)
    kernel, image = [draw(few) for _ in range(rank)], [draw(few) for _ in range(rank)]
    strides, dilations = [draw(few) for _ in range(rank)], [draw(st.integers(1, 3)) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    more = [draw(st.integers(0, s - 1)) for s in strides]
    whole = zip(image, strides, more, dilations, kernel, pads, pads[rank:], strict=False)
    assume(all((i - 1) * s + m + d * (k - 1) + 1 - a - b > 0 for i, s, m, d, k, a, b in whole))
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": more, "groups": groups}
    shapes = {"x": (2, 8 * groups, *image), "w": (8 * groups, 2, *kernel)}
    return shapes, {name: tuple(v) if isinstance(v, list) else v for name, v in attributes.items()}


def program_of(shapes: dict[str, tuple[int, ...]], attributes: dict[str, Any], dtype: DType = DType.F32) -> Program:
    types = [TensorType(dtype, shape) for shape in shapes.values()]
    return REGISTRY["conv_transpose"].instantiate(types, attributes).program


def terms(program: Program) -> int:
    """Return how many terms all sums of a program have."""
    return sum(prod(v.extent for v in (*s.axes, *s.reduce)) for s in program.statements if s.combine)


@settings(max_examples=examples(100, 2000), deadline=None)
@given(transposed_convolutions(), st.sampled_from([DType.F16, DType.BF16, DType.F32, DType.F64]), st.booleans())
def test_what_is_split_computes_the_same(
    case: tuple[dict[str, tuple[int, ...]], dict[str, Any]], dtype: DType, extreme: bool
) -> None:
    program = program_of(*case, dtype)
    split = split_residues(program)
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(shape) for name, shape in case[0].items()}
    if extreme:
        inputs["x"].flat[:3] = [np.nan, np.inf, -0.0]
    expected, found = evaluate(program, inputs), evaluate(split, inputs)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-12, atol=1e-12)
    assert terms(split) <= terms(program)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2), (3, 2), (5, 1)])
def test_no_term_is_computed_in_vain(stride: int, dilation: int) -> None:
    """A sum with more than 16 residues stays whole.

    Other sums have exactly the terms that meet the condition.
    """
    shapes = {"x": (1, 8, 12, 12), "w": (8, 2, 6, 6)}
    attributes = {"strides": (stride, stride), "dilations": (dilation, dilation), "pads": (1, 1, 1, 1)}
    program = program_of(shapes, attributes)
    places = program.tensors["y"].shape[-1]
    meeting = sum((o + 1 - r * dilation) % stride == 0 for o in range(places) for r in range(6))
    assert terms(split_residues(program)) == 8 * 2 * (meeting**2 if stride**2 <= 16 else (places * 6) ** 2)


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "more", "statements"),
    [(4, 2, 1, 0, 1), (2, 2, 0, 0, 1), (8, 4, 2, 0, 1), (6, 3, 1, 2, 1), (6, 3, 1, 0, 9), (3, 2, 1, 1, 4)],
)
def test_residues_with_equal_terms_are_an_axis(kernel: int, stride: int, pads: int, more: int, statements: int) -> None:
    shapes = {"x": (1, 8, 12, 12), "w": (8, 2, kernel, kernel)}
    attributes = {"strides": (stride,) * 2, "pads": (pads,) * 4, "output_padding": (more,) * 2}
    found = split_residues(program_of(shapes, attributes))
    assert len(found.statements) == statements
    assert all(is_affine(i) for s in found.statements for r in s.reads for i in r.indices) or stride > 2


@needs_opencl
@pytest.mark.parametrize(("kernel", "stride", "more", "kernels"), [(4, 2, 0, 1), (6, 3, 2, 1), (3, 2, 0, 4)])
def test_kernels_of_residues_compute_the_whole(kernel: int, stride: int, more: int, kernels: int) -> None:
    """Readers of the result are fused with it."""
    strides = {"strides": (stride, stride), "pads": (1, 1, 1, 1), "output_padding": (more, more)}
    lines = [op("a", "conv_transpose", "x", "w", "b", **strides), op("s", "relu", "a"), op("y", "add", "s", "r")]
    size = [(e - 1) * stride + kernel - 2 + more for e in (7, 9)]
    inputs = {"x": (2, 16, 7, 9), "w": (16, 8, kernel, kernel), "b": (8,), "r": (2, 8, *size)}
    plan = build_graph(graph(inputs, *lines, out="y"), load_spec([]), find_target("opencl"), CompileOptions())
    assert len(plan.plan.steps) == kernels
    assert all(result.ok for result in plan.verify())
