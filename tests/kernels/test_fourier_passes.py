"""Fast Fourier transforms: every algorithm of the transforms, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph.graph import Array, Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry, evaluate_graph
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.graph import prune
from cuts.passes.partitioning.algorithm_graphs import replace_node

from ..fusion.build import group_builder
from ..needs import needs_opencl

REGISTRY = Registry.builtin()
SIZES = (1, 2, 3, 12, 13, 17, 60, 97, 128, 210, 251, 1000, 1024, 2187)


def _graphs(op: str, shape: tuple[int, ...], dtype: DType = DType.F32, **attributes: Any) -> Iterator[Graph]:
    """Yield a transform as a graph, by each of its algorithms."""
    node = Node("n", op, ("x",), ("y",), attributes)
    types = {"x": TensorType(dtype, shape)}
    (types["y"],) = REGISTRY.instances.infer(node, [types["x"]])
    graph = Graph("g", ("x",), ("y",), types, (node,))
    for algorithm in REGISTRY.instances.of_node(node, graph).algorithms:
        yield prune(replace_node(graph, node, algorithm, REGISTRY.instances))


def _numbers(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).standard_normal(shape)


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


def _pairs(y: Array) -> Array:
    return np.stack([y.real, y.imag], -1)


def _cases(n: int) -> list[tuple[str, tuple[int, ...], dict[str, Any], Any]]:
    """Return uses of transforms of n elements, with NumPy's result."""
    return [
        ("dft", (3, n, 2), {"axis": 1}, lambda x: _pairs(np.fft.fft(_complex(x), axis=1))),
        ("dft", (n, 3, 1), {"axis": 0, "onesided": True}, lambda x: _pairs(np.fft.rfft(_complex(x), axis=0))),
        ("dft", (2, n, 2), {"axis": 1, "inverse": True}, lambda x: _pairs(np.fft.ifft(_complex(x), axis=1))),
        ("dft", (2, n + 1, 1), {"axis": 1, "length": n}, lambda x: _pairs(np.fft.fft(_complex(x), n, axis=1))),
        ("dft", (2, n, 1), {"axis": 1, "length": n + 3, "onesided": True},
         lambda x: _pairs(np.fft.rfft(_complex(x), n + 3, axis=1))),
        ("irdft", (3, n // 2 + 1, 2), {"axis": 1, "length": n},
         lambda x: np.fft.irfft(_complex(x), n, axis=1)[..., None]),
        ("irdft", (n // 2 + 3, 2, 2), {"axis": 0, "length": n},
         lambda x: np.fft.irfft(_complex(x), n, axis=0)[..., None]),
    ]  # fmt: skip


@pytest.mark.parametrize("n", SIZES)
def test_algorithms_compute_the_transform(n: int) -> None:
    for op, shape, attributes, oracle in _cases(n):
        x = _numbers(shape)
        wanted = oracle(x)
        for graph in _graphs(op, shape, **attributes):
            (found,) = evaluate_graph(graph, REGISTRY, {"x": x}).values()
            assert found.shape == wanted.shape
            assert np.abs(found - wanted).max() <= 3e-15 * max(1.0, np.abs(wanted).max()), (op, shape, attributes)


def _check(graph: Graph, oracle: Any, eps: float = 2.0**-24) -> int:
    """Compare a plan with NumPy, and return the number of its kernels."""
    plan = build_graph(graph, Spec(REGISTRY, {}), find_target("opencl"), CompileOptions())
    x = _numbers(graph.types["x"].shape).astype(graph.types["x"].dtype.numpy)
    (found,) = plan.run({"x": x}).values()
    wanted = oracle(np.asarray(x, np.float64))
    assert np.abs(np.asarray(found, np.float64) - wanted).max() <= 16 * eps * max(1.0, np.abs(wanted).max())
    return len(plan.kernels)


@needs_opencl
@pytest.mark.parametrize(("n", "case"), [(12, 0), (12, 2), (12, 3), (12, 5), (17, 1), (17, 6), (40, 1), (40, 6)])
def test_kernels_of_algorithms(n: int, case: int) -> None:
    op, shape, attributes, oracle = _cases(n)[case]
    for graph in _graphs(op, shape, **attributes):
        _check(graph, oracle)


@needs_opencl
@pytest.mark.parametrize(("case", "wide"), [(1, False), (2, False), (5, False), (1, True)])
def test_kernels_of_several_passes(case: int, wide: bool) -> None:
    """Lengths of axes are odd, or a pass of 32 writes blocks."""
    op, shape, attributes, oracle = _cases(1024 if wide else 169)[case]
    graph = next(_graphs(op, shape, **attributes))
    if wide:  # an algorithm of more than 4096 elements
        nodes = (
            evolve(n, attributes={**n.attributes, "most": 64}) if n.op == "mixed_radix" else n for n in graph.nodes
        )
        graph = evolve(graph, nodes=tuple(nodes))
    _check(graph, oracle)


@needs_opencl
@pytest.mark.parametrize(
    ("op", "shape", "attributes", "oracle"),
    [
        ("dft", (37, 60, 2), {"axis": 1}, lambda x: _pairs(np.fft.fft(_complex(x), axis=1))),
        ("dft", (3, 60, 5, 2), {"axis": 1}, lambda x: _pairs(np.fft.fft(_complex(x), axis=1))),
        ("dft", (6, 128, 1), {"axis": 1, "onesided": True}, lambda x: _pairs(np.fft.rfft(_complex(x), axis=1))),
        ("dft", (2, 512, 2), {"axis": 1}, lambda x: _pairs(np.fft.fft(_complex(x), axis=1))),
        ("irdft", (5, 65, 2), {"axis": 1, "length": 128}, lambda x: np.fft.irfft(_complex(x), 128, axis=1)[..., None]),
    ],
)
def test_passes_are_one_kernel(op: str, shape: tuple[int, ...], attributes: dict[str, Any], oracle: Any) -> None:
    """Rows stay in shared memory between two or three passes."""
    assert _check(next(_graphs(op, shape, **attributes)), oracle) == 1


def _chain(n: int, *steps: tuple[str, tuple[str, ...], dict[str, Any]]) -> Graph:
    """Return steps on rows of `n` elements as a graph; transforms go through passes."""
    types, nodes = {"x": TensorType(DType.F32, (6, n, 1))}, list[Node]()
    for number, (op, inputs, attributes) in enumerate(steps):
        nodes.append(Node(f"n{number}", op, inputs, (f"v{number}",), attributes))
        (types[f"v{number}"],) = REGISTRY.instances.infer(nodes[-1], [types[name] for name in inputs])
    graph = Graph("g", ("x",), (nodes[-1].outputs[0],), types, tuple(nodes))
    for node in nodes:
        if node.op in ("dft", "irdft"):
            graph = replace_node(graph, node, "mixed_radix", REGISTRY.instances)
    return prune(graph)


@needs_opencl
def test_pointwise_work_joins_passes() -> None:
    """Real and imaginary parts are views; a norm reads both several times."""
    graph = _chain(
        128,
        ("dft", ("x",), {"axis": 1, "onesided": True}),
        *(("slice", ("v0",), {"starts": [p], "ends": [p + 1], "axes": [2]}) for p in range(2)),
        *(("mul", (f"v{p}", f"v{p}"), {}) for p in (1, 2)),
        ("add", ("v3", "v4"), {}),
        ("mul", ("v5", "v5"), {}),
        ("log1p", ("v6",), {}),
    )
    assert _check(graph, lambda x: np.log1p(np.abs(np.fft.rfft(x, axis=1)) ** 4)) == 1


def test_views_lie_between_passes() -> None:
    """Passes back read squares of some frequencies."""
    graph = _chain(
        128,
        ("dft", ("x",), {"axis": 1, "onesided": True}),
        ("slice", ("v0",), {"starts": [0], "ends": [33], "axes": [1]}),
        ("mul", ("v1", "v1"), {}),
        ("irdft", ("v2",), {"axis": 1}),
    )
    shop = group_builder(graph)
    first, second, *middle, last = (name for name, unit in shop.units.items() if unit.reads and not unit.free)
    found = shop.form(((first,), (second,), tuple(middle), (last,)))
    assert isinstance(found, Group) and len(found.form.segments) == 4


@needs_opencl
def test_tensors_of_long_passes_share_a_buffer() -> None:
    """Threads hold the values of the middle pass until all have read."""
    rows, n = 3, 1000
    graph = next(_graphs("dft", (rows, n, 2), axis=1))
    plan = build_graph(graph, Spec(REGISTRY, {}), find_target("opencl"), CompileOptions())
    (kernel,) = plan.kernels
    assert kernel.shared_bytes <= 1.3 * rows * n * 8
    x = _numbers((rows, n, 2)).astype(np.float32)
    (found,) = plan.run({"x": x}).values()
    wanted = _pairs(np.fft.fft(_complex(np.asarray(x, np.float64)), axis=1))
    assert np.abs(found - wanted).max() <= 2.0**-20 * np.abs(wanted).max()


def test_four_steps_are_two_coalesced_kernels() -> None:
    """The last pass reads rows and writes columns."""
    (graph,) = _graphs("dft", (4, 65536, 2), axis=1)
    plan = build_graph(graph, Spec(REGISTRY, {}), find_target("cuda:h200"), CompileOptions())
    assert len(plan.kernels) == 2
    tiles = dict(plan.kernels[-1].info)["parameters"]["segments"][-1]["tiles"]
    assert [*tiles.values()][-1]["block"] >= 4  # whole sectors: a pair has 8 bytes


LONG_ROWS = [
    ("dft", (2, 10000, 2), {"axis": 1}, lambda x: _pairs(np.fft.fft(_complex(x), axis=1))),
    ("dft", (9009, 3, 2), {"axis": 0, "inverse": True}, lambda x: _pairs(np.fft.ifft(_complex(x), axis=0))),
    ("dft", (2, 9216, 1), {"axis": 1, "onesided": True}, lambda x: _pairs(np.fft.rfft(_complex(x), axis=1))),
    ("dft", (9009, 2, 1), {"axis": 0, "onesided": True}, lambda x: _pairs(np.fft.rfft(_complex(x), axis=0))),
    ("irdft", (2, 4609, 2), {"axis": 1, "length": 9216}, lambda x: np.fft.irfft(_complex(x), 9216, axis=1)[..., None]),
    ("irdft", (4505, 2, 2), {"axis": 0, "length": 9009}, lambda x: np.fft.irfft(_complex(x), 9009, axis=0)[..., None]),
]


@pytest.mark.parametrize(("op", "shape", "attributes", "oracle"), LONG_ROWS)
def test_long_rows_take_four_steps(op: str, shape: tuple[int, ...], attributes: dict[str, Any], oracle: Any) -> None:
    *_, graph = _graphs(op, shape, **attributes)
    x = _numbers(shape)
    (found,) = evaluate_graph(graph, REGISTRY, {"x": x}).values()
    assert np.abs(found - oracle(x)).max() <= 3e-15 * np.abs(oracle(x)).max()


@needs_opencl
@pytest.mark.parametrize(("op", "shape", "attributes", "oracle"), LONG_ROWS)
def test_kernels_of_four_steps(op: str, shape: tuple[int, ...], attributes: dict[str, Any], oracle: Any) -> None:
    *_, graph = _graphs(op, shape, **attributes)
    assert _check(graph, oracle) <= 3


@needs_opencl
def test_planes() -> None:
    (graph,) = _graphs("rfft2", (2, 6, 20))
    _check(graph, lambda x: _pairs(np.fft.rfft2(x)))
    (graph,) = _graphs("irfft2", (2, 6, 11, 2))
    _check(graph, lambda x: np.fft.irfft2(_complex(x)))


@needs_opencl
@pytest.mark.parametrize(("dtype", "eps"), [(DType.F64, 2.0**-53), (DType.F16, 2.0**-11), (DType.BF16, 2.0**-8)])
@pytest.mark.parametrize("n", [24])
def test_other_element_types(n: int, dtype: DType, eps: float) -> None:
    """Half types compute in single precision."""
    for op, shape, attributes, oracle in _cases(n)[2:6:3]:
        _check(next(_graphs(op, shape, dtype, **attributes)), oracle, eps)


def test_nan_reaches_its_row() -> None:
    for n in (24, 17):
        x = _numbers((2, n, 2))
        x[1, 5] = np.nan
        for graph in _graphs("dft", x.shape, axis=1):
            (found,) = evaluate_graph(graph, REGISTRY, {"x": x}).values()
            assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


def test_long_transforms_are_few_statements() -> None:
    for shape, attributes in (((1, 1 << 20, 2), {}), ((1, 65521, 1), {"onesided": True})):
        for graph in _graphs("dft", shape, axis=1, **attributes):
            assert sum(len(REGISTRY.instances.of_node(n, graph).program.statements) for n in graph.nodes) <= 80
