"""Constant tables fold into scalar graphs with the textbook operation counts.

Every legal point of the result is right.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.ir.dfg import Op, post_order
from cuts.ir.kernel import phases
from cuts.ir.segment import FusedGroup
from cuts.ir.source import Source
from cuts.ops import Registry
from cuts.ops.reference import evaluate
from cuts.passes.fusion.interpret import interpret
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.selection.choose import choose
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import DEVICES
from .cases import Builder, arrays, builder, points, unite
from .test_points import SPACES, _device, check

TRANSFORMS = [("winograd_input", {"tile": 2}), ("winograd_input", {"tile": 4}), ("winograd_filter", {"tile": 2}),
              ("winograd_filter", {"tile": 4}), ("winograd_output", {"tile": 2}),
              ("winograd_output", {"tile": 4})]  # fmt: skip

_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]


def transform(op: str, tile: int, *, n: int = 1, c: int = 1, height: int = 1, width: int = 1) -> FusedGroup:
    """Return a transform over so many tiles; `height` and `width` count results."""
    make = builder()
    if op == "winograd_input":
        value = make.node(op, make.input(n, c, height + 2, width + 2), tile=tile)
    elif op == "winograd_filter":
        value = make.node(op, make.input(n, c, 3, 3), tile=tile)
    else:
        rows, columns = -(-height // tile), -(-width // tile)
        value = make.node(op, make.input(tile + 2, tile + 2, c, n, rows, columns), make.input(c), sizes=(height, width))
    return unite(make.programs(), value)


def counts(group: FusedGroup) -> Counter[str]:
    """Return the scalar operations of one thread with one tile."""
    target = find_target("cuda:sm_90")
    schedule = choose(group, target)[0].schedule
    kernel = extract(lower(group, schedule, {}, target))
    roots = [r for phase in phases(kernel.items) for r in phase.roots]
    return Counter(node.fn for node in post_order(roots) if isinstance(node, Op))


@pytest.mark.parametrize(
    ("op", "tile", "additions", "products"),
    [("winograd_input", 2, 32, 0), ("winograd_filter", 2, 21, 12), ("winograd_output", 2, 24 + 4, 0),
     ("winograd_input", 4, 144, 120),
     ("winograd_filter", 4, 54, 52), ("winograd_output", 4, 100 + 16, 60)],
)  # fmt: skip
def test_transforms_have_the_textbook_counts(op: str, tile: int, additions: int, products: int) -> None:
    # The bias adds at most one per result. Lavin and Gray count 32, 28, 24 and 156, 72, 90 operations, a fused
    # multiply-add as one.
    found = counts(transform(op, tile, height=tile, width=tile))
    assert found["add"] + found["sub"] <= additions
    assert found["mul"] <= products
    assert set(found) <= {"add", "sub", "mul", "neg"}


@pytest.mark.parametrize(("tile", "most"), [(4, 16), (8, 56), (16, 168)])
def test_cosine_matrix_becomes_a_fast_fourier_transform(tile: int, most: int) -> None:
    """Columns of a two-dimensional transform are complex ones of `tile` points.

    They take at most 5 n log2 n operations, here those of split radix.
    """
    text = """
op complex_dft "n complex points" {
  type T: float
  in x: T[2, N]
  table C: T = [[circle(a * i, N)[0] for i < N] for a < N]
  table S: T = [[circle(a * i, N)[1] for i < N] for a < N]
  out y: T[2, N]
  each e < 2: y[e, a] = sum[i < N] (C[a, i] * x[e, i] + (1 if e == 0 else -1) * S[a, i] * x[1 - e, i])
}
"""
    make = Builder(Registry.builtin().extend(Source("dft.cuts", text)), {}, [], [])
    value = make.node("complex_dft", make.input(2, tile))
    found = counts(unite(make.programs(), value))
    assert sum(found.values()) <= most <= 5 * tile * np.log2(tile)


def test_other_digits_of_an_axis_stay_parallel() -> None:
    """A thread computes one of eight transforms of three samples."""
    text = """
op pass "transforms of every eighth sample from the k-th on" {
  type T: float
  in x: T[24]
  table C: T = [[circle(q * d, 3)[0] for d < 3] for q < 3]
  out y: T[20]
  y[k] = sum[d < 3] C[k // 8, d] * x[k % 8 + 8 * d]
}
"""
    make = Builder(Registry.builtin().extend(Source("pass.cuts", text)), {}, [], [])
    value = make.node("pass", make.input(24))
    group = unite(make.programs(), value)
    (segment,) = group.segments
    assert not group.constants and [a.extent for a in segment.axes] == [8] and len(segment.outputs) == 3
    (inputs,) = arrays(group, 1).values()
    wanted = np.fft.fft(np.float64(inputs).reshape(3, 8), axis=0).real.reshape(-1)[:20]
    (found,) = interpret(group, dict(zip(group.inputs, [inputs], strict=True))).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@settings(max_examples=examples(8, 400), deadline=None)
@given(st.data())
def test_folding_keeps_the_value(data: st.DataObject) -> None:
    op, attributes = data.draw(st.sampled_from(TRANSFORMS))
    sizes = {name: data.draw(st.integers(1, 6)) for name in ("n", "c", "height", "width")}
    group = transform(op, attributes["tile"], **sizes)
    assert not group.constants
    inputs = arrays(group, 1)
    shapes = [group.tensors[t] for t in group.inputs]
    given_: dict[str, Any] = attributes if op != "winograd_output" else {"sizes": (sizes["height"], sizes["width"])}
    program = Registry.builtin()[op].instantiate(shapes, given_).program
    expected = evaluate(program, dict(zip(program.inputs, inputs.values(), strict=True)))
    (found,) = interpret(group, inputs).values()
    np.testing.assert_allclose(found, next(iter(expected.values())), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@settings(
    max_examples=examples(8, 400),
    deadline=None,
    suppress_health_check=_SUPPRESSED_CHECKS,
)
@given(st.data())
def test_points_of_transforms(device: str, data: st.DataObject) -> None:
    op, attributes = data.draw(st.sampled_from(TRANSFORMS))
    sizes = {name: data.draw(st.integers(1, 9)) for name in ("n", "c", "height", "width")}
    group = transform(op, attributes["tile"], **sizes)
    schedule = data.draw(points(group, SPACES[device]))
    assume(schedule is not None)
    check(_device(device), SPACES[device], group, schedule)


def test_source_is_text() -> None:
    """A chosen point prints."""
    target = find_target("cuda:sm_90")
    group = transform("winograd_input", 4, n=2, c=3, height=14, width=14)
    assert "constant" not in emit(extract(lower(group, choose(group, target)[0].schedule, {}, target)), "cuda").source


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=15, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_table_indexed_by_threads_is_a_kernel_array(device: str, data: st.DataObject) -> None:
    text = """
op spread "neighbours, weighted by place" {
  type T: float
  in x: T[N, W]
  table A: T = [[i + 100 * j for j < 3] for i < 130]
  out y: T[N, W]
  y[n, w] = sum[j < 3] A[w, j] * x[n, w + j - 1] outside 0
}
"""
    make = Builder(Registry.builtin().extend(Source("spread.cuts", text)), {}, [], [])
    value = make.node("spread", make.input(3, 130))
    group = unite(make.programs(), value)
    assert group.constants
    schedule = data.draw(points(group, SPACES[device]))
    assume(schedule is not None)
    check(_device(device), SPACES[device], group, schedule)
