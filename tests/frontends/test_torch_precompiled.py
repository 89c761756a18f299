"""Modules whose guards and bytecode PyTorch's caching precompilation saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
package = pytest.importorskip("torch._dynamo.package")
context = pytest.importorskip("torch._dynamo.precompile_context")

from cuts.compile.torch_backend import cuts_backend
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")


class Counter(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Sums its inputs; PyTorch saves no guard on a local class."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.seen.add_(x)
        return self.seen * torch.arange(3)


@pytest.fixture(autouse=True)
def _precompiling(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Save modules in a folder of the test's own."""
    for module in (package, context):
        monkeypatch.setattr(module, "DynamoCache", package.DiskDynamoCache(str(tmp_path)))
    context.PrecompileContext.clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(caching_precompile=True):
        yield
    context.PrecompileContext.clear()
    torch._dynamo.reset()


def compile_as_later(model: Any, **options: Any) -> Any:
    """Compile as a later process does, which traces nothing."""
    torch.compiler.save_cache_artifacts()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(model, backend=cuts_backend, options=options)


def traced_frames() -> int:
    return int(torch._dynamo.utils.counters["frames"]["total"])


@needs_opencl
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["held", "frozen"])
def test_later_process_traces_nothing(options: dict[str, Any]) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Flatten()), torch.randn(2, 4)
    with torch.no_grad():
        assert torch.compile(model, backend=cuts_backend, options=options)(x).shape == (2, 3)
        for weight in model.parameters():
            weight.mul_(2.0)
        later = compile_as_later(model, **options)
        torch.testing.assert_close(later(x), model(x), rtol=1e-5, atol=1e-6)
        assert traced_frames() == 0


@needs_opencl
def test_later_process_trains() -> None:
    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4, requires_grad=True)
    torch.compile(model, backend=cuts_backend)(x).sum().backward()
    expected = [x.grad, model.weight.grad]
    x.grad = model.weight.grad = None
    compile_as_later(model)(x).sum().backward()
    assert traced_frames() == 0
    torch.testing.assert_close([x.grad, model.weight.grad], expected)


@needs_opencl
def test_buffers_are_updated_in_place() -> None:
    model, x = Counter(), torch.ones(3)
    with torch.no_grad():
        torch.compile(model, backend=cuts_backend)(x)
        found = compile_as_later(model)(x)
    assert traced_frames() == 0
    assert found.tolist() == [0.0, 2.0, 4.0] and model.seen.tolist() == [2.0, 2.0, 2.0]
