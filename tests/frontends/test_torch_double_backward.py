"""Gradients of gradients through compiled modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.captured_graph import UncompiledWarning
from cuts.tests.needs import needs_opencl
from torch import nn
from torch.utils.checkpoint import checkpoint

REPEATED_WORDS, REFUSED_WORDS = "repeats a compiled module in PyTorch", "cannot be differentiated: "


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compile_module(function: Any) -> Any:
    return torch.compile(function, backend=cuts_backend)


def collect_warnings(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a result, and the warnings of modules that PyTorch ran."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function()
    return result, [str(each.message) for each in found if each.category is UncompiledWarning]


def penalty(function: Any, inputs: list[Any], parameters: list[Any]) -> list[Any]:
    """Return a gradient penalty, and its gradients by inputs and parameters."""
    y = function(*inputs)
    found = torch.autograd.grad(y.sum(), inputs, create_graph=True)
    loss = sum(((g.flatten(1).norm(dim=1) - 1) ** 2).mean() for g in found)
    return [loss.detach(), *torch.autograd.grad(loss, [*inputs, *parameters], allow_unused=True)]


class Critic(nn.Module):
    """Critic of images: convolutions and norms."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3, 1, 1), norm, nn.SiLU(), nn.Flatten(),
            nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.layers(x)


@needs_opencl
@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.BatchNorm2d(4)], ids=["group", "batch"])
def test_gradient_penalty(norm: Any) -> None:
    """A critic's penalty and its gradients equal eager ones, with one warning."""
    critic = Critic(norm)
    x, parameters = torch.randn(3, 2, 8, 8, requires_grad=True), list(critic.parameters())
    expected = penalty(critic, [x], parameters)
    run = compile_module(critic)
    for _ in range(2):
        found, texts = collect_warnings(lambda: penalty(run, [x], parameters))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert not texts


@needs_opencl
def test_warning_is_one() -> None:
    x = torch.randn(4, requires_grad=True)
    run = compile_module(torch.tanh)
    _, texts = collect_warnings(lambda: [penalty(run, [x.view(4, 1)], []) for _ in range(3)])
    assert len(texts) == 1 and REPEATED_WORDS in texts[0]


@needs_opencl
@pytest.mark.filterwarnings("ignore::cuts.frontends.torch.captured_graph.UncompiledWarning")
def test_numeric_second_derivatives() -> None:
    a, b = (torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    run = compile_module(lambda a, b: (torch.sin(a) * b.exp(), (a * b).sum(1).square()))
    assert torch.autograd.gradgradcheck(run, (a, b))


@needs_opencl
@pytest.mark.filterwarnings("ignore::cuts.frontends.torch.captured_graph.UncompiledWarning", "ignore:The .grad")
def test_inputs_of_each_other() -> None:
    """Partial gradients: an input that another one is computed from counts once."""
    a = torch.rand(3, requires_grad=True)
    b = a * 2
    found: list[list[Any]] = []
    for run in (compile_module(lambda a, b: a.square() * b.sin()), lambda a, b: a.square() * b.sin()):
        v = torch.ones(3, requires_grad=True)
        (g,) = torch.autograd.grad(run(a, b), a, v, create_graph=True)
        found.append([g, *torch.autograd.grad(g.square().sum(), [a, v], retain_graph=True)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@needs_opencl
def test_autocast_of_the_call() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    found = []
    for run in (layer, compile_module(layer)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = run(x)
        (g,), _ = collect_warnings(partial(torch.autograd.grad, y.float().square().sum(), x, create_graph=True))
        found.append(torch.autograd.grad(g.square().sum(), layer.weight)[0])
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)


def counts(buffer: Any, x: Any) -> Any:
    """Return a value that depends on the old elements of a buffer."""
    y = (x * buffer.sin()).tanh()
    buffer.add_(1)
    return y


def held_only_by_a_graph(x: Any) -> Any:
    return (x + 1).tanh()


@needs_opencl
@pytest.mark.parametrize("case", ["random numbers", "overwritten", "released"])
def test_calls_that_cannot_be_repeated(case: str) -> None:
    """The second gradient is an error, whose cause a warning names."""
    x = torch.rand(64, requires_grad=True)
    cases: dict[str, tuple[str, Callable[[], Any]]] = {
        "random numbers": ("random numbers", lambda: compile_module(lambda x: nn.functional.dropout(x.tanh(), 0.5))(x)),
        "overwritten": ("it overwrites", lambda: compile_module(counts)(torch.ones(64), x)),
        "released": ("was released", lambda: compile_module(held_only_by_a_graph)(x * 2)),
    }
    words, run = cases[case]
    (g,), texts = collect_warnings(lambda: torch.autograd.grad(run().sum(), x, create_graph=True))
    assert len(texts) == 1 and REFUSED_WORDS in texts[0] and words in texts[0]
    if case == "released":
        torch.testing.assert_close(g, 2 / torch.cosh(2 * x + 1).square(), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


@needs_opencl
def test_inputs_are_released() -> None:
    """Nodes refer to no input once their backward pass has run."""
    x = torch.rand(64)
    y = compile_module(lambda x, w: (x * w).sum())(x, torch.ones(64, requires_grad=True))
    assert y.grad_fn.cuts_call.values[0] is x
    y.backward()
    assert y.grad_fn.cuts_call is None


@needs_opencl
def test_checkpoints_compute_once() -> None:
    """Noting the inputs of a call unpacks no saved tensor."""
    calls, run, x = [], compile_module(torch.tanh), torch.rand(64, requires_grad=True)

    def block(x: Any) -> Any:
        calls.append(x)
        return run(x)

    y = checkpoint(block, x, use_reentrant=False)
    assert len(calls) == 1
    y.sum().backward()
    assert len(calls) == 2
