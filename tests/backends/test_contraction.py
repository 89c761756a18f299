"""Groups that libraries compute.

Every product and convolution is found with its parameters; groups one step away are not.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.library.recognise import Block, Convolution, Matrix, Product, find_convolution, find_product
from cuts.bench.operators.shapes import Case, convolution_case, convolutions, single
from cuts.bench.operators.tuning import group_of
from cuts.ir.compiled import Storage
from cuts.numerics.reference import run_reference
from cuts.ops import Registry
from hypothesis import given, settings
from hypothesis import strategies as st

SIZE = st.integers(1, 6)


def memory(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


def element(array: np.ndarray, matrix: Matrix, b: int, row: int, column: int) -> float:
    return float(array[matrix.offset + b * matrix.batch + row * matrix.row + column * matrix.column])


def compute_product(found: Product, arrays: dict[str, np.ndarray], size: int) -> np.ndarray:
    """Compute the parameters of a product, element by element."""
    y = np.full(size, np.nan)
    for b, m, n in product(range(found.batch), range(found.m), range(found.n)):
        pairs = (
            (element(arrays[found.a.tensor], found.a, b, m, k), element(arrays[found.b.tensor], found.b, b, k, n))
            for k in range(found.k)
        )
        y[found.y.offset + b * found.y.batch + m * found.y.row + n * found.y.column] = sum(u * v for u, v in pairs)
    return y


def compute_convolution(found: Convolution, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Compute the parameters of a convolution, element by element."""

    def view(block: Block, array: np.ndarray) -> np.ndarray:
        return np.lib.stride_tricks.as_strided(
            array.reshape(-1), block.sizes, [s * array.itemsize for s in block.steps]
        )

    x, w = view(found.image, arrays[found.image.tensor]), view(found.filter, arrays[found.filter.tensor])
    x = np.pad(x, [(0, 0), (0, 0), *zip(found.begin, found.end, strict=True)])
    y = np.zeros(found.result.sizes)
    per = found.filter.sizes[0] // found.groups
    for n, k, *place in np.ndindex(*found.result.sizes):
        for c, *tap in np.ndindex(*found.filter.sizes[1:]):
            at = [p * s + t * d for p, s, t, d in zip(place, found.strides, tap, found.dilations, strict=True)]
            y[(n, k, *place)] += x[(n, k // per * found.filter.sizes[1] + c, *at)] * w[(k, c, *tap)]
    return y


def reference(case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    registry = Registry.builtin()
    shaped = {name: arrays[name].reshape(shape).astype(np.float32) for name, shape in case.inputs.items()}
    return np.asarray(run_reference(case.graph(registry), registry, shaped)["y"])


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    return {
        t: memory(int(np.prod(s)), n).astype(np.float32).astype(np.float64)
        for n, (t, s) in enumerate(case.inputs.items())
    }


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(("shared", "each", "one", "left", "right")), SIZE, SIZE, SIZE, SIZE, st.booleans())
def test_every_product_is_found_and_is_the_operation(
    kind: str, batch: int, m: int, n: int, k: int, turned: bool
) -> None:
    shapes = {
        "shared": ((batch, m, k), (k, n)), "each": ((batch, m, k), (batch, k, n)),
        "one": ((m, k), (n, k) if turned else (k, n)),
        "left": ((k,), (k, n)), "right": ((m, k), (k,)),
    }[kind]  # fmt: skip
    op, attributes = ("gemm", {"trans_b": turned}) if kind == "one" else ("matmul", {})
    case = single("gemm", kind, 1, op, shapes, attributes)
    group = group_of(case)
    assert group is not None
    found, arrays = find_product(group), arrays_of(case)
    if group.segments[0].reductions:  # sums of one term are no sums any more
        assert found is not None
        wanted = reference(case, arrays)
        np.testing.assert_allclose(
            compute_product(found, arrays, wanted.size), wanted.reshape(-1), rtol=1e-6, atol=1e-6
        )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_convolution_is_found_and_is_the_operation(data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from((1, 2)))
    groups, per, outs = data.draw(st.sampled_from(((1, 2, 3), (1, 1, 1), (2, 2, 2), (3, 1, 1), (4, 1, 2))))
    taps = data.draw(st.tuples(*[st.integers(1, 3)] * rank))
    size = data.draw(st.tuples(*[st.integers(5, 8)] * rank))
    strides, dilations = (data.draw(st.tuples(*[st.integers(1, 2)] * rank)) for _ in range(2))
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * (2 * rank)))
    shapes = ((data.draw(st.integers(1, 2)), groups * per, *size), (groups * outs, per, *taps))
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    case = single("conv", "any", 1, "conv", shapes, attributes)
    group = group_of(case)
    assert group is not None
    if not group.segments[0].reductions:
        return
    found, arrays = find_convolution(group), arrays_of(case)
    assert found is not None
    assert found.groups == groups
    np.testing.assert_allclose(compute_convolution(found, arrays), reference(case, arrays), rtol=1e-6, atol=1e-6)


