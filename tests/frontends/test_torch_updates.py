"""Updates of buffers and arguments by compiled modules, compared with eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile import cached_build
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.captured_graph import UncompiledWarning
from cuts.frontends.torch.dynamo_backend import autograd, dynamo
from cuts.frontends.torch.dynamo_backend.updates import updated_inputs, with_updates
from cuts.tests.needs import needs_opencl

nn = torch.nn
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("dynamo_afresh")]
UNCOMPILED_IS_ERROR = pytest.mark.filterwarnings("error::cuts.frontends.torch.captured_graph.UncompiledWarning")


class Cache(nn.Module):
    """Module of two buffers of small integers, which single precision adds exactly."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(24.0).reshape(2, 4, 3))
        self.register_buffer("b", torch.arange(24.0, 48.0).reshape(2, 4, 3))
        self.function = function

    def forward(self, x: Any, at: Any) -> Any:
        return self.function(self, x, at)


def index_copy(m: Cache, x: Any, at: Any) -> Any:
    m.a.index_copy_(1, at, x[:, :1])
    return m.a.sum((1, 2)) + x[:, 0, 0]


def two_caches(m: Cache, x: Any, at: Any) -> Any:
    m.a.index_copy_(1, at, x[:, :1])
    m.b.index_copy_(1, at, x[:, 1:2])
    return m.a * m.b


def slices(m: Cache, x: Any, at: Any) -> Any:
    m.a[:, 1:3] = x[:, :2] + m.a[:, 0:2]
    m.a[:, :, 0] += 1
    return m.a * 2


def counter(m: Cache, x: Any, at: Any) -> Any:
    m.a.add_(1)
    return x + m.a


def only_update(m: Cache, x: Any, at: Any) -> Any:
    m.a.add_(x)


def old_value(m: Cache, x: Any, at: Any) -> Any:
    old = m.a.sum(1, keepdim=True)
    m.a.index_copy_(1, at, x[:, :1])
    return m.a + old


def old_copy(m: Cache, x: Any, at: Any) -> Any:
    old = m.a.clone()
    m.a.add_(x)
    return old, m.a.flip(1)


def twice(m: Cache, x: Any, at: Any) -> Any:
    m.a.add_(x)
    y = m.a.sum(1)
    m.a.index_copy_(1, at, x[:, :1])
    return y


def roll(m: Cache, x: Any, at: Any) -> Any:
    m.a.copy_(m.a.roll(1, 1))
    return m.a + x


def swap(m: Cache, x: Any, at: Any) -> Any:
    old = m.a.clone()
    m.a.copy_(m.b)
    m.b.copy_(old)
    return x + 1


def exchange(m: Cache, x: Any, at: Any) -> Any:
    m.a.copy_(m.b)
    m.b.copy_(x)
    return m.a + 1


def argument(m: Cache, x: Any, at: Any) -> Any:
    x.add_(m.a)
    at.add_(1)
    return x * 2


def argument_view(m: Cache, x: Any, at: Any) -> Any:
    x[:, 1].mul_(2)
    m.a.add_(x)
    return x[:, 1:], m.a.transpose(0, 1)


def aliases(m: Cache, x: Any, at: Any) -> Any:
    m.a.add_(x)
    return m.a, m.a[0], x


def other_type(m: Cache, x: Any, at: Any) -> Any:
    m.a.copy_(x.double() + m.b.double())
    return m.a.to(torch.int64)


def row_to_all(m: Cache, x: Any, at: Any) -> Any:
    m.a.copy_(x[:, :1])
    return m.a.sum((0, 1))


FUNCTIONS = (index_copy, two_caches, slices, counter, only_update, old_value, old_copy, twice, roll, swap,
             exchange, argument, argument_view, aliases, other_type, row_to_all)  # fmt: skip


def contiguous() -> Any:
    return torch.randint(9, (2, 4, 3)).float()


def transpose() -> Any:
    return torch.randint(9, (3, 4, 2)).float().permute(2, 1, 0)


def odd_address() -> Any:
    return torch.randint(9, (25,)).float()[1:].view(2, 4, 3)


def slice_of_rows() -> Any:
    return torch.randint(9, (2, 4, 6)).float()[:, :, ::2]


FORMS = (contiguous, transpose, odd_address, slice_of_rows)


def check(compiled: Any, model: Any, make: Callable[[], Any] = contiguous, calls: int = 3) -> None:
    """Compare results, arguments and buffers with an eager copy's, bit by bit."""
    eager, call = copy.deepcopy(model), compiled(model)
    addresses = [buffer.data_ptr() for buffer in model.buffers()]
    for number in range(calls):
        x = make()
        mine, its = [x, torch.tensor([number])], [x.clone(), torch.tensor([number])]
        found, expected = call(*mine), eager(*its)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        torch.testing.assert_close(mine, its, rtol=0, atol=0)
        torch.testing.assert_close(list(model.buffers()), list(eager.buffers()), rtol=0, atol=0)
    assert [buffer.data_ptr() for buffer in model.buffers()] == addresses


