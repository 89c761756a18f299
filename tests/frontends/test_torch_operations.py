"""PyTorch's operations on masks, complex numbers, memory and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch import dispatch
from cuts.frontends.torch.loading.load import load_torch
from cuts.ir.errors import CutsError
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides


class Function(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A function as a module, with a constant of complex numbers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.turns = torch.nn.Buffer(torch.polar(torch.ones(8), torch.arange(8.0)))

    def forward(self, x: Any) -> Any:
        return self.function(x, self.turns)


def masks(x: Any, turns: Any) -> Any:
    y, z, w = x.clone(), x.clone(), x.clone()
    y[x > 0.5] = 0.5
    z[x[..., 0] > 0] = torch.arange(8.0)
    w[:, x[0] > 0] = 1
    source = torch.arange(48.0)
    edges = torch.linspace(-1, 1, 5)
    twice = x.clone()
    twice[twice < 0] = twice[twice < 0].exp() + 1  # the mask is written out twice
    y[:, x[1] > 0] += (x * 2)[1][x[1] > 0] - 3
    return (
        y,
        z,
        w,
        twice,
        x.masked_scatter(x > 0, source),
        torch.bucketize(x, edges),
        torch.searchsorted(x.sort()[0], x[..., :2], right=True),
        torch.nonzero_static(x > 0.5, size=40, fill_value=-7),
        torch.nonzero_static(x[0, 0].round(), size=3),
    )


def complexes(x: Any, turns: Any) -> Any:
    pairs = torch.view_as_complex(x.reshape(2, 3, 4, 2))
    spectrum = torch.stft(x.flatten(1), 8, 4, window=torch.hann_window(8), return_complex=True)
    z = torch.complex(x, x + 1)
    product = (z.mT @ (z - 2j).conj() / turns).sum(1)
    joined = torch.cat([torch.where(x > 0, z, 1j), torch.nn.functional.pad(z, (1, 1))[..., 1:-1] ** 2], 1)
    return (
        torch.view_as_real(pairs * turns[:4]).flatten(2), spectrum.abs(),
        torch.istft(spectrum, 8, 4, window=torch.hann_window(8)),
        torch.fft.ifftn(torch.fft.fftn(x, dim=(1, 2)) * z).imag,
        torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho") * 2, norm="ortho"),
        product.imag, joined.real, torch.exp(z * 1j).real, (1 / z).imag,
    )  # fmt: skip


def memory(x: Any, turns: Any) -> Any:
    torch._check(x.argmax().item() >= 0)  # an assertion on a computed value says nothing of results
    written = torch.empty_like(x)
    written.copy_(x)
    joined = torch.cat([torch.arange(2), x[0, 0]])
    return (
        joined,
        x.as_strided((2, 3, 3, 4), (24, 8, 2, 1)),
        x.clone().fill_(2.0) + written,
        torch.nn.functional.avg_pool2d(x, (1, 2)),
    )


def numbers(x: Any, turns: Any) -> Any:
    many = torch.stack(
        [torch.log2(x.abs() + 1), torch.log10(x.abs() + 1), torch.exp2(x), torch.hypot(x, x + 1), torch.copysign(x, -x)]
    )
    more = torch.stack(
        [torch.nn.functional.softplus(x, beta=2), torch.erfc(x), torch.round(x, decimals=1), torch.signbit(x).float()]
    )
    chosen = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.cos(), (x,))
    whole = (x * 10).long()
    places = x.kthvalue(3, 1)[1], x.median(-1)[0], x.median(), (whole << 2) >> 1
    return (
        many,
        more,
        chosen,
        torch.cdist(x, x[:, :2]),
        torch.cdist(x, x[:, :2], p=1),
        torch.addmv(x[0, :, 0], x[0], x[1, 0]),
        *places,
    )


def signals(x: Any, turns: Any) -> Any:  # a call without operands gives the same whenever the program runs
    made = (torch.hamming_window(8), torch.blackman_window(8, periodic=False), torch.kaiser_window(8, dtype=x.dtype))
    return (
        *(x * window for window in (*made, torch.bartlett_window(8))),
        x[0] * torch.triu_indices(3, 8, 1)[:, :3].sum(),
    )


def running(x: Any, turns: Any) -> Any:
    whole = (x * 2).long()
    far = torch.cat([torch.full_like(x, -torch.inf), x * 100], 1)
    extremes = torch.cummax(whole, 2), torch.cummin(whole, 2), torch.cummin(x, 0), torch.cummax(x > 0, 1)
    return *(v for pair in extremes for v in pair), torch.logcumsumexp(far, 1), torch.logcumsumexp(x, -1)


def scatters(x: Any, turns: Any) -> Any:
    whole = (x * 9).long()
    places = (whole % 7).roll(1, 2)
    given: dict[str, Any] = {"include_self": False}
    real = [torch.scatter_reduce(x, 2, places, x - 1, how, **given) for how in ("mean", "sum", "prod", "amax", "amin")]
    means = (
        torch.scatter_reduce(x, 2, places, x - 1, "mean"),
        torch.scatter_reduce(whole, 2, places, whole - 9, "mean", **given),
    )
    rows = torch.tensor([1, 0]).reshape(2, 1, 1).expand(2, 3, 8)
    real += [torch.scatter_reduce(x[:, :1].expand(2, 3, 8), 0, rows, x, how, **given) for how in ("mean", "sum")]
    counts = torch.histc(x, 5), torch.histc(x, 4, -1, 1), torch.histc(x * 0, 3)
    return *real, *means, *counts, torch.index_reduce(x, 1, torch.tensor([2, 0, 2]), x + 1, "mean")


def margins(x: Any, turns: Any) -> Any:
    labels = torch.tensor([[1, 2, -1, 0, 5, 0, 0, 0], [3, -1, 3, 0, 0, 0, 0, 0], [-1] * 8])
    loss = torch.nn.functional.multilabel_margin_loss
    return (
        loss(x[0], labels),
        loss(x[0], labels, reduction="sum"),
        loss(x[0], labels, reduction="none"),
        loss(x[0, 0], labels[0]),
    )


def windows(x: Any, turns: Any) -> Any:
    f = torch.nn.functional
    smaller = (
        f.interpolate(x[None], (2, 5), mode="bilinear", antialias=True),
        f.interpolate(x[None], (4, 3), mode="bicubic", antialias=True),
    )
    scaled = f.interpolate(x[None], scale_factor=(0.7, 0.6), mode="bilinear", antialias=True)
    resized = (
        f.interpolate(x, 5, mode="linear"),
        f.interpolate(x, scale_factor=1.7, mode="linear"),
        f.interpolate(x, 11, mode="linear", align_corners=True),
        f.interpolate(x[None], scale_factor=2, mode="bicubic"),
        f.interpolate(x[None], (5, 3), mode="bicubic"),
        f.interpolate(x[None], (7, 8), mode="bicubic", align_corners=True),
        f.interpolate(x[None, None], (3, 5, 4), mode="trilinear"),
        f.interpolate(x[None, None], scale_factor=2.5, mode="trilinear"),
        f.interpolate(x[None, None], (5, 4, 3), mode="nearest"),
        f.fold(x.reshape(2, 24, 1).repeat(1, 1, 6), (3, 4), (2, 2)),
        f.fold(x.reshape(6, 8).T, (5, 7), (2, 2), dilation=2, padding=1, stride=3),
        *(f.interpolate(x[..., :4], size, mode="nearest-exact") for size in (3, 12, 41, 47)),  # the last two round
        *(f.interpolate(x[..., :4], size, mode="nearest") for size in (3, 12, 41, 47)),
        f.interpolate(x[None], scale_factor=(1.5, 0.7), mode="nearest-exact"),
    )
    pooled = (
        f.adaptive_max_pool2d(x.round(), (2, 5), return_indices=True),
        f.adaptive_max_pool1d(x, 5, return_indices=True),
    )
    return (
        *smaller,
        scaled,
        *pooled[0],
        *pooled[1],
        *resized,
        f.bilinear(x, x[..., :3], torch.arange(120.0).reshape(5, 8, 3), torch.ones(5)),
    )


@pytest.mark.parametrize("function", [masks, complexes, memory, numbers, signals, running, scatters, margins, windows])
def test_operations_compute_what_pytorch_does(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    module, x = Function(function), torch.randn(2, 3, 8)
    graph = load_torch(module, (x,))
    found = evaluate_graph(graph, Registry.builtin(), {graph.inputs[0]: x.numpy()})
    for output, value in zip(graph.outputs, module(x), strict=True):
        assert (found[output].shape, graph.types[output].dtype.numpy) == (value.shape, value.numpy().dtype)
        np.testing.assert_allclose(found[output], value.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, turns: torch.linalg.qr(x[:, :, :3])[1], "1 operation is not supported: aten.linalg_qr"),
        (lambda x, turns: torch.fft.rfft(x), "output '_fft_r2c': it is complex; return torch.view_as_real of it"),
        (
            lambda x, turns: x[..., ::2].as_strided((2, 2), (1, 47)),
            "strides of elements that no tensor of the graph",
        ),
        (lambda x, turns: x[x > 0].sum(), "node 'sum_1' .* not supported but to write by the same one"),
        (lambda x, turns: x.argmax(-1).flatten().bincount(), "the length of the result depends on values; .*one_hot"),
        (lambda x, turns: x[x > 0] + 1, r"output 'add(_2)?': its shape depends on values"),
    ],
)
def test_what_cannot_be_read_is_explained(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(CutsError, match=message):
        load_torch(Function(function), (torch.randn(2, 3, 8),))


@pytest.mark.parametrize("changes", [{"to": "f64"}, {}], ids=["type", "shape"])
def test_a_conversion_has_the_traced_type(changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of results has the traced size: another type is an error."""
    op = "cast" if changes else "transpose"
    monkeypatch.setitem(dispatch.TABLE, "aten.relu", lambda ctx, x: ctx.emit(op, x, **changes))
    with pytest.raises(CutsError, match=r"node 'relu' .*: expected torch.float32 \[2, 3, 8\], found"):
        load_torch(Function(lambda x, _: x.relu()), (torch.randn(2, 3, 8),))


