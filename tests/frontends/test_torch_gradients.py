"""Gradients of PyTorch's activations, also far from zero.

They equal those of f64 within rounding of f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.tests.needs import needs_opencl

from .test_torch_training import Recorder

F = torch.nn.functional
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning"),
]

PLACES = (-1e30, -1e4, -100, -20, -5, -1, -1e-8, 0, 1e-8, 1, 5, 9, 20, 100, 1e4, 1e30)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "gated": lambda x: F.glu(torch.stack([torch.full_like(x, 1e4), x]), 0),
    "softsign": F.softsign,
    "softplus": F.softplus,
    "log_sigmoid": F.logsigmoid,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "logaddexp": lambda x: torch.logaddexp(x, x + 1),
}
#: Of sums and products of numbers near 1, in f32.
ERROR = 32 * torch.finfo(torch.float32).eps


@needs_opencl
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_is_that_of_doubles(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(FUNCTIONS[name], backend=Recorder("opencl"))
    gradients = []
    for function, kind in ((FUNCTIONS[name], torch.float64), (compiled, torch.float32)):
        x = torch.tensor(PLACES).to(kind).requires_grad_()
        function(x).sum().backward()
        gradients.append(x.grad.double())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=ERROR, atol=ERROR)
