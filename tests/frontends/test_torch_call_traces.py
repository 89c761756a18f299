"""Modules traced call by call: their graphs compute equal results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from cuts.frontends.torch.dynamo_backend.call_traces import trace_calls
from torch import Tensor

Function = Callable[..., Any]


def trace_and_run(function: Function, arguments: Sequence[Tensor]) -> tuple[torch.fx.GraphModule | None, Any]:
    """Return the graph of a function, and its results.

    It may write the arguments.
    """
    found: list[torch.fx.GraphModule | None] = []

    def backend(module: Any, examples: Sequence[Any]) -> Function:
        found.append(trace_calls(module, examples))
        return lambda *given: (found[0] or module)(*given)

    torch._dynamo.reset()
    with torch.no_grad():
        results = torch.compile(function, backend=backend)(*arguments)
    return found[0], results


def _rotate(q: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return q * c + torch.cat((-q[..., 2:], q[..., :2]), dim=-1) * s


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None]).sum(-1)


def _write_rows(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(0, at[:2], x[:2] * 2)
    cache[3] = x[0]
    return cache * 1 + x


def _cast(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y + x @ v


def _normalise(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x.clone()
    y += w
    y.mul_(b)
    return torch.nn.functional.layer_norm(y, (4,))[1:]


@pytest.mark.parametrize("function", [_rotate, _attend, _cast, _normalise])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_graphs_compute_equal_results(function: Function, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    arguments = [torch.randn(4, 4).to(dtype) for _ in range(3)]
    module, got = trace_and_run(function, arguments)
    want = function(*arguments)
    assert module is not None
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    torch.testing.assert_close(got, want, equal_nan=True)


def test_written_inputs_get_their_elements() -> None:
    arguments = [torch.randn(4, 4), torch.randn(4, 4), torch.tensor([2, 0])]
    other = [a.clone() for a in arguments]
    module, got = trace_and_run(_write_rows, arguments)
    assert module is not None
    torch.testing.assert_close(got, _write_rows(*other))
    torch.testing.assert_close(arguments, other)


def test_equal_calls_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuts.frontends.torch.dynamo_backend import call_traces

    calls: list[Any] = []
    make = call_traces.make_fx

    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return make(*arguments, **options)

    monkeypatch.setattr(call_traces, "make_fx", count)

    def layers(x: Tensor, *weights: Tensor) -> Tensor:
        for w in weights:
            x = torch.relu(x @ w)
        return x

    arguments = [torch.randn(4, 4) for _ in range(9)]
    module, got = trace_and_run(layers, arguments)
    assert module is not None and len(calls) == 2
    torch.testing.assert_close(got, layers(*arguments))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.T,  # a view of an input
        lambda x, y: (lambda z: (z, z[0]))(x * 2),  # results that share memory
        lambda x, y: (lambda v: (x.add_(1), v * 2)[1])(x[0]),  # a view is read after a write
        lambda x, y: (x[0].add_(y[0]), y * 2)[1],  # a write to a part of an input
    ],
)
def test_involved_modules_are_left_to_autograd(function: Function) -> None:
    assert trace_and_run(function, [torch.randn(4, 4), torch.randn(4, 4)])[0] is None


@pytest.mark.parametrize("shared", [False, True])
def test_writes_need_inputs_of_their_own(shared: bool) -> None:
    base = torch.randn(8, 2)
    arguments = [base[:4], base[4:] if shared else torch.randn(4, 2)]
    assert (trace_and_run(lambda x, y: (x.add_(y), y * 2)[1], arguments)[0] is None) is shared


def test_calls_that_change_a_mode_are_left() -> None:
    def multiply_rows(x: Tensor, w: Tensor) -> Tensor:
        found: Tensor = torch.func.vmap(lambda row: w @ row)(x)
        return found

    module, got = trace_and_run(multiply_rows, [torch.ones(3, 4), torch.ones(4, 4)])
    assert module is None
    torch.testing.assert_close(got, torch.full((3, 4), 4.0))
    assert torch._C._functorch.peek_interpreter_stack() is None
