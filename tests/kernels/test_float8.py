"""8-bit floats: every code, every step between two, and PyTorch's conversions.

All types pass element-wise kernels.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import find_toolchain
from cuts.backends.devices import find_target
from cuts.backends.source.dialect.dialects import CUDA
from cuts.compile.driver import build_graph
from cuts.ir.compiled import CompileOptions
from cuts.ir.errors import GraphError
from cuts.ir.evaluation import as_dtype
from cuts.ir.types import DType
from cuts.tests.needs import DEVICES, needs_toolchain
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR, Use
from cuts.tests.operations_graph import bench_of

from .test_numbers import TARGETS, node, result

FLOATS8 = (DType.F8E4M3, DType.F8E5M2)


def codes(kind: DType) -> np.ndarray:
    """Return all 256 numbers of a type."""
    return np.arange(256, dtype=np.uint8).view(kind.numpy)


def every_step(kind: DType) -> np.ndarray:
    """Return f32 numbers around the steps of a type, and random ones.

    They lie on the steps, halfway and just beside.
    """
    exact = codes(kind).astype(np.float32)
    steps = np.unique(exact[np.isfinite(exact)])
    middle = (steps[1:] + steps[:-1]) / 2
    beside = [np.nextafter(middle, np.float32(sign * np.inf)) for sign in (1, -1)]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20000, np.uint32).view(np.float32)
    ends = np.array([464, 463.99, 465, 480, 61440, 61439, 65536, 3e38, np.inf, np.nan, 0.0, 1e-40], np.float32)
    return np.concatenate([exact, middle, *beside, bits, ends, -ends])


def equal_codes(found: np.ndarray, expected: np.ndarray) -> None:
    """Assert equal codes; any NaN equals another."""
    found, expected = (x.astype(np.float32) for x in (found, expected))
    np.testing.assert_array_equal(found, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("kind", FLOATS8, ids=str)
def test_halves_have_all_numbers_of_eight_bits(kind: DType) -> None:
    for half in (DType.F16, DType.BF16):
        equal_codes(codes(kind).astype(half.numpy), codes(kind))
        assert half.includes(kind)
        assert not kind.includes(half)
    assert not DType.F16.includes(DType.BF16)
    assert not DType.BF16.includes(DType.F16)


@pytest.mark.parametrize("kind", FLOATS8, ids=str)
def test_the_reference_converts_as_pytorch_does(kind: DType) -> None:
    torch = pytest.importorskip("torch")
    theirs = {DType.F8E4M3: torch.float8_e4m3fn, DType.F8E5M2: torch.float8_e5m2}[kind]
    numbers = every_step(kind)
    equal_codes(as_dtype(numbers, kind.numpy), torch.from_numpy(numbers).to(theirs).float().numpy())
    decoded = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(theirs).float().numpy()
    equal_codes(codes(kind), decoded)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", FLOATS8, ids=str)
def test_stores_round_to_nearest_even(kind: DType, target: str) -> None:
    numbers = every_step(kind)
    for several in (numbers, numbers[:-1]):  # as vectors, and one by one
        equal_codes(
            result(target, {"x": several}, node("y", "cast", "x", to=kind.value)), as_dtype(several, kind.numpy)
        )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", FLOATS8, ids=str)
def test_loads_and_conversions_in_registers_are_exact(kind: DType, target: str) -> None:
    equal_codes(result(target, {"x": codes(kind)}, node("y", "cast", "x", to="f32")), codes(kind))
    numbers = every_step(kind)
    found = result(target, {"x": numbers}, node("h", "cast", "x", to=kind.value), node("y", "cast", "h", to="f32"))
    equal_codes(found, as_dtype(numbers, kind.numpy))


@needs_toolchain
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("kind", FLOATS8, ids=str)
def test_helpers_compile_for_cuda(kind: DType, arch: str) -> None:
    body = (
        f"p[0] = cuts_to_{kind}(f[0]) + cuts_pair_{kind}(f[1], f[2]); "
        f"f[3] = cuts_from_{kind}(p[1]) + cuts_low_{kind}(p[2]) + cuts_high_{kind}(p[3]);"
    )
    source = f'{CUDA.helpers_of(body)}extern "C" __global__ void one(unsigned char* p, float* f) {{ {body} }}\n'
    assert find_toolchain().compile(source, arch, 120.0)[0]


def test_a_file_and_bits_are_taken_as_numbers() -> None:
    kind, x = DType.F8E4M3, codes(DType.F8E4M3)
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    doubled = result("reference", {"x": x}, node("y", "cast", "x", to="f32"))
    equal_codes(np.load(file).view(kind.numpy), doubled)


#: Operations whose results have as many elements as their largest operand.
ELEMENTWISE = [
    use
    for use in {u.op: u for u in (*DIFFERENTIABLE[:14], *SCALAR, *FLAT)}.values()
    if {t.size for t in use.instance.output_types} == {max((t.size for t in use.types if t), default=0)}
]


def of_type(use: Use, kind: DType) -> Use | None:
    """Return a use with floats of a type, or None."""
    types = tuple(t if t is None or not t.dtype.is_float else evolve(t, dtype=kind) for t in use.types)
    changed = evolve(use, types=types)
    try:
        return changed if changed.instance else None
    except GraphError:
        return None


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [d for d in DType if d.is_float], ids=str)
def test_element_wise_kernels_of_every_type(kind: DType, device: str) -> None:
    bench = bench_of([use for use in (of_type(u, kind) for u in ELEMENTWISE) if use is not None])
    assert len(bench.graph.nodes) > 40
    plan = build_graph(bench.graph, bench.spec, find_target(device), CompileOptions(mode="mixed"))
    assert [found.text for found in plan.verify(bench.inputs) if not found.ok] == []
