"""Loads of weights before the wait for earlier launches."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from cuts.backends.compilers import compile_kernels
from cuts.compile.build import build
from cuts.ir import DType, Graph, KernelFunction, Node, TensorType, as_dtype
from cuts.ir.graph import Interface

from ..needs import needs_cuda, needs_toolchain

WIDTH = 1024


def chain(layers: int, kind: DType = DType.BF16, updated: bool = False, inputs: bool = False) -> Graph:
    """Return products of one row, with an `updated` weight."""
    rng, row, square = np.random.default_rng(0), TensorType(kind, (1, WIDTH)), TensorType(kind, (WIDTH, WIDTH))
    types = {f"x{n}": row for n in range(layers + 1)} | {f"w{n}": square for n in range(layers)}
    nodes = [Node(f"m{n}", "gemm", (f"x{n}", f"w{n}"), (f"x{n + 1}",), {"trans_b": True}) for n in range(layers)]
    weights = {f"w{n}": as_dtype(rng.standard_normal((WIDTH, WIDTH)) / 32, kind.numpy) for n in range(layers)}
    given, interface, outputs = ("x0", *(weights if inputs else ())), Interface(), (f"x{layers}",)
    if updated:
        last = f"w{layers - 1}"
        types |= {"new": square}
        nodes += [Node("u", "neg", (last,), ("new",), {})]
        given, outputs, interface = ("x0", last), (*outputs, "new"), Interface(updates={last: "new"})
    constants = {} if inputs else {n: w for n, w in weights.items() if n not in given}
    return Graph("g", given, outputs, types, tuple(nodes), constants, interface=interface)


def products(graph: Graph, target: str = "cuda:sm_90") -> Sequence[KernelFunction]:
    """Return the kernels of the launches of products, in order."""
    return [launch.kernel for launch in build(graph, target=target).launches if "gemm" in launch.kernel.name]


def early_arguments(kernel: KernelFunction) -> list[str]:
    """Return the tensors that a kernel loads before it waits."""
    before, _, after = kernel.source.partition("  cuts_begin();")
    assert "cuts_early" not in after
    found = dict.fromkeys(re.findall(r"cuts_early\w+\(e\d+\[.*\], &p(\d+)\[", before))
    return [kernel.arguments[int(n)].tensor for n in found]


@pytest.mark.parametrize("inputs", [False, True])
def test_weights_are_loaded_before_the_wait(inputs: bool) -> None:
    *_, last = products(chain(2, inputs=inputs))
    (weight,) = early_arguments(last)
    places = {a.tensor: n for n, a in enumerate(last.arguments)}
    assert f"__restrict__ p{places[weight]}" in last.source
    assert last.source.count("__restrict__ p") == 1


def test_updated_weights_wait_for_earlier_launches() -> None:
    *_, last = products(chain(3, updated=True))
    assert early_arguments(last) == []


def test_opencl_has_no_early_loads() -> None:
    assert not any("cuts_early" in kernel.source for kernel in products(chain(2), "opencl"))


@needs_toolchain
@pytest.mark.parametrize("kind", [DType.F16, DType.BF16])
def test_kernels_with_early_loads_compile(kind: DType) -> None:
    kernels = products(chain(2, kind))
    assert early_arguments(kernels[-1])
    assert len(compile_kernels(kernels, "sm_90")) == len(kernels)


@needs_cuda
@pytest.mark.parametrize("kind", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize("form", [{}, {"updated": True}, {"inputs": True}])
def test_chains_with_early_loads_compute_the_reference(kind: DType, form: dict[str, bool]) -> None:
    plan = build(chain(6, kind, **form), target="cuda")
    for _ in range(3):
        assert all(result.ok for result in plan.verify())
