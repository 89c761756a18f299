"""Strides, offsets and storages of results, forward and backward.

They are those that PyTorch traced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.captured_graph import UncompiledWarning
from cuts.frontends.torch.decompositions.view_strides import view_strides
from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.frontends.torch.result_memory import ResultMemory
from cuts.frontends.torch.results import checked_results
from cuts.ir import BackendError
from cuts.tests.amounts import NIGHTLY, examples
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st
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
    "expand": lambda x: x.sum(1, keepdim=True).expand(-1, 4, -1, -1),
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
#: Pairs that PyTorch's autograd cannot trace, or saves complex numbers for.
UNSUPPORTED_PAIRS = {("quantile", "several views"), ("spectrum", "several views")}
PAIRS = [(p, c) for p in PRODUCERS for c in CONSUMERS if (p, c) not in UNSUPPORTED_PAIRS][:: 1 if NIGHTLY else 5]


def layout(tensor: Any) -> Any:
    """Return type, shape, strides and offset.

    Autograd makes new strides for axes of one element.
    """
    steps = [step for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n != 1 and tensor.numel()]
    return tensor.dtype, tensor.shape, steps, tensor.storage_offset()


def check_against_eager(function: Callable[[Any], Any], x: Any, dynamic: bool | None = False) -> None:
    """Compare values, layouts and gradients.

    The backend compares storages with the trace.
    """
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
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("produce", "consume"), PAIRS)
def test_results_lie_as_in_eager_mode(produce: str, consume: str, trained: bool) -> None:
    x = torch.rand(2, 4, 6, 6, dtype=torch.float64, requires_grad=trained)
    check_against_eager(lambda x: CONSUMERS[consume](PRODUCERS[produce](x)), x)


class ConvNeXtBlock(torch.nn.Module):
    """Depthwise convolution, norm over channels that lie last, products."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.wide, self.narrow = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.scale = torch.nn.Parameter(torch.rand(8, 1, 1))

    def forward(self, x: Any) -> Any:
        rows = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + self.scale * self.narrow(functional.gelu(self.wide(rows))).permute(0, 3, 1, 2)


