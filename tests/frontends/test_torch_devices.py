"""Devices of PyTorch: graphs without one supported device run uncompiled.

A warning names the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.devices import device_of
from cuts.frontends.torch.dynamo_backend.dynamo import UncompiledWarning
from cuts.frontends.torch.open_program import ExpectedInput
from cuts.ir import UsageError
from cuts.tests.needs import needs_opencl


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run_with_warnings(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str]]:
    """Return a compiled function's result, and our warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = torch.compile(function, backend=cuts_backend, fullgraph=True)(*arguments)
    return found, [str(each.message) for each in caught if each.category is UncompiledWarning]


def test_a_device_without_kernels_stays_in_pytorch() -> None:
    found, (warning,) = run_with_warnings(lambda x: x * 2 + 1, torch.randn(3, 4, device="meta"))
    assert (found.device.type, found.shape) == ("meta", (3, 4))
    assert warning.endswith("there are no kernels for device meta; tensors may lie on cpu and cuda")


@needs_opencl
def test_results_on_two_devices_stay_where_they_are() -> None:
    x = torch.randn(3, 4)
    (here, there), (warning,) = run_with_warnings(lambda x: (x * 2, torch.ones(5, device="meta") + 1), x)
    assert torch.equal(here, x * 2)
    assert there.device.type == "meta"
    assert "its tensors lie on cpu and meta; move the model and its inputs to one device" in warning


def test_numbers_go_where_the_other_tensors_are() -> None:
    number, x = torch.tensor(2.0), torch.empty(3, device="meta")
    assert device_of([1, number, x]) == x.device
    expected = ExpectedInput("number", 0, torch.float32, number.shape, x.device)
    assert expected.of([number]).device == x.device
    with pytest.raises(UsageError, match=r"expected torch.float32\[\] on meta, found torch.float32\[3\] on cpu"):
        expected.of([torch.empty(3)])


@needs_opencl
def test_a_graph_without_results_is_no_news() -> None:
    @torch.library.custom_op("cuts_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    double.register_autograd(lambda context, gradient: None)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = torch.compile(lambda x: double(x), backend=cuts_backend)(x)
        torch.autograd.backward((found * y).sum())
    assert torch.equal(found, x * 2)
    assert not [each for each in caught if "no outputs" in str(each.message)]
