"""Small networks of many kinds with random weights, as exporters write them.

Each has a form that no other has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch.nn import functional as F


class UNet(nn.Module):
    """Transposed convolutions and joined paths."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = self._block(3, 4), self._block(4, 8)
        self.up, self.joined, self.last = nn.ConvTranspose2d(8, 4, 4, 2, 1), self._block(8, 4), nn.Conv2d(4, 2, 1)

    @staticmethod
    def _block(i: int, o: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU()
        )

    def forward(self, x: Any) -> Any:
        a = self.down(x)
        b = self.middle(F.max_pool2d(a, 2))
        resized = F.interpolate(b, size=a.shape[2:], mode="bilinear", align_corners=True)
        return torch.sigmoid(self.last(self.joined(torch.cat([self.up(b), a], 1)))), resized


class Generator(nn.Module):
    """From a vector to an image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 8 * 16)
        self.rest = nn.Sequential(
            nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z: Any) -> Any:
        return self.rest(self.first(z).view(-1, 8, 4, 4))


class Inverted(nn.Module):
    """An inverted bottleneck with squeeze and excitation, as in MobileNetV3 and EfficientNet."""

    def __init__(
        self, i: int, o: int, kernel: int, stride: int, act: Callable[[], Any], gate: Callable[[], Any]
    ) -> None:
        super().__init__()
        wide = 3 * i
        self.residual = i == o and stride == 1
        self.expand = nn.Sequential(nn.Conv2d(i, wide, 1, bias=False), nn.BatchNorm2d(wide), act())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False), nn.BatchNorm2d(wide), act()
        )
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide // 4, 1), nn.ReLU(), nn.Conv2d(wide // 4, wide, 1), gate()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Any) -> Any:
        y = self.depth(self.expand(x))
        y = self.project(y * self.excite(y))
        return x + y if self.residual else y


def inverted_bottlenecks(act: Callable[[], Any], gate: Callable[[], Any]) -> Any:
    blocks = (Inverted(8, 8, 3, 1, act, gate), Inverted(8, 12, 5, 2, act, gate))
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), act(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10), act()
    )


class Shuffle(nn.Module):
    """Halves of the channels, one convolved, then shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.branch = nn.Sequential(
            nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4)
        )

    def forward(self, x: Any) -> Any:
        a, b = self.stem(x).chunk(2, 1)
        x = torch.cat([a, self.branch(b)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w).mean([2, 3])


class Encoder(nn.Module):
    """Encoder like BERT: embeddings, mask, pooled token, masked mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds, self.norm = (
            nn.Embedding(50, 16),
            nn.Embedding(32, 16),
            nn.Embedding(2, 16),
            nn.LayerNorm(16),
        )
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.inner, self.first, self.pool = (
            nn.LayerNorm(16),
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)),
            nn.Linear(16, 16),
        )

    def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
        b, n = ids.shape
        h = self.norm(self.words(ids) + self.places(torch.arange(n))[None] + self.kinds(kinds))
        away = (1.0 - mask[:, None, None, :].to(h.dtype)) * torch.finfo(h.dtype).min
        q, k, v = (part(h).view(b, n, 4, 4).permute(0, 2, 1, 3) for part in (self.q, self.k, self.v))
        mixed = ((q @ k.transpose(-1, -2) / 2.0 + away).softmax(-1) @ v).permute(0, 2, 1, 3).reshape(b, n, 16)
        h = self.inner(h + self.o(mixed))
        h = h + self.first(h)
        return h, torch.tanh(self.pool(h[:, 0])), (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class Decoder(nn.Module):
    """Like GPT: causal attention with keys and values of the tokens before."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(40, 16), nn.Parameter(torch.randn(32, 16)), nn.LayerNorm(16)
        self.qkv, self.o = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide = nn.Sequential(nn.Linear(16, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 16))

    def forward(self, ids: Any, keys: Any, values: Any) -> Any:
        b, n = ids.shape
        past = keys.shape[2]
        h = self.words(ids) + self.places[past : past + n]
        q, k, v = (part.view(b, n, 2, 8).transpose(1, 2) for part in self.qkv(self.norm(h)).split(16, -1))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        mask = torch.ones(n, past + n, dtype=torch.bool).tril(past)
        h = h + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, n, 16))
        return (h + self.wide(self.norm(h))) @ self.words.weight.T, k, v