class FocalBlock(torch.nn.Module):
    """Modulation by contexts of several widths, which are slices of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 2 * 8 + 3), torch.nn.Linear(8, 8)
        self.widths = torch.nn.ModuleList(torch.nn.Conv2d(8, 8, n, padding=n // 2, groups=8) for n in (3, 5))
        self.whole = torch.nn.Conv2d(8, 8, 1)

    def forward(self, x: Any) -> Any:
        query, context, gates = self.first(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).split((8, 8, 3), 1)
        total = 0
        for n, width in enumerate(self.widths):
            context = functional.gelu(width(context))
            total = total + context * gates[:, n : n + 1]
        total = total + functional.gelu(context.mean((2, 3), keepdim=True)) * gates[:, 2:]
        return self.last((query * self.whole(total)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SwinBlock(torch.nn.Module):
    """Attention among shifted windows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.last = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        rows = torch.roll(self.norm(x.permute(0, 2, 3, 1)), (-1, -1), (1, 2))
        parts = rows.view(-1, 2, 3, 2, 3, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, 8)
        q, k, v = self.qkv(parts).view(-1, 9, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        seen = torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v
        found = self.last(seen.transpose(1, 2).reshape(-1, 9, 8)).view(-1, 2, 2, 3, 3, 8)
        whole = torch.roll(found.permute(0, 1, 3, 2, 4, 5).reshape(-1, 6, 6, 8), (1, 1), (1, 2))
        return x + whole.permute(0, 3, 1, 2)


@needs_opencl
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("lies", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("block", [ConvNeXtBlock, FocalBlock, SwinBlock])
def test_vision_blocks_have_eager_layouts(block: Any, lies: Any, trained: bool) -> None:
    model = torch.nn.Sequential(block(), block()).double().to(memory_format=lies)
    x = torch.rand(2, 8, 6, 6, dtype=torch.float64).to(memory_format=lies).requires_grad_(trained)
    check_against_eager(model.requires_grad_(trained), x)


@needs_opencl
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("images", [1, 2])
def test_convolutions_of_viewed_rows_have_eager_layouts(images: int, size: int, trained: bool) -> None:
    """The stride of an axis of one element decides on channels-last."""
    filters = torch.rand(4, 4, size, size, dtype=torch.float64)
    x = torch.rand(images, 36, 4, dtype=torch.float64, requires_grad=trained)
    check_against_eager(lambda x: functional.conv2d(x.mT.view(-1, 4, 6, 6), filters, padding=size // 2), x)


@settings(max_examples=examples(200, 3000), deadline=None)
@given(st.data())
def test_traced_views_have_eager_strides(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), max_size=5))
    order = data.draw(st.permutations(range(len(shape))))
    slack = data.draw(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=len(shape), max_size=len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis], step = step * slack[axis], step * slack[axis] * shape[axis]
    x = torch.empty_strided(shape, strides)
    wanted = data.draw(st.permutations([n for n in shape if n > 1] + [1] * data.draw(st.integers(0, 3))))
    with suppress(RuntimeError):  # not every shape is a view
        assert view_strides(x.shape, x.stride(), wanted) == x.view(wanted).stride()


@needs_opencl
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("produce", ["permute", "middle slice", "expand", "channels last", "running sum"])
def test_symbolic_shapes_have_symbolic_strides(produce: str, trained: bool) -> None:
    for rows in (2, 3, 5):
        x = torch.rand(rows, 4, rows + 1, 6, dtype=torch.float64, requires_grad=trained)
        check_against_eager(lambda x: PRODUCERS[produce](x).transpose(0, 1), x, dynamic=True)


@needs_opencl
def test_one_graph_serves_inputs_with_other_strides() -> None:
    compiled = torch.compile(lambda x: (x * 2, x.t()), backend=cuts_backend, dynamic=True)
    for x in (torch.rand(6, 9)[:, :5], torch.rand(6, 8)[:, :5], torch.rand(5, 6).t(), torch.rand(6, 5)):
        for found, expected in zip(compiled(x), (x * 2, x.t()), strict=True):
            assert layout(found) == layout(expected)
            torch.testing.assert_close(found, expected)


@needs_opencl
def test_mutated_inputs_and_their_views_keep_their_memory() -> None:
    def step(x: Any, y: Any) -> Any:
        view = x.t()
        view.add_(1)
        y[1:].mul_(2)
        return view, x[1:], y.view(-1), x + 1

    given, other = [torch.rand(6, 9)[:, 1:5], torch.rand(5, 6)], []
    other = [torch.empty_strided(t.shape, t.stride()).copy_(t) for t in given]
    expected, found = step(*given), torch.compile(step, backend=cuts_backend)(*other)
    for one, two, source in zip(expected, found, (0, 0, 1, None), strict=True):
        torch.testing.assert_close(two, one)
        assert two.stride() == one.stride()
        for number, tensor in enumerate(other):
            shared = two.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            assert shared == (number == source)
    for one, two in zip(given, other, strict=True):
        torch.testing.assert_close(two, one)


@needs_opencl
def test_saved_inputs_are_kept_without_copies() -> None:
    saved: list[Any] = []
    x, w = torch.rand(4, 3, requires_grad=True), torch.rand(3, 5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        torch.compile(lambda x, w: (x @ w).sigmoid(), backend=cuts_backend)(x, w)
    assert {x.data_ptr(), w.data_ptr()} <= {tensor.data_ptr() for tensor in saved}


@needs_opencl
def test_copies_among_results_have_a_storage_each() -> None:
    compiled = torch.compile(lambda x: (y := x + 1, y.clone(), x.clone(), y), backend=cuts_backend)
    first, second, third, fourth = compiled(torch.zeros(4))
    second.add_(1)
    third.add_(5)
    assert fourth is first
    assert (first.tolist(), second.tolist(), third.tolist()) == ([1.0] * 4, [2.0] * 4, [5.0] * 4)


def trace(function: Callable[..., Any], *examples: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake")(*examples).graph


def test_result_memory_survives_a_record() -> None:
    graph = trace(lambda x: [(y := x + 1), y[:, 1:], x.t(), x.sum().expand(3)], torch.rand(4, 5))
    memory = graph_of_nodes(graph, None, True).signature.memory
    assert ResultMemory.of_record(json.loads(json.dumps(memory.record()))) == memory


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        (lambda x: [(y := x + 1), y.t(), x[1:]], None),
        (lambda x: [(y := x + 1), y.t().contiguous(), x[1:]], "expected strides"),
        (lambda x: [(y := x + 1), y.clone().t(), x[1:]], "expected the storage of result 0"),
        (lambda x: [(y := x + 1), y.t(), x[:-1]], "expected offset 5, found 0"),
        (lambda x: [x, x.t(), x[1:]], "expected another storage than that of input 0"),
        (lambda x: [(y := x.double() + 1), y.t(), x[1:]], "expected element type"),
    ],
)
def test_the_check_finds_planted_faults(returned: Callable[[Any], Any], fault: str | None) -> None:
    x = torch.rand(4, 5)
    graph = trace(lambda x: [(y := x + 1), y.t(), x[1:]], x)
    (output,) = (node for node in graph.nodes if node.op == "output")
    check = checked_results(graph, output.args[0], returned)
    if fault is None:
        check(x)
        return
    with pytest.raises(BackendError, match=fault):
        check(x)


@needs_opencl
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_strides_select_elements_of_permuted_tensors(order: tuple[int, ...]) -> None:
    x, update = torch.rand(4, 5, 6).permute(order), torch.rand(2, 3)

    def change(x: Any, update: Any) -> Any:
        y = x + 1
        return torch.as_strided_scatter(y, update, (2, 3), (1, 7), 9), y.as_strided((3, 2), (2, 5), 4) * 2

    for found, expected in zip(torch.compile(change, backend=cuts_backend)(x, update), change(x, update), strict=True):
        assert layout(found) == layout(expected)
        torch.testing.assert_close(found, expected)
    same = torch.compile(lambda x: torch.slice_scatter(x + 1, x[:0], 0, 2, 2), backend=cuts_backend)(x)
    torch.testing.assert_close(same, x + 1)
