"""Products of scaled bytes, and quantisations after them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.compile.build import build
from cuts.ir.evaluation import as_dtype
from cuts.ir.expr import Call, Cast, Const
from cuts.ir.graph import Graph
from cuts.ir.statement import Statement
from cuts.ir.text import print_ir
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.fold_units import drop_unused, fold_units
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.quantised.fold_scales import fold_scales
from cuts.passes.fusion.quantised.narrow_extremes import narrow_extremes
from cuts.passes.fusion.quantised.narrow_products import multiply_bytes
from cuts.passes.fusion.quantised.padded_images import pad_images
from cuts.passes.inspection.verify import verify_programs

from ..needs import disassemble, needs_disassembler, needs_opencl
from .build import REGISTRY, Line, graph, op

RNG = np.random.default_rng(0)
#: Largest sizes of numbers whose products are added up exactly in f32.
SIZES = {"i8": 128, "u8": 128, "f8e4m3": 8, "f8e5m2": 4}


def rounding(name: str, source: str, scale: str, to: str = "i8") -> list[Line]:
    """Return the rounding of a value to scaled bytes."""
    return [op(f"{name}.bytes", "quantize", source, scale, to=to), op(name, "dequantize", f"{name}.bytes", scale)]


def numbers(shape: tuple[int, ...], to: str = "i8") -> Any:
    size = SIZES[to]
    return as_dtype(RNG.integers(0 if to == "u8" else -size, size, shape), DType(to).numpy)


def powers(*shape: int) -> Any:
    """Return powers of two, whose products f32 has."""
    return np.exp2(RNG.integers(-9, -5, shape)).astype(np.float32)


def with_constants(lines: list[Line], inputs: dict[str, Any], constants: dict[str, Any], out: str = "y") -> Graph:
    types = {n: TensorType(DType(_NAMES[a.dtype.name]), a.shape) for n, a in constants.items()}
    made = graph({**inputs, **types}, *lines, out=out)
    return evolve(made, inputs=tuple(inputs), constants=constants)


_NAMES = {"float32": "f32", "int8": "i8", "uint8": "u8", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}


def convolutions(to: str = "i8", channels: int = 32, images: int = 2, size: int = 6, block: str = "relu") -> Graph:
    """Return two convolutions of scaled bytes with a shortcut."""
    shapes = {"v": (channels, channels, 3, 3), "w": (channels, channels, 1, 1)}
    constants = {name: numbers(shape, to) for name, shape in shapes.items()}
    constants |= {"vs": powers(channels), "ws": powers(channels), "s": np.float32(0.25), "t": np.float32(0.5)}
    constants |= {"b": RNG.integers(-8, 8, channels).astype(np.float32) / 8}
    lines = [
        *rounding("d", "x", "s", to), op("vd", "dequantize", "v", "vs", axis=0),
        op("wd", "dequantize", "w", "ws", axis=0), op("c", "conv", "d", "vd", "b", pads=(1, 1, 1, 1)),
        op("r", block, "c"), *rounding("e", "r", "t", to), op("f", "conv", "e", "wd"), op("g", "add", "f", "d"),
        op("h", "relu", "g"), *rounding("y", "h", "t", to),
    ]  # fmt: skip
    return with_constants(lines, {"x": (images, channels, size, size)}, constants)


def rewrite_bytes(whole: Graph) -> Programs:
    before = fold_units(drop_unused(build_programs(whole, REGISTRY)))
    after = fold_scales(multiply_bytes(before))
    verify_programs(after)
    return after


def sums(programs: Programs) -> list[Statement]:
    return [s for unit in programs.units for s in unit.statements if s.combine == "sum"]


def texts(programs: Programs) -> str:
    return "\n".join(print_ir(s) for unit in programs.units for s in unit.statements)


def product(scale: tuple[int, ...] = (), axis: int = 0, shape: tuple[int, ...] = (64, 48), to: str = "i8") -> Graph:
    """Return a matrix product of scaled bytes."""
    lines = [*rounding("d", "x", "s", to), op("v", "dequantize", "w", "ws", axis=axis), op("y", "matmul", "d", "v")]
    constants = {"w": numbers(shape, to), "ws": powers(*scale), "s": np.float32(0.5)}
    return with_constants(lines, {"x": (4, shape[0])}, constants)


def test_sums_are_of_bytes_in_integers() -> None:
    after = rewrite_bytes(convolutions())
    assert [after.types[s.target].dtype for s in sums(after)] == [DType.I32, DType.I32]
    assert all(len(s.reads) == 2 and {after.types[r.tensor].dtype for r in s.reads} == {DType.I8} for s in sums(after))


def test_divisors_are_parts_of_constants() -> None:
    found = texts(rewrite_bytes(convolutions()))
    assert found.count(" / ") == 1  # that of the input
    assert "min(" not in found and "index(0)" not in found


@pytest.mark.parametrize(("to", "kind"), [("f8e4m3", DType.F32), ("f8e5m2", DType.F32), ("u8", DType.I32)])
def test_other_bytes(to: str, kind: DType) -> None:
    after = rewrite_bytes(product((48,), 1, to=to))
    (total,) = sums(after)
    assert after.types[total.target].dtype is kind
    assert {after.types[r.tensor].dtype for r in total.reads} == {DType(to)}


@needs_disassembler
@pytest.mark.parametrize("zero", [0, 3])
def test_maxima_are_no_part_of_unsigned_packs(zero: int, tmp_path: Path) -> None:
    """An H200 stops at the instruction that an assembler makes of both."""
    given = {"s": np.float32(0.5), "z": np.array(zero, np.uint8)}
    lines = [op("r", "relu", "x"), op("y", "quantize", "r", "s", "z", to="u8")]
    plan = build(with_constants(lines, {"x": (1024, 1024)}, given), target="cuda:h200")
    (code,) = (each.binary for each in plan.launches)
    text = disassemble(code, tmp_path)
    assert "F2IP.U8" in text and ".RELU" not in text and "FRND" not in text


def test_scales_along_the_sum_stay_in_it() -> None:
    (total,) = sums(rewrite_bytes(product((64,), 0)))
    assert "i32" not in print_ir(total)


def test_long_sums_stay_in_floats() -> None:
    (total,) = sums(rewrite_bytes(product((1,), 0, shape=(1 << 17, 2))))
    assert "i32" not in print_ir(total)


def test_convolutions_of_each_channel_multiply_floats() -> None:
    lines = [*rounding("d", "x", "s"), op("v", "dequantize", "w", "s"), op("y", "conv", "d", "v", groups=128)]
    constants = {"w": numbers((128, 1, 3, 3)), "s": np.float32(0.5)}
    (total,) = sums(rewrite_bytes(with_constants(lines, {"x": (1, 128, 8, 8)}, constants)))
    assert "i32" not in print_ir(total)


def zero_points(to: str, zero: int, second: int = 0, conv: bool = False) -> Graph:
    """Return a product or a padded convolution of bytes with zero points."""
    lines = [op("q", "quantize", "x", "s", "z", to=to), op("d", "dequantize", "q", "s", "z"),
             op("v", "dequantize", "w", "ws", "u", axis=0 if conv else 1)]  # fmt: skip
    lines += [op("y", "conv", "d", "v", pads=(1, 1, 1, 1)) if conv else op("y", "matmul", "d", "v")]
    constants = {"w": numbers((48, 16, 3, 3) if conv else (64, 48)), "ws": powers(48), "s": np.float32(0.5)}
    constants |= {"z": np.array(zero, DType(to).numpy), "u": np.full(48, second, np.int8)}
    return with_constants(lines, {"x": (2, 16, 7, 5) if conv else (4, 64)}, constants)


@pytest.mark.parametrize("conv", [False, True])
def test_zero_points_are_constants_of_the_sum(conv: bool) -> None:
    """Pixels have numbers of their own, as some terms lie outside."""
    after = rewrite_bytes(zero_points("u8", 3, conv=conv))
    (total,) = sums(after)
    assert after.types[total.target].dtype is DType.I32
    scaled = next(s for unit in after.units for s in unit.statements if total.target in s.tensors_read)
    (zeros,) = (t for t in scaled.tensors_read if t in after.graph.constants and after.types[t].dtype is DType.I32)
    assert after.types[zeros].shape == ((48, 7, 5) if conv else (48,))


@needs_opencl
def test_large_sums_of_zero_points_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("cuts.passes.fusion.fold_units"), "_STEPS", 0)
    whole = zero_points("u8", 131, conv=True)
    x = RNG.integers(-300, 300, whole.types["x"].shape).astype(np.float32) / 4
    found, want = (build(whole, target=target).run({"x": x})["y"] for target in ("opencl", "reference"))
    assert np.array_equal(found, want)


@needs_opencl
@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize(("to", "zero", "second"), [("u8", 0, 0), ("u8", 131, 0), ("i8", -77, 0), ("u8", 255, -5)])
def test_zero_points_are_exact(to: str, zero: int, second: int, conv: bool) -> None:
    whole = zero_points(to, zero, second, conv)
    x = RNG.integers(-300, 300, whole.types["x"].shape).astype(np.float32) / 4
    found, want = (build(whole, target=target).run({"x": x})["y"] for target in ("opencl", "reference"))
    assert np.array_equal(found, want)


def test_values_with_other_readers_are_divided() -> None:
    whole = convolutions()
    found = texts(rewrite_bytes(evolve(whole, outputs=("y", "c"))))
    assert found.count(" / ") == 2


@pytest.mark.parametrize("block", ["relu", "tanh"])
def test_divisors_move_through_what_scales_with_them(block: str) -> None:
    assert texts(rewrite_bytes(convolutions(block=block))).count(" / ") == {"relu": 1, "tanh": 2}[block]


def test_limits_of_integers_stay() -> None:
    made = build_programs(graph({"x": TensorType(DType.I32, (8,))}, op("y", "cast", "x", to="i8"), out="y"), REGISTRY)
    (unit,) = made.units
    (statement,) = unit.statements
    least = Call("max", (statement.reads[0], Const(-128, DType.I32)))
    body = Cast(DType.I8, Call("min", (least, Const(127, DType.I32))))
    limited = evolve(made, units=(evolve(unit, statements=(evolve(statement, body=body),)),))
    assert fold_scales(limited) is limited


def requantisation(scale: float) -> Graph:
    """Return the maximum of bytes over windows, rounded again."""
    lines = [*rounding("d", "x", "s"), op("y", "quantize", "m", "t", to="i8")]
    lines.insert(-1, op("m", "max_pool", "d", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)))
    return with_constants(lines, {"x": (2, 8, 9, 9)}, {"s": np.float32(0.3), "t": np.float32(scale)})


@pytest.mark.parametrize(("scale", "roundings"), [(0.3, 1), (0.4, 2)])
def test_bytes_of_equal_scales_are_rounded_once(scale: float, roundings: int) -> None:
    after = fold_scales(narrow_extremes(fold_units(build_programs(requantisation(scale), REGISTRY))))
    verify_programs(after)
    assert texts(after).count("round(") == roundings


@needs_opencl
def test_bytes_rounded_again_are_exact() -> None:
    x = RNG.integers(-300, 300, (2, 8, 9, 9)).astype(np.float32) / 7
    found, want = (build(requantisation(0.3), target=target).run({"x": x})["y"] for target in ("opencl", "reference"))
    assert np.array_equal(found, want)


@pytest.mark.parametrize("divisor", [-0.5, 0.0, np.inf])
def test_other_divisors_stay(divisor: float) -> None:
    whole = convolutions()
    found = texts(rewrite_bytes(evolve(whole, constants={**whole.constants, "t": np.array(divisor, np.float32)})))
    assert found.count(" / ") == 3


@needs_opencl
@pytest.mark.parametrize("to", ["i8", "f8e4m3"])
def test_results_are_exact(to: str) -> None:
    whole = convolutions(to)
    x = RNG.integers(-64, 64, (2, 32, 6, 6)).astype(np.float32) / 8
    found, want = (build(whole, target=target).run({"x": x})["y"] for target in ("opencl", "reference"))
    assert np.array_equal(found, want) and len(np.unique(found)) > 8


@needs_opencl
def test_infinite_inputs_round_to_limits() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 63.6, -64.1, 63.75, 0.25, -0.25], np.float32)
    whole = with_constants([op("y", "quantize", "x", "s", to="i8")], {"x": (8,)}, {"s": np.float32(0.5)})
    found = build(whole, target="opencl").run({"x": x})["y"]
    assert found.tolist() == [0, 127, -128, 127, -128, 127, 0, 0]


def test_warpgroups_multiply_bytes_that_tensor_maps_bring() -> None:
    plan = build(convolutions(channels=64, images=32, size=28), target="cuda:h200")
    first, last = (k.source for k in plan.kernels if "k32_i8" in k.source)
    assert "cuts_m64n64k32_i8<" in first and "cuts_walking_copy" in first and "= make_uint4(cuts_i8_of_f32x4(" in first
    assert not any(re.search(r"float\* const s0r0s|cuts_quotient|cuts_div", s) for s in (first, last))
    filters = [a for a in plan.constants.values() if a.size >= 64 * 64]
    assert len(filters) == 2 and all(a.dtype == np.int8 for a in filters)


def pooling(
    to: str = "i8", outputs: str = "y", source: str = "r", function: str = "max_pool", images: int = 2, size: int = 9
) -> Graph:
    """Return a convolution of bytes, its extremes over windows, and their rounding."""
    lines = [
        *rounding("d", "x", "s"), op("v", "dequantize", "w", "ws", axis=0), op("c", "conv", "d", "v", "b"),
        op("r", "relu", "c"), op("m", function, source, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        op("y", "quantize", "m", "t", to=to),
    ]  # fmt: skip
    constants = {"w": numbers((32, 32, 1, 1)), "ws": powers(32), "s": np.float32(0.25), "t": np.float32(0.5)}
    constants |= {"b": RNG.integers(-8, 8, 32).astype(np.float32) / 8}
    return with_constants(lines, {"x": (images, 32, size, size)}, constants, outputs)


def extremes(whole: Graph) -> list[DType]:
    """Return the types of maxima once values are rounded first."""
    after = narrow_extremes(multiply_bytes(fold_units(build_programs(whole, REGISTRY))))
    verify_programs(after)
    return [after.types[s.target].dtype for unit in after.units for s in unit.statements if s.combine == "max"]


def test_values_are_rounded_before_their_maximum() -> None:
    assert extremes(pooling()) == [DType.I8]
    assert extremes(pooling("u8")) == [DType.U8]
    assert extremes(pooling("f8e4m3")) == [DType.F8E4M3]


def test_other_maxima_stay_in_floats() -> None:
    assert extremes(pooling(outputs="y m")) == [DType.F32]
    assert extremes(pooling(outputs="y r")) == [DType.F32]
    assert extremes(pooling(source="x")) == [DType.F32]


@needs_opencl
@pytest.mark.parametrize("to", ["i8", "f8e4m3"])
def test_a_maximum_of_rounded_values_is_exact(to: str) -> None:
    x = RNG.integers(-64, 64, (2, 32, 9, 9)).astype(np.float32) / 8
    whole = pooling(to)
    found, want = (build(whole, target=target).run({"x": x})["y"] for target in ("opencl", "reference"))
    assert np.array_equal(found, want) and len(np.unique(found)) > 8


def images(channels: int, zero: int, size: int = 15, stride: int = 2) -> Graph:
    """Return a convolution of bytes in few channels, with a border."""
    lines = [op("q", "quantize", "x", "s", "z", to="u8"), op("d", "dequantize", "q", "s", "z"),
             op("v", "dequantize", "w", "ws", axis=0),
             op("y", "conv", "d", "v", pads=(2, 1, 2, 3), strides=(1, stride))]  # fmt: skip
    constants = {"w": numbers((64, channels, 5, 4)), "ws": powers(64), "s": np.float32(0.5)}
    return with_constants(lines, {"x": (2, channels, size, size)}, constants | {"z": np.array(zero, np.uint8)})


@pytest.mark.parametrize(("channels", "shape"), [(3, (2, 33, 15, 16)), (6, (2, 33, 16, 16)), (4, None), (17, None)])
def test_few_channels_fill_words(channels: int, shape: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("cuts.passes.fusion.quantised.padded_images"), "MIN_PRODUCTS", 0)
    after = pad_images(fold_units(build_programs(images(channels, 9, 29), REGISTRY)))
    verify_programs(after)
    assert after.types.get("q.padded", TensorType(DType.U8, ())).shape == (shape or ())


@needs_opencl
@pytest.mark.parametrize(("channels", "zero", "stride"), [(3, 0, 2), (3, 131, 1), (7, 255, 3)])
def test_padded_images_are_exact(channels: int, zero: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("cuts.passes.fusion.quantised.padded_images"), "MIN_PRODUCTS", 0)
    whole = images(channels, zero, stride=stride)
    x = RNG.integers(-300, 300, whole.types["x"].shape).astype(np.float32) / 4
    found, want = (build(whole, target=target).run({"x": x})["y"] for target in ("opencl", "reference"))
    assert np.array_equal(found, want)
