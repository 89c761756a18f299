"""Constants of forward and backward graphs: values that depend on no argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.driver import build_graph
from cuts.compile.external_buffers import SingleProgram, program_of, spec_of, target_of
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.dynamo_backend import dynamo_backend
from cuts.frontends.torch.dynamo_backend.constant_values import MAX_ELEMENTS
from cuts.ir.compiled import CompileOptions
from cuts.ir.types import DType
from cuts.tests.needs import needs_opencl

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


class Masked(nn.Module):
    """Attention whose causal mask is computed from positions."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(16, 48)

    def forward(self, x: Any) -> Any:
        count, places = x.shape[1], torch.arange(x.shape[1])
        of = torch.cumsum(torch.diff(places, prepend=places[:1] - 1) != 1, 0)
        mask = (places <= places[:, None]) & (of[places] == of[places][:, None])
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.mixed(x).chunk(3, -1))
        mask = mask.expand(x.shape[0], 1, count, count)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum((1, 3))


def captured_graphs(call: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the compiled graphs of a function and of its gradients."""
    graphs: list[Any] = []

    def compile_graph(captured: Any, device: Any) -> Any:
        graphs.append(captured.graph)
        plan = build_graph(captured.graph, spec_of(captured), target_of(device)[0], CompileOptions())
        return SingleProgram(program_of(plan, 0))

    def backend(module: Any, examples: Any) -> Any:
        return dynamo_backend(module, examples, compile_graph)

    torch._dynamo.reset()
    torch.compile(call, backend=backend)(*arguments).square().sum().backward()
    return graphs


@needs_opencl
def test_both_graphs_know_a_mask_of_positions() -> None:
    torch.manual_seed(0)
    module, x = Masked(), torch.randn(2, 12, 16)
    module(x).square().sum().backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    forward, backward = captured_graphs(module, x)
    for parameter, gradient in zip(module.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    for graph in (forward, backward):
        assert not {"cumsum", "gather", "gather_nd"} & {node.op for node in graph.nodes}
        assert all(graph.types[t].dtype is not DType.BOOL for t in (*graph.inputs, *graph.outputs))


@needs_opencl
def test_random_and_large_values_stay_computed() -> None:
    weight = torch.ones(8, requires_grad=True)

    def noisy(weight: Any) -> Any:
        large = torch.arange(MAX_ELEMENTS + 8).remainder(3)[-8:]
        return (weight * torch.rand(8).exp()) * large

    call = torch.compile(noisy, backend=cuts_backend)
    torch._dynamo.reset()
    torch.manual_seed(0)
    first, second = call(weight), call(weight)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    wanted = noisy(weight)
    torch.testing.assert_close(first, wanted)
