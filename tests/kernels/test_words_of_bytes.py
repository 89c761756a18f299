"""Extremes and conversions of bytes, a word at a time."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cuts.backends.source.dialect.byte_conversions import FRACTION_BITS
from cuts.compile.build import build
from cuts.ir import parse_ir, phases, print_ir
from cuts.ir.graph import Graph
from cuts.ir.verify.dfg import check_vectors_whole
from cuts.passes.instructions import select_instructions
from cuts.tests.fusion.build import op
from cuts.tests.fusion.test_narrow_products import RNG, numbers, pooling, powers, rounding, with_constants
from cuts.tests.needs import needs_cuda, needs_toolchain

from .test_instruction_selection import KERNEL

LINES = """    %0: i8 = load global x[8*tid + u]
    accumulate held[u]: i8 = max of %0"""


def selection_text(lines: str, dialect: str = "cuda") -> str:
    """Return the text of a kernel over bytes after selection."""
    text = KERNEL.replace("x: f32", "x: i8").replace("u < 4", "u < 8")
    found = select_instructions(parse_ir(text % ("phase compute p unroll u", lines)), dialect)
    assert parse_ir(print_ir(found)) == found
    return print_ir(found)


def residual(to: str, images: int = 32, size: int = 28) -> Graph:
    """Return a convolution whose rounded results are added to its input."""
    lines = [*rounding("d", "x", "s", to), op("v", "dequantize", "w", "ws", axis=0), op("c", "conv", "d", "v"),
             *rounding("e", "c", "t", to), op("a", "add", "d", "e"), op("r", "relu", "a"),
             op("y", "quantize", "r", "u", to=to)]  # fmt: skip
    constants = {"w": numbers((64, 64, 1, 1)), "ws": powers(64), "s": np.float32(0.25), "t": np.float32(0.5)}
    return with_constants(lines, {"x": (images, 64, size, size)}, constants | {"u": np.float32(0.125)})


CONVERSIONS = """    %0: f32 = load global y[4*tid + u]
    %1: i8 = convert %0
    %2: f32 = convert %1
    store global y[4*tid + u]: f32 = %2"""


def rounding_with(zero: int) -> Graph:
    """Return a rounding to bytes with a zero point."""
    constants = {"s": np.float32(0.5), "z": np.array(zero, np.uint8)}
    return with_constants([op("y", "quantize", "x", "s", "z", to="u8")], {"x": (64, 4096)}, constants)


def high_bytes(words: np.ndarray) -> np.ndarray:
    """Return the high bytes of the halves of words."""
    return words.view(np.int8)[..., 1::2]


def test_loaded_bytes_are_compared_as_words() -> None:
    assert "accumulate held[u]: i8 = max of %0 along u" in selection_text(LINES)
    assert "along" not in selection_text(LINES, "opencl")
    assert "along" not in selection_text(LINES.replace("8*tid", "9*tid"))


def test_high_bytes_decide_about_halves() -> None:
    a, b = (RNG.integers(-128, 128, (4096, 4)).astype(np.int8) for _ in range(2))
    shifted = [np.concatenate([np.zeros((4096, 1), np.int8), x[:, :3]], 1) for x in (a, b)]
    odd, even = (np.maximum(x.view(np.int16), y.view(np.int16)) for x, y in ((a, b), shifted))
    found = np.stack([high_bytes(even), high_bytes(odd)], -1).reshape(-1, 4)
    assert np.array_equal(found, np.maximum(a, b))


BITS = """    %0: u8 = load global x[4*tid + w]
    %1: u8 = window %0 over (w) at ((u // 2))
    %2: u8 = index 4*(u % 2)
    %3: u8 = shr(%1, %2)
    %4: u8 = bitand(%3, 15:u8)
    %5: f32 = convert %4
    %6: f32 = %5 - 7.0
    accumulate held[0]: f32 = sum of %6 over (u)"""


def test_bits_become_floats_as_words_are_loaded() -> None:
    kernel = KERNEL.replace("x: f32", "x: u8").replace("u < 4, v < 6", "u < 8, w < 4")
    kernel %= "phase compute p unroll u, w", BITS
    found = select_instructions(parse_ir(kernel), "cuda")
    assert parse_ir(print_ir(found)) == found
    assert not list(check_vectors_whole(phases(found.items)[0].roots))
    assert "vector_load global x[(u // 2) + 4*tid] over u by (4) of u8 bits 4 less 7" in print_ir(found)
    for other in (kernel.replace("15:u8", "7:u8"), kernel.replace("4*(u % 2)", "2*(u % 2)")):
        assert "bits" not in print_ir(select_instructions(parse_ir(other), "cuda"))
    assert "bits" not in print_ir(select_instructions(parse_ir(kernel), "opencl"))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_merged_bits_are_floats_exactly(bits: int) -> None:
    words = RNG.integers(0, 1 << 32, 4096, dtype=np.uint32)
    for place, zero in product(range(32 // bits), (-127, 0, 8, 127)):
        at = place % (FRACTION_BITS // bits) * bits
        merged = (words >> np.uint32(place * bits - at) & np.uint32(((1 << bits) - 1) << at)) | np.uint32(0x4B000000)
        unit, base = np.float32(1 << at), np.float32(2**23)
        found = merged.view(np.float32).astype(np.float64) / unit - np.float64(base / unit + np.float32(zero))
        wanted = (words >> np.uint32(place * bits) & np.uint32((1 << bits) - 1)).astype(np.float64) - zero
        assert np.array_equal(found, wanted)


def test_conversions_to_bytes_and_back_share_words() -> None:
    assert "%1: f32 = convert_words %0 through i8 over u" in selection_text(CONVERSIONS)
    assert "through" not in selection_text(CONVERSIONS, "opencl")


@needs_toolchain
@pytest.mark.parametrize("to", ["i8", "u8"])
def test_rounded_sums_compile_as_words(to: str) -> None:
    plan = build(residual(to), target="cuda:sm_90")
    assert not any(f"cuts_f32_of_{to}(cuts_{to}_of_f32(" in launch.kernel.source for launch in plan.launches)


@needs_cuda
@pytest.mark.parametrize("to", ["i8", "u8"])
def test_rounded_sums_are_exact_cuda(to: str) -> None:
    whole, x = residual(to), RNG.integers(-64, 64, (32, 64, 28, 28)).astype(np.float32) / 8
    found, want = (build(whole, target=target).run({"x": x})["y"] for target in ("cuda", "reference"))
    assert np.array_equal(found, want)


@needs_toolchain
def test_zero_points_share_the_sum_of_a_rounding() -> None:
    (launch,) = build(rounding_with(121), target="cuda:sm_90").launches
    assert "+ 12582912.0f) - 12582791.0f)" in launch.kernel.source and "x4_of_sums(" in launch.kernel.source


@needs_cuda
@pytest.mark.parametrize("zero", [0, 1, 121, 255])
def test_zero_points_are_exact_cuda(zero: int) -> None:
    x = RNG.integers(-600, 600, (64, 4096)).astype(np.float32) / 4
    x[0, :8] = [np.nan, np.inf, -np.inf, 2.0**22, -(2.0**22), 2.0**24, 1e30, -0.0]
    found, want = (build(rounding_with(zero), target=target).run({"x": x})["y"] for target in ("cuda", "reference"))
    assert np.array_equal(found[1:], want[1:]) and np.array_equal(found[0, 1:], want[0, 1:])


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
