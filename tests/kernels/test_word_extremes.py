"""Extremes of bytes, a word at a time."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.compile.build import build
from cuts.ir import parse_ir, print_ir
from cuts.passes.instructions import select_instructions
from cuts.tests.fusion.test_narrow_products import RNG, pooling
from cuts.tests.needs import needs_cuda, needs_toolchain

from .test_instruction_selection import KERNEL

LINES = """    %0: i8 = load global x[8*tid + u]
    accumulate held[u]: i8 = max of %0"""


def selected(lines: str, dialect: str = "cuda") -> str:
    """Return the text of a kernel over bytes after selection."""
    text = KERNEL.replace("x: f32", "x: i8").replace("u < 4", "u < 8")
    found = select_instructions(parse_ir(text % ("phase compute p unroll u", lines)), dialect)
    assert parse_ir(print_ir(found)) == found
    return print_ir(found)


def high_bytes(words: np.ndarray) -> np.ndarray:
    """Return the high bytes of the halves of words."""
    return words.view(np.int8)[..., 1::2]


def test_loaded_bytes_are_compared_as_words() -> None:
    assert "accumulate held[u]: i8 = max of %0 along u" in selected(LINES)
    assert "along" not in selected(LINES, "opencl")
    assert "along" not in selected(LINES.replace("8*tid", "9*tid"))


def test_high_bytes_decide_about_halves() -> None:
    a, b = (RNG.integers(-128, 128, (4096, 4)).astype(np.int8) for _ in range(2))
    shifted = [np.concatenate([np.zeros((4096, 1), np.int8), x[:, :3]], 1) for x in (a, b)]
    odd, even = (np.maximum(x.view(np.int16), y.view(np.int16)) for x, y in ((a, b), shifted))
    found = np.stack([high_bytes(even), high_bytes(odd)], -1).reshape(-1, 4)
    assert np.array_equal(found, np.maximum(a, b))


@needs_toolchain
@pytest.mark.parametrize("to", ["i8", "u8"])
def test_pooled_bytes_compile_as_words(to: str) -> None:
    plan = build(pooling(to, images=32, size=56), target="cuda:sm_90")
    assert any(f"cuts_max_{to}x4" in launch.kernel.source for launch in plan.launches)


@needs_cuda
@pytest.mark.parametrize("to", ["i8", "u8"])
def test_pooled_words_are_exact_cuda(to: str) -> None:
    whole = pooling(to, images=32, size=56)
    x = RNG.integers(-64, 64, (32, 32, 56, 56)).astype(np.float32) / 8
    found, want = (build(whole, target=target).run({"x": x})["y"] for target in ("cuda", "reference"))
    assert np.array_equal(found, want)
