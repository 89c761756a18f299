"""Complex tensors at the borders of captured graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check types, strides and storages of results, and let no graph stay in PyTorch."""
    monkeypatch.setenv("CUTS_VERIFY", "1")
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class _Rotation(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: Any) -> Any:
        return torch.view_as_complex(x.reshape(-1, 4, 2)) * self.angles


def _numbers(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.complex64)


def _extremes() -> Any:
    """Return numbers whose squares overflow or become 0."""
    return torch.tensor([3e25 + 4e25j, 3e-25 - 4e-25j, -1e20, 1e-30j, 2 - 1j])


def _with_assigned(z: Any) -> Any:
    wide = torch.zeros(5, 6, dtype=z.dtype)
    wide[:4, 1:] = z[:, 1:]
    wide[[1, 1], [0, 2]] = z[0, :2]
    return wide.index_add(0, torch.tensor([2, 2, 0, 1]), z).roll(1, 1).tril()


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "product": (lambda z, x: (z * torch.complex(x, x + 1), x + 1), lambda: (_numbers(3, 4), torch.randn(3, 4))),
    "transposed": (lambda z: z.t() * 2, lambda: (_numbers(3, 4),)),
    "strided input": (lambda z: z * 2, lambda: (_numbers(4, 6).t()[:, ::2],)),
    "conjugate": (lambda z: torch.conj(z).resolve_conj() + 1, lambda: (_numbers(5),)),
    "conjugated input": (lambda z: z + 1, lambda: (_numbers(5).conj(),)),
    "view of an input": (lambda z: (z[1:], z * 2), lambda: (_numbers(3, 4),)),
    "spectrum": (lambda x: (torch.fft.rfft(x * 2), x + 1), lambda: (torch.randn(8, 16),)),
    "sizes": (lambda z: (z.abs(), 1 / z, torch.sgn(z), torch.cat([z, 0 * z]).sgn()), lambda: (_extremes(),)),
    "assigned": (lambda z: _with_assigned(z), lambda: (_numbers(4, 6),)),
    "double": (lambda z: z * z, lambda: (_numbers(3).to(torch.complex128),)),
}


@pytest.mark.parametrize("case", CASES)
def test_complex_inputs_and_results_equal_eager(case: str) -> None:
    torch.manual_seed(0)
    function, make = CASES[case]
    arguments = make()
    found, wanted = torch.compile(function, backend="cuts")(*arguments), function(*arguments)
    for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, check_stride=True)


def test_complex_values_are_saved_for_the_backward_graph() -> None:
    torch.manual_seed(0)
    given = [_numbers(3, 4).requires_grad_(), torch.randn(3, 4, requires_grad=True)]

    def function(z: Any, x: Any) -> Any:
        w = z * torch.complex(x, x + 1)
        return (w * w * (1 + 2j)).abs().sum() + torch.fft.rfft(w.real * w.imag).abs().square().sum()

    gradients = []
    for called in (torch.compile(function, backend="cuts"), function):
        called(*given).backward()
        gradients.append([each.grad.clone() for each in given])
        for each in given:
            each.grad = None
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("freeze", [False, True])
def test_a_complex_buffer_is_input_or_constant(freeze: bool) -> None:
    model, x = _Rotation(), torch.randn(3, 8)
    with torch.no_grad():
        found = torch.compile(model, backend="cuts", options={"freeze": freeze})(x)
        torch.testing.assert_close(found, model(x))
