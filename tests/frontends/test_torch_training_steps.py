"""Training steps that change between calls: layouts, views, hooks, scaled gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")


def compile_anew(call: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, backend=cuts_backend)


@needs_opencl
def test_parameters_change_their_layout() -> None:
    torch.manual_seed(0)
    ours = torch.nn.Linear(4, 3)
    eager, step, x = copy.deepcopy(ours), compile_anew(ours), torch.randn(2, 4)
    for turned in (False, True):
        for model, call in ((ours, step), (eager, eager)):
            model.zero_grad()
            model.weight.data = model.weight.data.t().contiguous().t() if turned else model.weight.data.contiguous()
            call(x).square().sum().backward()
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=1e-4, atol=1e-5)
        assert ours.weight.grad.stride() == eager.weight.grad.stride()


@needs_opencl
def test_views_and_hooks_get_their_gradients() -> None:
    found = []
    for call in (torch.tanh, compile_anew(torch.tanh)):
        w = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        view = (w * 2)[1:].t()
        view.retain_grad()
        view.register_hook(lambda gradient: gradient * 3)
        call(view).sum().backward()
        found.append((w.grad, view.grad))
    torch.testing.assert_close(found[0], found[1])


@needs_opencl
@pytest.mark.parametrize("bad", [False, True])
def test_scalers_skip_infinite_gradients(bad: bool) -> None:
    x, found = torch.randn(3, 4), []
    x[0, 0] = float("inf") if bad else 1.0
    for wrap in (None, compile_anew):
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 4)
        call = model if wrap is None else wrap(model)
        optimiser, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=16.0)
        scaler.scale(call(x).square().sum()).backward()
        scaler.step(optimiser)
        scaler.update()
        found.append((model.weight.detach(), scaler.get_scale()))
    torch.testing.assert_close(found[0], found[1])
    assert found[1][1] == (8.0 if bad else 16.0)