class Rotary(nn.Module):
    """Decoder like Llama: RMS norms, rotary embeddings, grouped heads, gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.q, self.kv = nn.Embedding(40, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.scale, self.up, self.down = (
            nn.Parameter(torch.rand(16)),
            nn.Linear(16, 64, bias=False),
            nn.Linear(32, 16, bias=False),
        )

    def forward(self, ids: Any) -> Any:
        b, n = ids.shape
        h = self.words(ids)
        x = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        angle = torch.cat([torch.arange(n).float()[:, None] * torch.tensor([1.0, 0.1])] * 2, -1)

        def rotate(z: Any) -> Any:
            return z * angle.cos() + torch.cat([-z[..., 2:], z[..., :2]], -1) * angle.sin()

        q = self.q(x).view(b, n, 4, 4).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, 2, 4).permute(2, 0, 3, 1, 4)
        k, v = (z[:, :, None].expand(b, 2, 2, n, 4).reshape(b, 4, n, 4) for z in (rotate(k), v))
        h = h + F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True).transpose(1, 2).reshape(b, n, 16)
        gate, value = self.up(h).chunk(2, -1)
        return h + self.down(F.silu(gate) * value)


class Translator(nn.Module):
    """Sequence to sequence: bidirectional GRU encoder, GRU decoder, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reads = nn.Embedding(20, 8), nn.GRU(8, 12, bidirectional=True, batch_first=True)
        self.writes, self.start, self.looks, self.last = (
            nn.GRU(8, 12, batch_first=True),
            nn.Linear(24, 12),
            nn.Linear(24, 12),
            nn.Linear(24, 20),
        )

    def forward(self, x: Any, y: Any) -> Any:
        memory, end = self.reads(self.words(x))
        state = torch.tanh(self.start(torch.cat([end[0], end[1]], -1)))[None]
        h, _ = self.writes(self.words(y), state)
        keys = self.looks(memory)
        return self.last(torch.cat([h, torch.softmax(h @ keys.transpose(1, 2), -1) @ keys], -1)).log_softmax(-1)


