"""Regions of `torch.compiler.nested_compile_region`: Dynamo traces equal ones once, and all are compiled."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.captured_graph import UncompiledWarning
from cuts.tests.needs import needs_opencl

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings(f"error::{UncompiledWarning.__module__}.{UncompiledWarning.__name__}"),
]


@torch.compiler.nested_compile_region  # type: ignore[untyped-decorator]
def gate(x: Any, weight: Any) -> tuple[Any, Any]:
    return torch.tanh(x @ weight), x.sin()


@torch.compiler.nested_compile_region  # type: ignore[untyped-decorator]
def block(x: Any, weight: Any) -> Any:
    first, second = gate(x, weight)
    return first + 2.0 * second


def network(x: Any, *weights: Any) -> Any:
    for weight in weights:
        x = block(x, weight)
    return x


@needs_opencl
@pytest.mark.parametrize("trained", [False, True])
def test_nested_regions_are_compiled(trained: bool) -> None:
    torch._dynamo.reset()
    given = [torch.randn(3, 4), torch.randn(4, 4), torch.randn(4, 4)]
    results = []
    for call in (network, torch.compile(network, backend=cuts_backend, fullgraph=True)):
        tensors = [value.clone().requires_grad_(trained) for value in given]
        found = call(*tensors)
        if trained:
            found.sum().backward()
        results.append([found.detach(), *(value.grad for value in tensors if trained)])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