def test_parameters_of_a_strided_convolution() -> None:
    group = group_of(
        single("conv", "c", 2, "conv", ((2, 8, 14, 14), (16, 8, 3, 3)), {"strides": (2, 2), "pads": (1, 1, 1, 1)})
    )
    assert group is not None
    found = find_convolution(group)
    assert found is not None
    assert (found.strides, found.dilations, found.begin, found.groups) == ((2, 2), (1, 1), (1, 1), 1)
    assert find_product(group) is None


def test_a_filter_may_be_stored_in_any_order() -> None:
    case = convolution_case(next(iter(convolutions("resnet50"))), 1)
    group = group_of(case)
    assert group is not None
    place = Storage("w", 0, (1, 64 * 49, 64 * 7, 64))  # [c, r, s, k]
    found = find_convolution(group, {"x1": place})
    assert found is not None
    assert found.filter.steps == place.strides


def test_one_by_one_convolution_is_batch_of_products() -> None:
    group = group_of(single("conv", "c", 2, "conv", ((2, 8, 5, 5), (16, 8, 1, 1)), {}))
    assert group is not None
    found = find_product(group)
    assert found is not None
    assert (found.batch, found.m, found.n, found.k) == (2, 16, 25, 8)
    assert found.a.batch == 0


def test_sums_of_squares_are_products_of_rows() -> None:
    group = group_of(single("x", "square", 1, "reduce_sum_square", ((3, 4),), {"axes": (1,)}))
    assert group is not None
    found = find_product(group)
    assert found is not None
    assert (found.batch, found.m, found.n, found.k) == (3, 1, 1, 4)


@pytest.mark.parametrize(
    "case",
    [
        single("x", "softmax", 1, "softmax", ((3, 4),), {}),
        single("x", "pool", 1, "max_pool", ((1, 2, 8, 8),), {"kernel_shape": (2, 2)}),
        single("x", "sum", 1, "reduce_sum", ((3, 4),), {"axes": (1,)}),
        single("x", "bias", 1, "conv", ((1, 2, 8, 8), (3, 2, 3, 3), (3,)), {}),
        single("x", "scaled", 1, "gemm", ((3, 4), (4, 5)), {"alpha": 2.0}),
        single("x", "transposed", 1, "conv_transpose", ((1, 2, 8, 8), (2, 3, 3, 3)), {"strides": (2, 2)}),
    ],
    ids=lambda case: case.name,
)
def test_what_is_something_else_is_no_contraction(case: Case) -> None:
    group = group_of(case)
    if group is not None:
        assert find_product(group) is None
        assert find_convolution(group) is None


def test_an_epilogue_makes_it_something_else() -> None:
    group = group_of(single("gemm", "m", 1, "matmul", ((3, 4), (4, 5)), {}))
    other = group_of(single("gemm", "m", 1, "gemm", ((3, 4), (4, 5), (5,)), {}))
    assert group is not None and other is not None
    assert find_product(group) is not None
    assert find_product(other) is None
    constant = evolve(group, constants={"x0": tuple(range(12))})
    assert find_product(constant) is None
