"""Memory that forward graphs save for backward graphs.

At most that of eager PyTorch.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.compiled_function import CompiledFunction
from cuts.runtime import ExternalSession
from cuts.runtime.placement import sequence_parts
from cuts.tests.needs import needs_opencl
from torch.multiprocessing.reductions import StorageWeakRef

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


class PolynomialGelu(nn.Module):
    """Feed-forward layer whose activation is a chain of elementwise operations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Any) -> Any:
        h = self.wide(self.norm(x))
        return x + self.narrow(0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * h**3))))


def saved_bytes(call: Any, module: Any, x: Any) -> tuple[int, Any]:
    """Return the bytes that a call saves, and its result."""
    storages: dict[int, int] = {}

    def note(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = call(x)
    known = {t.untyped_storage().data_ptr() for t in (x, *module.parameters())}
    return sum(nbytes for place, nbytes in storages.items() if place not in known), y


@needs_opencl
def test_elementwise_chains_are_computed_again() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = PolynomialGelu(), torch.randn(32, 16)
    eager, expected = saved_bytes(module, module, x)
    expected.sum().backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    ours, found = saved_bytes(torch.compile(module, backend=cuts_backend), module, x)
    found.sum().backward()
    assert ours <= eager / 2
    for gradient, parameter in zip(wanted, module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


@needs_opencl
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_results_of_group_norms_are_computed_again(form: Any) -> None:
    """Save the operand, where it is contiguous, and the statistics."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 1)).to(
        memory_format=form
    )
    x = torch.randn(2, 4, 6, 6).to(memory_format=form)
    _, expected = saved_bytes(module, module, x)
    expected.square().sum().backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    ours, found = saved_bytes(torch.compile(module, backend=cuts_backend), module, x)
    found.square().sum().backward()
    assert found.stride() == expected.stride()
    assert form is torch.channels_last or ours < 1.2 * x.nbytes * 2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for gradient, parameter in zip(wanted, module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)
        assert parameter.grad.stride() == gradient.stride()


@needs_opencl
def test_less_memory_is_saved_on_request() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16, bias=False), nn.Tanh())]
    module, x = nn.Sequential(*layers), torch.randn(64, 16)
    module(x).sum().backward()
    wanted, saved = [p.grad.clone() for p in module.parameters()], []
    for share in (1.0, 0.3):
        module.zero_grad()
        options = {"memory": share}
        nbytes, found = saved_bytes(torch.compile(module, backend=cuts_backend, options=options), module, x)
        saved.append(nbytes)
        found.sum().backward()
        for gradient, parameter in zip(wanted, module.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    assert saved[1] <= saved[0] / 2


@needs_opencl
def test_a_softmax_of_halves_saves_its_operand() -> None:
    """Cross entropy keeps scores and two numbers of each row."""
    torch._dynamo.reset()
    head, x, target = nn.Linear(16, 200), torch.randn(32, 16), torch.randint(0, 200, (32,))

    def loss(x: Any, target: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return nn.functional.cross_entropy(head(x).float(), target)

    ours, found = saved_bytes(lambda x: torch.compile(loss, backend=cuts_backend)(x, target), head, x)
    found.backward()
    gradient = head.weight.grad.clone()
    head.zero_grad()
    loss(x, target).backward()
    torch.testing.assert_close(gradient, head.weight.grad, rtol=2e-2, atol=1e-3)
    assert ours < 32 * 200 * 3


@needs_opencl
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("returned", [True, False])
def test_rows_of_saved_products_are_aligned(bias: bool, returned: bool) -> None:
    """Rows of scores begin at multiples of 16 bytes."""
    torch._dynamo.reset()
    head, x, target = nn.Linear(8, 1001, bias), torch.randn(6, 8), torch.randint(0, 1001, (6,))
    rows: list[int] = []

    def loss(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = head(x)
        found = nn.functional.cross_entropy(scores.float(), target)
        return (found, scores) if returned else (found,)

    def note(tensor: Any) -> Any:
        rows.extend(tensor.stride()[:1] if tensor.numel() > 6000 else ())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = torch.compile(loss, backend=cuts_backend)(x)
    assert rows == [1001 if returned else 1008]
    found[0].backward()
    gradients = [p.grad.clone() for p in head.parameters()]
    head.zero_grad()
    expected = loss(x)
    expected[0].backward()
    for got, want in zip((*found, *gradients), (*expected, *(p.grad for p in head.parameters())), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-3)
        assert got.stride() == want.stride()


class Attention(nn.Module):
    """Attention over queries, keys and values of one layer."""

    def __init__(self, slices: bool) -> None:
        super().__init__()
        self.mixed, self.slices = nn.Linear(16, 48), slices

    def forward(self, x: Any) -> Any:
        mixed = self.mixed(x)
        parts = mixed.chunk(3, -1) if self.slices else mixed.unflatten(-1, (3, 16)).unbind(-2)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in parts)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@needs_opencl
@pytest.mark.parametrize("slices", [True, False])
def test_parts_of_a_tensor_are_saved_whole(slices: bool) -> None:
    """Saved parts with gaps between rows would be copied for kernels."""
    torch._dynamo.reset()
    module, x, dense = Attention(slices), torch.randn(2, 32, 16), []

    def note(tensor: Any) -> Any:
        dense.append(tensor.is_contiguous())
        return tensor

    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = torch.compile(module, backend=cuts_backend)(x)
    assert dense and all(dense)
    y.float().square().sum().backward()
    found = module.mixed.weight.grad.clone()
    module.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x).float().square().sum().backward()
    torch.testing.assert_close(found, module.mixed.weight.grad, rtol=3e-2, atol=0.2)


def deep_network() -> Any:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())))


@needs_opencl
def test_saved_tensors_are_released_between_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are allocated where tensors lay that were read."""
    monkeypatch.setattr(sequence_parts, "MIN_SAVED_BYTES", 1)
    monkeypatch.setenv("CUTS_VERIFY", "0")  # a check of results keeps the arguments
    torch._dynamo.reset()
    module, x = deep_network(), torch.randn(64, 64)
    storages: list[StorageWeakRef] = []
    released: list[int] = []
    launch = ExternalSession.launch

    def note(self: Any, *addresses: Any) -> None:
        released.append(sum(each.expired() for each in storages))
        launch(self, *addresses)

    consume = CompiledFunction.consume

    def record(self: Any, arguments: list[Any]) -> Any:
        storages[:] = [StorageWeakRef(tensor.untyped_storage()) for tensor in arguments]
        return consume(self, arguments)

    loss = torch.compile(module, backend=cuts_backend)(x).square().sum()
    with monkeypatch.context() as patched:
        patched.setattr(ExternalSession, "launch", note)
        patched.setattr(CompiledFunction, "consume", record)
        loss.backward()
    assert len(released) > 1 and released[0] == 0 < released[-1]
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    module(x).square().sum().backward()
    for gradient, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-4)


@needs_opencl
def test_a_graph_that_is_kept_keeps_saved_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_parts, "MIN_SAVED_BYTES", 1)
    monkeypatch.setenv("CUTS_VERIFY", "0")  # a check of results keeps the arguments
    torch._dynamo.reset()
    module, x = deep_network(), torch.randn(64, 64)
    loss = torch.compile(module, backend=cuts_backend)(x).square().sum()
    first, second = (torch.autograd.grad(loss, list(module.parameters()), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


class UpdatedFactor(nn.Module):
    """Factor that depends on a buffer which each call updates."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 8))
        self.register_buffer("count", torch.linspace(-2.0, 1.0, 8))

    def forward(self, x: Any) -> Any:
        y = torch.sigmoid(self.count) * torch.tanh(x * self.weight)
        self.count.add_(1)
        return y


@needs_opencl
def test_nothing_is_computed_again_from_updated_inputs() -> None:
    torch._dynamo.reset()
    ours, theirs, x = UpdatedFactor(), UpdatedFactor(), torch.randn(4, 8)
    call = torch.compile(ours, backend=cuts_backend)
    for _ in range(2):
        call(x).sum().backward()
        theirs(x).sum().backward()
        torch.testing.assert_close(ours.count, theirs.count, rtol=0, atol=0)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


@needs_opencl
def test_a_returned_copy_may_be_written() -> None:
    """Copies in another order of dims are saved only inside."""

    def call(x: Any, w: Any) -> Any:
        y = torch.tanh(x @ w)
        return y.square().sum(), y.permute(1, 0).contiguous()

    torch._dynamo.reset()
    gradients = []
    for function in (call, torch.compile(call, backend=cuts_backend)):
        generator = torch.Generator().manual_seed(0)
        x, w = torch.randn(8, 16, generator=generator), torch.randn(16, 24, generator=generator, requires_grad=True)
        loss, copy = function(x, w)
        with torch.no_grad():
            copy.zero_()
        loss.backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@needs_opencl
def test_a_compiled_module_holds_no_arguments() -> None:
    """Keep none of the first call, as where Dynamo broke a graph."""
    torch._dynamo.reset()
    module = nn.Linear(4, 3)
    call = torch.compile(lambda x: module(x).tanh(), backend=cuts_backend)
    given = [torch.randn(2, 4, requires_grad=True) * 1.0]
    kept = StorageWeakRef(given[0].untyped_storage())
    call(given.pop()).sum().backward()
    assert kept.expired()


def test_copies_are_read_after_their_definition() -> None:
    """The gradient of distances copies them, transposed, after it has read them."""
    gradients = []
    for function in (torch.cdist, torch.compile(torch.cdist, backend="cuts")):
        torch.manual_seed(0)
        points = torch.randn(3, 4, 5, requires_grad=True)
        function(points, points + 1).sum().backward()
        gradients.append(points.grad)
    torch.testing.assert_close(*gradients)