def test_edge_numbers_match_pytorch() -> None:
    def edges(x: Any, _: Any) -> Any:
        small = x * 1e-8
        return (
            x.sign(), torch.expm1(small), torch.log1p(small), torch.nn.functional.logsigmoid(x * 10),
            x.relu(), x.clamp(0, 6),
            x.amax(-1), x.argmax(-1), torch.nn.functional.hardtanh(x), torch.nn.functional.celu(x),
            torch.logsumexp(x / 0, -1),
        )  # fmt: skip

    x = torch.tensor([[float("nan"), -3.0, 0.0], [2.0, -20.0, 1.0]])
    graph = load_torch(Function(edges), (x,))
    found = evaluate_graph(graph, Registry.builtin(), {graph.inputs[0]: x.numpy()})
    for name, expected in zip(graph.outputs, edges(x, None), strict=True):
        np.testing.assert_allclose(found[name], expected.numpy(), rtol=1e-5, atol=1e-12, err_msg=name)


def test_floats_beyond_narrow_integers_wrap() -> None:
    def narrow(x: Any, _: Any) -> Any:
        return x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16)

    x = torch.tensor([float("nan"), -1.5, -0.5, 254.9, 300.7, -200.0, 7e4, -7e4])
    graph = load_torch(Function(narrow), (x,))
    found = evaluate_graph(graph, Registry.builtin(), {graph.inputs[0]: x.numpy()})
    for name, expected in zip(graph.outputs, narrow(x, None), strict=True):
        np.testing.assert_array_equal(found[name], expected.numpy(), err_msg=name)
