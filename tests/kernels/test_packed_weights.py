"""Packed weights stay packed, and products equal the dequantised reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.compile.plan import CompiledPlan
from cuts.ir import CompileOptions, DType, Graph, Node, Program, TensorType, as_dtype
from cuts.ops import evaluate
from cuts.passes.packing import needed_bits, pack_array, unpacking_statement
from cuts.tests.needs import needs_opencl, needs_toolchain
from hypothesis import given, settings
from hypothesis import strategies as st

SPEC = load_spec([])


def numbers(kind: str, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Return random integers of so many bits, or 8-bit floats."""
    rng = np.random.default_rng(seed)
    if kind.startswith("f8"):
        return as_dtype(rng.standard_normal(shape) * 4, DType(kind).numpy)
    bits, signed = int(kind[1:]), kind[0] == "i"
    low = -(1 << (bits - 1)) if signed else 0
    found = rng.integers(low, low + (1 << bits), shape).astype(np.int8 if signed else np.uint8)
    found.flat[:2] = low, low + (1 << bits) - 1
    return found


def product(
    kind: str, rows: int, depth: int, columns: int, block: int = 0, zero: bool = False, turned: bool = False,
    dtype: DType = DType.F32,
) -> Graph:  # fmt: skip
    """Return a matrix product with a dequantised weight.

    It is [depth, columns], or `turned` [columns, depth].
    """
    shape, axis = ((columns, depth), 1) if turned else ((depth, columns), 0)
    weight = numbers(kind, shape)
    stored = DType(kind) if kind.startswith("f8") else DType.I8 if kind[0] == "i" else DType.U8
    rng = np.random.default_rng(1)
    steps = [-(-n // block) if d == axis else n for d, n in enumerate(shape)] if block else [columns]
    constants: dict[str, Any] = {"q": weight, "s": (rng.random(steps) + 0.5).astype(dtype.numpy)}
    types = {
        "x": TensorType(dtype, (rows, depth)), "y": TensorType(dtype, (rows, columns)), "w": TensorType(dtype, shape),
        "q": TensorType(stored, shape), "s": TensorType(dtype, tuple(steps)),
    }  # fmt: skip
    if zero:
        constants["z"] = numbers(kind, steps, 2)
        types["z"] = TensorType(stored, tuple(steps))
    given = {"axis": axis if block else 1 - axis, "block": block}
    nodes = (
        Node("d", "dequantize", ("q", "s", "z") if zero else ("q", "s"), ("w",), given),
        Node("m", "gemm", ("x", "w"), ("y",), {"trans_b": turned}),
    )
    return Graph("g", ("x",), ("y",), types, nodes, constants)


def compile_graph(graph: Graph, target: str = "opencl", **options: Any) -> CompiledPlan:
    return build_graph(graph, SPEC, find_target(target), CompileOptions(**options))


def constant_bytes(plan: CompiledPlan) -> int:
    return sum(array.nbytes for array in plan.plan.constants.values())


def check(plan: CompiledPlan) -> None:
    """Assert that a plan computes the float64 reference of its rounded weights."""
    (result,) = plan.verify()
    assert result.ok, result.text
    assert result.tolerance < 1e-3


# ---- packing


@given(
    bits=st.sampled_from((1, 2, 4)), signed=st.booleans(), rows=st.integers(1, 5), columns=st.integers(1, 19),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_unpacking_inverts_packing(bits: int, signed: bool, rows: int, columns: int, seed: int) -> None:
    low = -(1 << (bits - 1)) if signed else 0
    values = np.random.default_rng(seed).integers(low, low + (1 << bits), (rows, columns))
    values = values.astype(np.int8 if signed else np.uint8)
    assert needed_bits(values) <= bits
    least = min(int(values.min()), 0)
    packed = pack_array(values, bits, least)
    assert packed.shape == (rows, -(-columns * bits // 8))
    type_ = TensorType(DType.I8 if signed else DType.U8, values.shape)
    statement = unpacking_statement("p", "y", type_, bits, least)
    program = Program({"p": TensorType(DType.U8, packed.shape), "y": type_}, ("p",), ("y",), (statement,), {})
    assert np.array_equal(evaluate(program, {"p": packed})["y"], values)


@pytest.mark.parametrize(("values", "bits"), [([0, 1], 1), ([0, 3], 2), ([-8, 7], 4), ([0, 16], 0), ([-9, 7], 0)])
def test_bits_follow_from_the_numbers(values: list[int], bits: int) -> None:
    assert needed_bits(np.array(values, np.int8)) == bits
    assert needed_bits(np.array(values, np.int32)) == 0


# ---- plans


@needs_opencl
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("kind", "block", "zero"), [
    ("i8", 0, False), ("u8", 0, True), ("i8", 32, False), ("i4", 32, False), ("u4", 32, True), ("i4", 0, False),
    ("u2", 16, True), ("f8e4m3", 0, False), ("f8e5m2", 64, False),
])  # fmt: skip
def test_weights_stay_packed(kind: str, block: int, zero: bool, turned: bool) -> None:
    graph = product(kind, 2, 128, 96, block, zero, turned)
    plan = compile_graph(graph)
    bits = 8 if kind.startswith("f8") else int(kind[1:])
    steps = graph.constants["s"].nbytes + (graph.constants["z"].nbytes if zero else 0)
    assert constant_bytes(plan) <= 128 * 96 * bits // 8 + steps
    assert len(plan.kernels) == 1
    check(plan)


@needs_opencl
@given(
    kind=st.sampled_from(("i8", "i4", "u4", "f8e4m3")), rows=st.sampled_from((1, 3, 16)), depth=st.integers(33, 150),
    columns=st.integers(31, 90), block=st.sampled_from((0, 16, 32, 50)), zero=st.booleans(), turned=st.booleans(),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_products_of_any_shape(
    kind: str, rows: int, depth: int, columns: int, block: int, zero: bool, turned: bool
) -> None:
    check(compile_graph(product(kind, rows, depth, columns, block, zero and not kind.startswith("f8"), turned)))


@needs_opencl
def test_each_reader_widens_for_itself() -> None:
    graph = product("i4", 2, 64, 64, 32)
    types = {**graph.types, "i": TensorType(DType.I64, (3,)), "r": TensorType(DType.F32, (3, 64))}
    lookup = Node("l", "gather", ("w", "i"), ("r",), {"axis": 0})
    both = Graph("g", ("x", "i"), ("y", "r"), types, (*graph.nodes, lookup), graph.constants)
    plan = compile_graph(both)
    assert constant_bytes(plan) <= 64 * 64 // 2 + graph.constants["s"].nbytes
    results = plan.verify({"x": np.ones((2, 64), np.float32), "i": np.array([0, 63, 5])})
    assert all(result.ok for result in results)


@needs_opencl
def test_an_integer_product_reads_bytes() -> None:
    shape = (96, 80)
    types = {
        "x": TensorType(DType.I32, (3, 96)), "y": TensorType(DType.I32, (3, 80)), "q": TensorType(DType.I8, shape),
        "w": TensorType(DType.I32, shape),
    }  # fmt: skip
    nodes = (Node("c", "cast", ("q",), ("w",), {"to": "i32"}), Node("m", "matmul", ("x", "w"), ("y",), {}))
    plan = compile_graph(Graph("g", ("x",), ("y",), types, nodes, {"q": numbers("i8", shape)}))
    assert constant_bytes(plan) == 96 * 80
    check(plan)


def test_small_and_shrinking_results_are_folded() -> None:
    for rows, kept in ((4, False), (512, True)):
        shape = (rows, 64)
        types = {
            "x": TensorType(DType.F32, (2, rows)), "y": TensorType(DType.F32, (2, 64)),
            "q": TensorType(DType.I8, shape), "w": TensorType(DType.F32, shape),
        }  # fmt: skip
        nodes = (Node("c", "cast", ("q",), ("w",), {"to": "f32"}), Node("m", "matmul", ("x", "w"), ("y",), {}))
        graph = Graph("g", ("x",), ("y",), types, nodes, {"q": numbers("i8", shape)})
        plan = compile_graph(graph, "cuda:h100")
        assert (constant_bytes(plan) == rows * 64) == kept


def test_a_sum_of_widened_numbers_is_a_constant() -> None:
    shape = (128, 64)
    types = {
        "x": TensorType(DType.F32, (1, 64)), "y": TensorType(DType.F32, (1, 64)), "q": TensorType(DType.I8, shape),
        "w": TensorType(DType.F32, shape), "t": TensorType(DType.F32, (1, 64)),
    }  # fmt: skip
    nodes = (
        Node("c", "cast", ("q",), ("w",), {"to": "f32"}), Node("s", "reduce_sum", ("w",), ("t",), {"axes": (0,)}),
        Node("a", "add", ("x", "t"), ("y",), {}),
    )  # fmt: skip
    plan = compile_graph(Graph("g", ("x",), ("y",), types, nodes, {"q": numbers("i8", shape)}), "cuda:h100")
    assert constant_bytes(plan) == 64 * 4


# ---- CUDA


@needs_toolchain
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90"])
@pytest.mark.parametrize("kind", ["i8", "i4", "u4", "f8e4m3"])
def test_cuda_loads_several_numbers_at_once(kind: str, target: str) -> None:
    graph = product(kind, 1, 2048, 256, 0 if kind in ("i8", "f8e4m3") else 128, kind == "u4", turned=True)
    plan = compile_graph(graph, target)
    assert constant_bytes(plan) < 2048 * 256 * (0.6 if kind.endswith("4") else 1.1)
    texts = [kernel.source for kernel in plan.kernels]
    assert any(re.search(r"u(int|short)[124] \w+ = \*reinterpret_cast", text) for text in texts)
    assert len(compile_kernels(plan.kernels, target.removeprefix("cuda:"))) == len(plan.kernels)


@pytest.mark.parametrize(("kind", "text"), [("i8", "__byte_perm("), ("i4", "cuts_bf16x2_of_u4(")])
def test_halves_have_numbers_of_bytes_unrounded(kind: str, text: str) -> None:
    plan = compile_graph(product(kind, 1, 2048, 64, 128, turned=True, dtype=DType.BF16), "cuda:sm_90")
    source = plan.plan.kernels[0].source
    assert text in source
    assert "cuts_to_bf16(cuts_f32_of" not in source


@needs_toolchain
@pytest.mark.parametrize("kind", ["i8", "i4"])
def test_tensor_cores_multiply_widened_weights(kind: str) -> None:
    plan = compile_graph(product(kind, 128, 1024, 1024, 0 if kind == "i8" else 128), "cuda:sm_90", precision="bf16")
    assert any("mma" in kernel.source for kernel in plan.kernels)
    assert constant_bytes(plan) < 1024 * 1024 * 1.1