def static(model: Any) -> Any:
    return torch.compile(model, backend=cuts_backend, fullgraph=True, dynamic=False)


@needs_opencl
@UNCOMPILED_IS_ERROR
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_updates_equal_those_of_eager(function: Any, mode: Any) -> None:
    with mode():
        check(static, Cache(function))


@needs_opencl
@UNCOMPILED_IS_ERROR
@pytest.mark.parametrize("make", FORMS[1:], ids=lambda f: f.__name__)
@pytest.mark.parametrize("function", [argument, argument_view, index_copy], ids=lambda f: f.__name__)
def test_arguments_may_lie_anywhere(function: Any, make: Any) -> None:
    with torch.no_grad():
        check(static, Cache(function), make)


@needs_opencl
@UNCOMPILED_IS_ERROR
@pytest.mark.parametrize("function", [two_caches, old_value, argument_view, exchange], ids=lambda f: f.__name__)
def test_results_are_checked(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_VERIFY", "1")
    with torch.no_grad():
        check(static, Cache(function))


@needs_opencl
@UNCOMPILED_IS_ERROR
@pytest.mark.parametrize("options", [{}, {"buckets": True}], ids=["dynamic", "buckets"])
def test_shapes_vary_beside_updates(options: dict[str, Any]) -> None:
    model = Cache(lambda m, x, at: (m.a.add_(1), x * m.a.sum())[1])
    eager = copy.deepcopy(model)
    call = torch.compile(model, backend=cuts_backend, dynamic=True, options=options)
    with torch.no_grad():
        for size in (3, 5, 6, 5):
            x, at = torch.randint(9, (size, 2)).float(), torch.tensor([0])
            assert torch.equal(call(x, at), eager(x, at)) and torch.equal(model.a, eager.a)


@needs_opencl
def test_a_graph_in_parts_updates_its_inputs() -> None:
    with torch.library._scoped_library("update_tests", "FRAGMENT") as library:
        halve = torch.library.custom_op("update_tests::halve", _halve, mutates_args=())
        halve.register_fake(_halve)
        model = Cache(lambda m, x, at: (m.a.index_copy_(1, at, halve(x[:, :1])), m.a * 2 + m.b)[1])
        with torch.no_grad(), pytest.warns(UncompiledWarning, match="halve"):
            check(static, model)
        del library


def _halve(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


@needs_opencl
@UNCOMPILED_IS_ERROR
def test_gradients_beside_updates() -> None:
    model = Cache(lambda m, x, at: (m.a.add_(1), (x * x + m.b).sum(1))[1])
    eager, call = copy.deepcopy(model), static(model)
    for _ in range(3):
        x, like = (contiguous().requires_grad_() for _ in range(2))
        like.data.copy_(x.data)
        found, expected = call(x, torch.tensor([0])), eager(like, torch.tensor([0]))
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(found, expected) and torch.equal(x.grad, like.grad) and torch.equal(model.a, eager.a)


@needs_opencl
@UNCOMPILED_IS_ERROR
def test_running_statistics_are_updated() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).train()
    eager, call = copy.deepcopy(model), static(model)
    for _ in range(3):
        x = torch.randn(4, 2, 6, 6)
        call(x).sum().backward()
        eager(x).sum().backward()
        for mine, its in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)
    for mine, its in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-3, atol=1e-4)


@needs_opencl
@UNCOMPILED_IS_ERROR
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["held", "frozen"])
def test_a_later_process_updates_without_autograd(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cached_build, "MIN_CACHED_BUILD_SECONDS", 0.0)
    traced: list[Any] = []
    through = autograd.apply_autograd
    for place in (autograd, dynamo):
        monkeypatch.setattr(place, "apply_autograd", lambda m, *given: (traced.append(m), through(m, *given))[1])
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            check(lambda m: torch.compile(m, backend=cuts_backend, fullgraph=True, options=options), Cache(two_caches))
    assert len(traced) == 1


def test_updates_are_the_last_results() -> None:
    """An input as the new value of another is copied first."""

    def trace(a: Any, b: Any) -> list[Any]:
        y = a + b
        a.copy_(b)
        b.copy_(y)
        return [y * 2]

    seen: list[Any] = []
    x, z = torch.ones(3), torch.full((3,), 2.0)
    made = torch.fx.experimental.proxy_tensor.make_fx(trace, tracing_mode="fake")(x, z)
    compiled = with_updates(lambda module, inputs: (seen.append(module.graph), lambda given: module(*given))[1])
    call = compiled(made, [x, z])
    (graph,) = seen
    assert updated_inputs(graph) == (0, 1)
    assert not any(node.target is torch.ops.aten.copy_.default for node in graph.nodes)
    results = next(node for node in graph.nodes if node.op == "output").args[0]
    assert len(results) == 3 and results[1].target is torch.ops.aten.clone.default
    (y,) = call([x, z])
    assert torch.equal(y, torch.full((3,), 6.0))
    assert torch.equal(x, torch.full((3,), 2.0)) and torch.equal(z, torch.full((3,), 3.0))