class Recommender(nn.Module):
    """Like DLRM: bags of embeddings, dot products of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(30, 8, mode=mode) for mode in ("sum", "mean")])
        self.bottom, self.top = nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(8 + 3, 1)

    def forward(self, dense: Any, ids: Any) -> Any:
        x = self.bottom(dense)
        features = torch.stack([x, *(table(ids[:, n]) for n, table in enumerate(self.tables))], 1)
        below = torch.tril_indices(3, 3, -1)
        pairs = torch.bmm(features, features.transpose(1, 2))[:, below[0], below[1]]
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)))


class Wave(nn.Module):
    """Like WaveNet: gated dilated convolutions over time, sums of their skips."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)
        self.gates = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=2**n) for n in range(3)])
        self.mixes = nn.ModuleList([nn.Conv1d(8, 16, 1) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        h, skips = self.first(x), 0
        for n, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
            a, b = gate(F.pad(h, (2**n, 0))).chunk(2, 1)
            a, b = mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            h, skips = h + a, skips + b
        return self.last(F.relu(skips))


def video() -> Any:
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(6, 8, (1, 3, 3), stride=(1, 2, 2)), nn.ELU(),
        nn.AvgPool3d(2, ceil_mode=True), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


class Windows(nn.Module):
    """Like Swin: shifted-window attention with bias and mask, merged patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm, self.qkv, self.o = (
            nn.Conv2d(3, 16, 4, 4),
            nn.LayerNorm(16),
            nn.Linear(16, 48),
            nn.Linear(16, 16),
        )
        self.bias, self.merge = nn.Parameter(torch.randn(2, 16, 16)), nn.Linear(64, 32, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.patches(x).permute(0, 2, 3, 1)
        b, rows, columns, c = h.shape
        z = (
            torch.roll(self.norm(h), (-2, -2), (1, 2))
            .view(b, rows // 4, 4, columns // 4, 4, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(-1, 16, c)
        )
        q, k, v = self.qkv(z).reshape(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        kinds = torch.zeros(rows, columns)
        kinds[-4:-2], kinds[-2:] = 1, 2
        own = kinds.view(rows // 4, 4, columns // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
        shifted = own[:, None] - own[:, :, None]
        scores = ((q * 8**-0.5) @ k.transpose(-2, -1) + self.bias).view(b, -1, 2, 16, 16) + shifted.masked_fill(
            shifted != 0, -100.0
        )[:, None]
        z = self.o((scores.view(-1, 2, 16, 16).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c))
        z = z.view(b, rows // 4, columns // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, rows, columns, c)
        h = h + torch.roll(z, (2, 2), (1, 2))
        return self.merge(torch.cat([h[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)).mean((1, 2))


class Plain(nn.Module):
    """Like ConvNeXt: wide depthwise convolutions, norms over the last axis, scaled branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth, self.norm = (
            nn.Conv2d(3, 16, 4, 4),
            nn.Conv2d(16, 16, 7, padding=3, groups=16),
            nn.LayerNorm(16, eps=1e-6),
        )
        self.wide, self.scale, self.last = (
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
            nn.Parameter(torch.rand(16)),
            nn.Linear(16, 5),
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        return self.last(
            (x + (self.wide(self.norm(self.depth(x).permute(0, 2, 3, 1))) * self.scale).permute(0, 3, 1, 2)).mean(
                [-2, -1]
            )
        )


class Speech(nn.Module):
    """Like Whisper: convolutions over time that a decoder attends to."""

    def __init__(self) -> None:
        super().__init__()
        self.ears, self.words = nn.Conv1d(4, 16, 3, 2, 1), nn.Embedding(9, 16)
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Any, y: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return self.layer(self.words(y), F.gelu(self.ears(x)).transpose(1, 2), tgt_mask=mask)


@frozen
class Network:
    """Constructor of a network and its inputs, and its ONNX exporters.

    These are an operator set by tracing, or `torch.export`.
    """

    make: Callable[[], Any]
    inputs: Callable[[], tuple[Any, ...]]
    opset: int
    traced: bool = False


def _ids(most: int, *shape: int) -> Any:
    return torch.randint(0, most, shape)


def _masked_inputs() -> tuple[Any, ...]:
    return _ids(50, 2, 9), torch.tensor([[1] * 9, [1] * 5 + [0] * 4]), _ids(2, 2, 9)


ZOO: dict[str, Network] = {
    "segmentation": Network(UNet, lambda: (torch.randn(1, 3, 12, 16),), 11, traced=True),
    "generator": Network(Generator, lambda: (torch.randn(2, 16),), 18),
    "mobile": Network(
        lambda: inverted_bottlenecks(nn.Hardswish, nn.Hardsigmoid),
        lambda: (torch.randn(1, 3, 17, 17),),
        14,
        traced=True,
    ),
    "efficient": Network(lambda: inverted_bottlenecks(nn.SiLU, nn.Sigmoid), lambda: (torch.randn(1, 3, 16, 16),), 20),
    "shuffled": Network(Shuffle, lambda: (torch.randn(2, 3, 13, 13),), 12, traced=True),
    "encoder": Network(Encoder, _masked_inputs, 13, traced=True),
    "decoder": Network(Decoder, lambda: (_ids(40, 1, 3), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)), 18),
    "rotary": Network(Rotary, lambda: (_ids(40, 2, 7),), 20),
    "translator": Network(Translator, lambda: (_ids(20, 2, 6), _ids(20, 2, 4)), 15, traced=True),
    "recommender": Network(Recommender, lambda: (torch.randn(4, 5), _ids(30, 4, 2, 3)), 18),
    "sound": Network(Wave, lambda: (torch.randn(1, 1, 40),), 16, traced=True),
    "video": Network(video, lambda: (torch.randn(1, 2, 6, 11, 11),), 17, traced=True),
    "windows": Network(Windows, lambda: (torch.randn(1, 3, 32, 32),), 19),
    "plain": Network(Plain, lambda: (torch.randn(1, 3, 28, 28),), 20),
    "speech": Network(Speech, lambda: (torch.randn(1, 4, 12), _ids(9, 1, 5)), 18),
}
