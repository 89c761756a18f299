"""Gradients of reads through clamps.

Mirrored and repeated borders cost as much as their taps, and are right.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuts.ir import DType, Source, TensorType
from cuts.ops import Registry
from cuts.ops.gradient.adjoint import adjoint
from cuts.ops.reference import evaluate
from hypothesis import given
from hypothesis import strategies as st

_TEXT = """
op blur "taps around each pixel, what lies outside is {border}" {{
  in x: f32[H, W], f: f32[R, S]
  attr step: int = 1, shift: int = 2
  out y: f32[H, W]
  y[i, j] = sum[r < R, s < S] x[{rows}, {columns}] * f[r, s]
}}
"""
_BORDERS = {"mirrored": "mirror({}, {})", "repeated": "clamp({}, 0, {} - 1)"}


def blur(border: str, image: tuple[int, int], taps: tuple[int, int], **attributes: int):
    """Return the instance of a filter with a border."""
    rows = _BORDERS[border].format("i + r - shift", "H")
    columns = _BORDERS[border].format("j + step * s - shift", "W")
    text = _TEXT.format(border=border, rows=rows, columns=columns)
    registry = Registry.builtin().extend(Source("blur.cuts", text))
    return registry["blur"].instantiate([TensorType(DType.F32, image), TensorType(DType.F32, taps)], attributes)


def evaluations(program) -> int:
    """Return how many times the bodies of a program's statements are evaluated."""
    return sum(math.prod(v.extent for v in (*s.axes, *s.reduce)) for s in program.statements)


@pytest.mark.parametrize("border", _BORDERS)
def test_an_element_gets_a_term_per_tap(border):
    program = adjoint(blur(border, (64, 64), (5, 5)).program, ["x"], ["y"]).program
    assert evaluations(program) < 30 * 64 * 64  # 25 taps, and the strips along the border


@given(
    st.sampled_from(sorted(_BORDERS)), st.tuples(st.integers(3, 9), st.integers(3, 9)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)), st.integers(0, 2), st.integers(1, 2),
)  # fmt: skip
def test_the_gradient_is_that_of_the_sum(border, image, taps, shift, step):
    """A filter is linear, so its gradient is exactly its transpose."""
    step = min(step, max(1, (image[1] - 1 + shift) // max(taps[1] - 1, 1)))
    instance = blur(border, image, taps, shift=shift, step=step)
    rng = np.random.default_rng(0)
    x, f, dy = (rng.integers(-4, 5, shape).astype(np.float64) for shape in (image, taps, image))
    derived = adjoint(instance.program, ["x"], ["y"])
    given_ = {name: {"f": f, "x": x}.get(name, dy) for name in derived.program.inputs}
    (dx,) = evaluate(derived.program, given_).values()
    y = evaluate(instance.program, {"x": x, "f": f})["y"]
    assert (dx * x).sum() == (dy * y).sum()
