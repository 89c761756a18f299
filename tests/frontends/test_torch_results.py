"""Results of compiled graphs: the strides, offsets and storages that PyTorch traced, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.captured import UncompiledWarning
from cuts.tests.needs import needs_opencl
from torch.nn import functional

pytestmark = [
    pytest.mark.usefixtures("dynamo_afresh"),
    pytest.mark.filterwarnings(f"error::{UncompiledWarning.__module__}.UncompiledWarning"),
]

#: Operations that change a layout, of a tensor (2, 4, 6, 6).
PRODUCERS: dict[str, Callable[[Any], Any]] = {
    "permute": lambda x: (x + 1).permute(0, 2, 3, 1),
    "transpose": lambda x: x.exp().transpose(1, 3),
    "permuted convolution": lambda x: functional.conv2d(x, torch.ones(4, 1, 3, 3).to(x), groups=4, padding=1).permute(
        0, 2, 3, 1
    ),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) * 2,
    "contiguous": lambda x: x.permute(0, 2, 3, 1).contiguous(),
    "expand": lambda x: x.sum(1, keepdim=True).expand(2, 4, 6, 6),
    "middle slice": lambda x: x.tanh()[:, 1:3],
    "small slice": lambda x: x.tanh()[:, :, :, 5],
    "odd slice": lambda x: x.tanh()[:, :, 1:, 1:],
    "steps": lambda x: x.tanh()[:, :, ::2, ::3],
    "flip": lambda x: x.flip(2),
    "rotated": lambda x: torch.rot90(x, 1, (2, 3)),
    "running sum": lambda x: x.cumsum(3)[..., 1:],
    "quantile": lambda x: x.quantile(torch.tensor([0.25, 0.5]).to(x), dim=3),
    "halves": lambda x: torch.cat([half * n for n, half in enumerate((x * x).chunk(2, 1), 2)], 3),
    "windows": lambda x: x.exp().unfold(3, 3, 2),
    "one element": lambda x: x.exp()[:1, 2:3].transpose(0, 1),
    "no elements": lambda x: x.exp()[:, 2:2].transpose(0, 1),
    "spectrum": lambda x: torch.view_as_real(
        torch.stft(x.reshape(8, 36), 8, window=torch.ones(8), return_complex=True)
    ),
}
#: Consumers, views among them.
CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda y: y,
    "transpose": lambda y: y.transpose(0, -1),
    "slice": lambda y: y[..., 1:],
    "several views": lambda y: (y, y.transpose(0, 1), y[:1], y[1:]),
    "square of a view": lambda y: (y.transpose(0, 1) * 2, y.transpose(1, 2).square()),
    "norm": lambda y: functional.layer_norm(y, y.shape[-1:]),
}


def layout(tensor: Any) -> Any:
    """Return where elements are; autograd makes new strides for axes of one element."""
    steps = [step for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n != 1 and tensor.numel()]
    return tensor.dtype, tensor.shape, steps, tensor.storage_offset()


def check_against_eager(function: Callable[[Any], Any], x: Any, dynamic: bool | None = False) -> None:
    """Compare values, layouts and gradients; storages are compared with the trace in the backend."""
    other = x.detach().clone().requires_grad_(x.requires_grad)
    expected, found = function(x), torch.compile(function, backend=cuts_backend, dynamic=dynamic)(other)
    many = isinstance(expected, tuple)
    for one, two in zip(expected if many else [expected], found if many else [found], strict=True):
        assert layout(two) == layout(one)
        torch.testing.assert_close(two, one, rtol=1e-8, atol=1e-8)
    if x.requires_grad:
        sum(each.square().sum() for each in (expected if many else [expected])).backward()
        sum(each.square().sum() for each in (found if many else [found])).backward()
        assert layout(other.grad) == layout(x.grad)
        torch.testing.assert_close(other.grad, x.grad, rtol=1e-7, atol=1e-7)


@needs_opencl
@pytest.mark.parametrize("consume", CONSUMERS)
@pytest.mark.parametrize("produce", PRODUCERS)
@pytest.mark.parametrize("trained", [False, True])
def test_results_lie_as_in_eager_mode(produce: str, consume: str, trained: bool) -> None:
    x = torch.rand(2, 4, 6, 6, dtype=torch.float64, requires_grad=trained)
    check_against_eager(lambda x: CONSUMERS[consume](PRODUCERS[produce](x)), x)
