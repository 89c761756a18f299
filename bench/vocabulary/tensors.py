"""Operations with windows, products, attention, movement, and elementwise functions."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cuts.bench.vocabulary.operation import distinct, integers, positive, table, unit, w, x

torch: Any = import_module("torch")
F: Any = torch.nn.functional


def _flow(image: Any, flow: Any) -> Any:
    return F.grid_sample(image, flow * 2 - 1, align_corners=False)


# fmt: off
CONVOLUTIONS = table(
    "convolution",
    ("conv 3x3, odd channels", (1, 5, 7, 6), (1, 37, 53, 83), (16, 37, 53, 83),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 3, 3)), lambda x, w: F.conv2d(x, w, padding=1)),
    ("conv 7x7 /2", (1, 3, 8, 16), (1, 3, 64, 224), (32, 3, 64, 224),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 7, 7)), lambda x, w: F.conv2d(x, w, stride=2, padding=3)),
    ("conv 1x1, bias, gelu", (1, 6, 8, 5), (1, 256, 1024, 28), (16, 256, 1024, 28),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 1, 1), w(k)), lambda x, w, b: F.gelu(F.conv2d(x, w, b))),
    ("conv 3x3, bias, residual, relu", (1, 6, 6, 7), (1, 128, 128, 28), (16, 128, 128, 28),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 3, 3), w(k), x(n, k, s, s)),
     lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1) + r)),
    ("conv 3x3, dilated by 2", (1, 5, 6, 9), (1, 64, 64, 64), (16, 64, 64, 64),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 3, 3)), lambda x, w: F.conv2d(x, w, padding=2, dilation=2)),
    ("conv 3x3, 32 groups", (1, 64, 64, 5), (1, 256, 256, 28), (16, 256, 256, 28),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c // 32, 3, 3)), lambda x, w: F.conv2d(x, w, padding=1, groups=32)),
    ("conv 1x7", (1, 5, 6, 9), (1, 128, 192, 17), (32, 128, 192, 17),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 1, 7)), lambda x, w: F.conv2d(x, w, padding=(0, 3))),
    ("conv 3x3, mirrored border", (1, 4, 5, 8), (1, 64, 64, 56), (16, 64, 64, 56),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 3, 3)),
     lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w)),
    ("patches 16x16 /16", (1, 3, 8, 32), (1, 3, 768, 224), (32, 3, 768, 224),
     lambda n, c, k, s: (x(n, c, s, s), w(k, c, 16, 16), w(k)), lambda x, w, b: F.conv2d(x, w, b, stride=16)),
    ("depthwise 3x3", (1, 6, 9), (1, 384, 56), (16, 384, 56),
     lambda n, c, s: (x(n, c, s, s), w(c, 1, 3, 3)), lambda x, w: F.conv2d(x, w, padding=1, groups=w.shape[0])),
    ("depthwise 5x5 /2", (1, 6, 9), (1, 240, 56), (16, 240, 56),
     lambda n, c, s: (x(n, c, s, s), w(c, 1, 5, 5)),
     lambda x, w: F.conv2d(x, w, stride=2, padding=2, groups=w.shape[0])),
    ("depthwise 7x7", (1, 6, 9), (1, 96, 56), (16, 96, 56),
     lambda n, c, s: (x(n, c, s, s), w(c, 1, 7, 7)), lambda x, w: F.conv2d(x, w, padding=3, groups=w.shape[0])),
    ("conv 1-D, 9 taps", (1, 5, 6, 17), (1, 128, 256, 4000), (8, 128, 256, 4000),
     lambda n, c, k, s: (x(n, c, s), w(k, c, 9)), lambda x, w: F.conv1d(x, w, padding=4)),
    ("conv 1-D, causal, dilated by 4", (1, 5, 6, 17), (1, 128, 128, 8000), (8, 128, 128, 8000),
     lambda n, c, k, s: (x(n, c, s), w(k, c, 2)), lambda x, w: F.conv1d(F.pad(x, (4, 0)), w, dilation=4)),
    ("depthwise 1-D, 31 taps", (1, 6, 40), (1, 512, 2000), (16, 512, 2000),
     lambda n, c, s: (x(n, c, s), w(c, 1, 31)), lambda x, w: F.conv1d(x, w, padding=15, groups=w.shape[0])),
    ("conv 3-D 3x3x3", (1, 3, 4, 5), (1, 32, 64, 28), (4, 32, 64, 28),
     lambda n, c, k, s: (x(n, c, s, s, s), w(k, c, 3, 3, 3)), lambda x, w: F.conv3d(x, w, padding=1)),
    ("conv 3-D 1x3x3 /2", (1, 3, 4, 6), (1, 64, 64, 32), (4, 64, 64, 32),
     lambda n, c, k, s: (x(n, c, s, s, s), w(k, c, 1, 3, 3)),
     lambda x, w: F.conv3d(x, w, stride=(1, 2, 2), padding=(0, 1, 1))),
    ("transposed conv 4x4 /2", (1, 8, 5, 5), (1, 256, 128, 32), (16, 256, 128, 32),
     lambda n, c, k, s: (x(n, c, s, s), w(c, k, 4, 4)), lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1)),
    ("transposed conv 4x4 /2, bias, relu", (1, 8, 5, 5), (1, 128, 64, 64), (16, 128, 64, 64),
     lambda n, c, k, s: (x(n, c, s, s), w(c, k, 4, 4), w(k)),
     lambda x, w, b: F.relu(F.conv_transpose2d(x, w, b, stride=2, padding=1))),
    ("transposed conv 2x2 /2", (1, 8, 5, 5), (1, 256, 128, 32), (16, 256, 128, 32),
     lambda n, c, k, s: (x(n, c, s, s), w(c, k, 2, 2), w(k)), lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2)),
    ("transposed conv 3x3", (1, 8, 5, 5), (1, 64, 64, 56), (16, 64, 64, 56),
     lambda n, c, k, s: (x(n, c, s, s), w(c, k, 3, 3)), lambda x, w: F.conv_transpose2d(x, w, padding=1)),
    ("transposed conv 1-D, 8 taps /4", (1, 8, 5, 9), (1, 256, 128, 1000), (16, 256, 128, 1000),
     lambda n, c, k, s: (x(n, c, s), w(c, k, 8)), lambda x, w: F.conv_transpose1d(x, w, stride=4, padding=2)),
    ("transposed conv 3-D 2x2x2 /2", (1, 8, 5, 4), (1, 64, 32, 16), (8, 64, 32, 16),
     lambda n, c, k, s: (x(n, c, s, s, s), w(c, k, 2, 2, 2)), lambda x, w: F.conv_transpose3d(x, w, stride=2)),
)

RESIZING = table(
    "resizing",
    ("nearest by 2", (1, 3, 5), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.interpolate(x, scale_factor=2)),
    ("nearest-exact by 1.5", (1, 3, 6), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact")),
    ("bilinear by 2", (1, 3, 5), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),),
     lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)),
    ("bilinear by 2, aligned corners", (1, 3, 5), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)),
    ("bilinear by a half", (1, 3, 6), (1, 64, 256), (16, 64, 256),
     lambda n, c, s: (x(n, c, s, s),),
     lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)),
    ("bilinear to 7/4", (1, 3, 8), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),),
     lambda x: F.interpolate(x, size=(x.shape[2] * 7 // 4,) * 2, mode="bilinear", align_corners=False)),
    ("bilinear by a half, antialiased", (1, 3, 8), (1, 3, 512), (16, 3, 512),
     lambda n, c, s: (x(n, c, s, s),),
     lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False, antialias=True)),
    ("bicubic by 2", (1, 3, 5), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),),
     lambda x: F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)),
    ("linear by 2", (1, 3, 9), (1, 256, 8000), (16, 256, 8000),
     lambda n, c, s: (x(n, c, s),), lambda x: F.interpolate(x, scale_factor=2, mode="linear", align_corners=False)),
    ("trilinear by 2", (1, 2, 4), (1, 32, 32), (8, 32, 32),
     lambda n, c, s: (x(n, c, s, s, s),),
     lambda x: F.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)),
    ("pixel shuffle by 2", (1, 8, 5), (1, 256, 64), (16, 256, 64),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.pixel_shuffle(x, 2)),
    ("pixel unshuffle by 2", (1, 3, 6), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.pixel_unshuffle(x, 2)),
    ("samples of a grid", (1, 3, 5), (1, 64, 128), (8, 64, 128),
     lambda n, c, s: (x(n, c, s, s), unit(n, s, s, 2)), _flow),
)

POOLING = table(
    "pooling",
    ("max pool 3x3 /2", (1, 3, 9), (1, 64, 112), (32, 64, 112),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.max_pool2d(x, 3, 2, 1)),
    ("max pool 2x2 /2", (1, 3, 8), (1, 64, 224), (8, 64, 224),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.max_pool2d(x, 2)),
    ("max pool 5x5, its positions too", (1, 2, 8), (1, 64, 64), (16, 64, 64),
     lambda n, c, s: (distinct(n, c, s, s),), lambda x: F.max_pool2d(x, 5, 1, 2, return_indices=True)),
    ("max pool 3x3, dilated by 2", (1, 3, 9), (1, 64, 112), (16, 64, 112),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2)),
    ("max pool 1-D, 3 taps /2", (1, 3, 16), (8, 256, 2000), (64, 256, 2000),
     lambda n, c, s: (x(n, c, s),), lambda x: F.max_pool1d(x, 3, 2)),
    ("max pool 3-D 2x2x2 /2", (1, 2, 6), (1, 32, 48), (8, 32, 48),
     lambda n, c, s: (x(n, c, s, s, s),), lambda x: F.max_pool3d(x, 2)),
    ("average pool 2x2 /2", (1, 3, 8), (1, 128, 112), (16, 128, 112),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.avg_pool2d(x, 2)),
    ("average pool 3x3", (1, 3, 7), (1, 192, 56), (16, 192, 56),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.avg_pool2d(x, 3, 1, 1)),
    ("average pool 3-D 3x3x3 /2", (1, 2, 7), (1, 32, 48), (8, 32, 48),
     lambda n, c, s: (x(n, c, s, s, s),), lambda x: F.avg_pool3d(x, 3, 2)),
    ("adaptive average pool to 6x6", (1, 3, 12), (8, 256, 31), (64, 256, 31),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.adaptive_avg_pool2d(x, 6)),
    ("adaptive max pool to 1x1", (1, 3, 7), (8, 512, 28), (64, 512, 28),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.adaptive_max_pool2d(x, 1)),
    ("global average pool, flattened", (2, 3, 7), (8, 2048, 7), (64, 2048, 7),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1)),
    ("pool by a norm, 2x2", (1, 3, 6), (1, 64, 112), (16, 64, 112),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.lp_pool2d(x, 2, 2)),
)
# fmt: on

WINDOWS = (*CONVOLUTIONS, *RESIZING, *POOLING)


def _grouped_attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))


def _gated_product(rows: Any, gate: Any, up: Any) -> Any:
    return F.silu(rows @ gate) * (rows @ up)


# fmt: off
PRODUCTS = table(
    "product",
    ("product of odd matrices", (15, 9, 7), (1500, 900, 700), (2999, 3001, 1777),
     lambda m, n, k: (x(m, k), x(k, n)), lambda a, b: a @ b),
    ("product, left transposed", (16, 9, 8), (1024, 1024, 1024), (4096, 2048, 2048),
     lambda m, n, k: (x(k, m), x(k, n)), lambda a, b: a.T @ b),
    ("product, right transposed", (16, 9, 8), (1024, 1024, 1024), (4096, 2048, 2048),
     lambda m, n, k: (x(m, k), x(n, k)), lambda a, b: a @ b.T),
    ("many small products", (4, 5, 6, 7), (4096, 33, 17, 65), (32768, 33, 17, 65),
     lambda b, m, n, k: (x(b, m, k), x(b, k, n)), lambda a, b: torch.bmm(a, b)),
    ("tall product", (64, 3, 5), (100000, 30, 50), (1000000, 30, 50),
     lambda m, n, k: (x(m, k), w(k, n)), lambda a, b: a @ b),
    ("long inner product", (5, 6, 99), (64, 64, 65536), (200, 300, 100000),
     lambda m, n, k: (x(m, k), x(n, k)), lambda a, b: a @ b.T),
    ("matrix by a vector", (9, 33), (4097, 4099), (16384, 8192), lambda m, k: (w(m, k), x(k)), lambda a, v: a @ v),
    ("dot", (100,), (1 << 20,), (1 << 24,), lambda n: (x(n), x(n)), lambda a, b: a.dot(b)),
    ("linear, bias, gelu", (5, 7, 9), (512, 3072, 768), (8192, 3072, 768),
     lambda m, n, k: (x(m, k), w(n, k), w(n)), lambda x, w, b: F.gelu(F.linear(x, w, b))),
    ("gated linear", (5, 7, 9), (512, 2048, 768), (4096, 2048, 768),
     lambda m, n, k: (x(m, k), w(k, n), w(k, n)), _gated_product),
    ("product and a scaled sum", (5, 7, 9), (777, 555, 333), (3000, 2000, 1000),
     lambda m, n, k: (x(m, n), x(m, k), x(k, n)), lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0)),
    ("distances of all pairs", (5, 6, 7), (1000, 1000, 64), (4000, 4000, 64),
     lambda m, n, k: (x(m, k), x(n, k)), lambda a, b: torch.cdist(a, b)),
    ("outer product", (9, 7), (2000, 3000), (8000, 6000), lambda m, n: (x(m), x(n)), lambda a, b: torch.outer(a, b)),
)

EINSUMS = table(
    "einsum",
    ("einsum bij,bjk,k->bi", (2, 5, 6, 7), (64, 64, 64, 64), (64, 256, 256, 256),
     lambda b, i, j, k: (x(b, i, j), x(b, j, k), x(k)), lambda a, c, d: torch.einsum("bij,bjk,k->bi", a, c, d)),
    ("einsum bn,anm,bm->ba", (3, 4, 5, 6), (512, 64, 64, 64), (2048, 128, 128, 128),
     lambda b, a, n, m: (x(b, n), w(a, n, m), x(b, m)), lambda x, w, y: torch.einsum("bn,anm,bm->ba", x, w, y)),
    ("einsum bqhd,bkhd->bhqk", (2, 5, 3, 4), (4, 256, 12, 64), (16, 512, 12, 64),
     lambda b, q, h, d: (x(b, q, h, d), x(b, q, h, d)), lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k)),
    ("einsum bhqk,bkhd->bqhd", (2, 5, 3, 4), (4, 256, 12, 64), (16, 512, 12, 64),
     lambda b, q, h, d: (x(b, h, q, q), x(b, q, h, d)), lambda a, v: torch.einsum("bhqk,bkhd->bqhd", a, v)),
    ("einsum bchw,bkhw->bck", (2, 5, 6, 4), (8, 64, 64, 56), (64, 64, 64, 56),
     lambda b, c, k, s: (x(b, c, s, s), x(b, k, s, s)), lambda x, y: torch.einsum("bchw,bkhw->bck", x, y)),
    ("einsum bii->b", (3, 5), (1024, 64), (1024, 512), lambda b, i: (x(b, i, i),), lambda a: torch.einsum("bii->b", a)),
    ("einsum nchw,c,->nchw", (2, 5, 6), (8, 64, 56), (64, 64, 56),
     lambda n, c, s: (x(n, c, s, s), w(c), w()), lambda x, s, t: torch.einsum("nchw,c,->nchw", x, s, t)),
    ("einsum ab,bc,cd->ad", (5, 6, 7, 8), (1000, 100, 100, 1000), (4000, 300, 200, 4000),
     lambda a, b, c, d: (x(a, b), x(b, c), x(c, d)), lambda a, b, c: torch.einsum("ab,bc,cd->ad", a, b, c)),
)

ATTENTION = table(
    "attention",
    ("attention of odd lengths", (1, 2, 7, 4), (1, 12, 777, 64), (8, 12, 777, 64),
     lambda b, h, s, d: (x(b, h, s, d), x(b, h, s, d), x(b, h, s, d)), F.scaled_dot_product_attention),
    ("causal attention", (1, 2, 8, 4), (1, 12, 512, 64), (4, 12, 1024, 64),
     lambda b, h, s, d: (x(b, h, s, d), x(b, h, s, d), x(b, h, s, d)),
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    ("attention with a bias", (1, 2, 7, 4), (1, 12, 197, 64), (16, 12, 197, 64),
     lambda b, h, s, d: (x(b, h, s, d), x(b, h, s, d), x(b, h, s, d), x(h, s, s)),
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m)),
    ("attention of one query", (1, 2, 9, 4), (1, 32, 4096, 128), (16, 32, 1024, 128),
     lambda b, h, s, d: (x(b, h, 1, d), x(b, h, s, d), x(b, h, s, d)), F.scaled_dot_product_attention),
    ("attention in groups", (1, 4, 7, 4), (1, 32, 512, 64), (4, 32, 512, 64),
     lambda b, h, s, d: (x(b, h, s, d), x(b, h // 4, s, d), x(b, h // 4, s, d)), _grouped_attention),
    ("attention to another length", (1, 2, 7, 4), (2, 8, 1024, 40), (4, 8, 4096, 40),
     lambda b, h, s, d: (x(b, h, s, d), x(b, h, 77 % s, d), x(b, h, 77 % s, d)), F.scaled_dot_product_attention),
)
# fmt: on

MATRICES = (*PRODUCTS, *EINSUMS, *ATTENTION)


def _rotary(q: Any, angles: Any) -> Any:
    first, second = q.chunk(2, -1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def _windows(image: Any) -> Any:
    n, h, w_, c = image.shape
    parted = image.roll((-3, -3), (1, 2)).reshape(n, h // 7, 7, w_ // 7, 7, c)
    return parted.permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


def _overlap(a: Any, b: Any) -> Any:
    """Return the share that boxes have in common, all pairs."""
    top, bottom = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:] + 1, b[:, 2:] + 1)
    common = (bottom - top).clamp(min=0).prod(-1)
    areas = [(box[:, 2:] + 1 - box[:, :2]).prod(-1) for box in (a, b)]
    return common / (areas[0][:, None] + areas[1] - common)


def _gelu_tanh(v: Any) -> Any:
    return 0.5 * v * (1 + torch.tanh(0.7978845608 * (v + 0.044715 * v * v * v)))


# fmt: off
GATHERS = table(
    "gather or scatter",
    ("embedding", (9, 20, 5), (8192, 50257, 768), (65536, 50257, 768),
     lambda n, v, d: (integers(v, n), w(v, d)), lambda i, t: F.embedding(i, t)),
    ("embedding bag, sum", (6, 20, 5, 4), (2048, 100000, 64, 32), (16384, 100000, 64, 32),
     lambda n, v, d, k: (integers(v, n, k), w(v, d)), lambda i, t: F.embedding_bag(i, t, mode="sum")),
    ("gather along rows", (5, 20, 7), (1024, 4096, 1024), (8192, 4096, 2048),
     lambda m, n, k: (x(m, n), integers(n, m, k)), lambda x, i: x.gather(1, i)),
    ("columns by index", (5, 20, 7), (1024, 4096, 1024), (8192, 4096, 2048),
     lambda m, n, k: (x(m, n), integers(n, k)), lambda x, i: x.index_select(1, i)),
    ("elements by two indices", (20, 9, 30), (1024, 4096, 1 << 20), (4096, 4096, 1 << 22),
     lambda m, n, k: (x(m, n), integers(m, k), integers(n, k)), lambda x, i, j: x[i, j]),
    ("one hot", (9, 7), (8192, 1000), (32768, 1000),
     lambda n, k: (integers(k, n), w(k)),
     lambda i, c: (i[:, None] == torch.arange(c.shape[0], device=i.device)).float()),
    ("sums of rows by index", (30, 7, 5), (65536, 1024, 64), (1 << 19, 4096, 64),
     lambda n, k, d: (x(n, d), integers(k, n), w(k, d)), lambda x, i, z: z.index_add(0, i, x)),
    ("gradient of an embedding", (9, 20, 5), (8192, 50257, 768), (16384, 32000, 1024),
     lambda n, v, d: (integers(v, n), x(n, d), w(v)),
     lambda i, g, v: g.new_zeros(v.shape[0], g.shape[1]).index_add(0, i, g)),
    ("sparse matrix by a dense one", (30, 7, 5), (200000, 20000, 64), (1 << 20, 65536, 64),
     lambda n, k, d: (integers(k, n), integers(k, n), x(n), w(k, d)),
     lambda r, c, v, x: torch.zeros_like(x).index_add(0, r, v[:, None] * x[c])),
    ("sums of elements by index", (5, 20, 7), (1024, 4096, 512), (8192, 4096, 512),
     lambda m, n, k: (x(m, n), integers(k, m, n), w(m, k)), lambda x, i, z: z.scatter_add(1, i, x)),
    ("maxima by index", (5, 20, 7), (1024, 4096, 512), (8192, 4096, 512),
     lambda m, n, k: (x(m, n), integers(k, m, n), w(m, k)), lambda x, i, z: z.scatter_reduce(1, i, x, "amax")),
    ("rows where a mask holds", (9, 33), (4096, 1000), (16384, 4000),
     lambda m, n: (x(m, n), unit(m)), lambda x, m: x.masked_fill((m > 0.5)[:, None], -1.0)),
)

MOVEMENT = table(
    "movement",
    ("transposed matrix", (9, 7), (2000, 3000), (8000, 6000), lambda m, n: (x(m, n),), lambda x: x.T.contiguous()),
    ("channels innermost", (2, 5, 6), (8, 96, 56), (64, 96, 56),
     lambda n, c, s: (x(n, c, s, s),), lambda x: x.permute(0, 2, 3, 1).contiguous()),
    ("heads apart", (2, 6, 3, 4), (4, 512, 12, 64), (32, 512, 12, 64),
     lambda b, s, h, d: (x(b, s, 3, h, d),),
     lambda x: tuple(t.contiguous() for t in x.permute(2, 0, 3, 1, 4))),
    ("channels joined", (2, 5, 6), (8, 64, 56), (64, 64, 56),
     lambda n, c, s: (x(n, c, s, s), x(n, 2 * c, s, s), x(n, c, s, s)), lambda *x: torch.cat(x, 1)),
    ("channels shuffled", (2, 8, 6), (8, 240, 28), (64, 240, 28),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.channel_shuffle(x, 4)),
    ("rolled windows", (1, 14, 5), (1, 56, 96), (32, 56, 96), lambda n, s, c: (x(n, s, s, c),), _windows),
    ("image flipped", (2, 3, 7), (8, 3, 512), (64, 3, 512), lambda n, c, s: (x(n, c, s, s),), lambda x: x.flip(3)),
    ("image bordered by its mirror", (1, 3, 8), (8, 16, 255), (64, 16, 255),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect")),
    ("image bordered by its edge", (1, 3, 8), (8, 16, 255), (64, 16, 255),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.pad(x, (1, 2, 3, 4), mode="replicate")),
    ("windows as columns", (1, 3, 7), (1, 64, 56), (16, 64, 56),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.unfold(x, 3, padding=1)),
    ("columns as windows", (1, 3, 6), (1, 64, 56), (16, 64, 56),
     lambda n, c, s: (x(n, 9 * c, s * s),),
     lambda x: F.fold(x, (round(x.shape[2] ** 0.5),) * 2, 3, padding=1)),
    ("lower triangle", (9, 9), (2048, 2048), (8192, 8192), lambda m, n: (x(m, n),), lambda x: x.tril()),
    ("rows repeated", (5, 7), (1024, 1024), (4096, 4096),
     lambda m, n: (x(m, n),), lambda x: x.repeat_interleave(2, 0)),
    ("every other column", (5, 8), (4096, 2048), (8192, 8192),
     lambda m, n: (x(m, n),), lambda x: x[:, ::2].contiguous()),
    ("tensors interleaved", (5, 8), (1024, 2048), (4096, 8192),
     lambda m, n: (x(m, n), x(m, n)), lambda a, b: torch.stack((a, b), -1).flatten(1)),
)

ELEMENTS = table(
    "elements",
    ("gelu by tanh, written out", (5, 33), (1024, 4096), (8192, 4096), lambda m, n: (x(m, n),), _gelu_tanh),
    ("gated silu", (5, 33), (1024, 4096), (8192, 4096), lambda m, n: (x(m, n), x(m, n)), lambda x, y: F.silu(x) * y),
    ("gated linear unit of halves", (5, 32), (1024, 4096), (8192, 4096), lambda m, n: (x(m, n),), lambda x: F.glu(x)),
    ("mish of a scaled sum", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (x(m, n), w(n), w(n)), lambda x, s, b: F.mish(x * s + b)),
    ("hard swish, residual", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (x(m, n), x(m, n)), lambda x, y: F.hardswish(x) + y),
    ("slope per channel", (2, 5, 6), (8, 64, 56), (64, 64, 56),
     lambda n, c, s: (x(n, c, s, s), w(c)), lambda x, a: F.prelu(x, a)),
    ("leaky chain of twelve", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (x(m, n), x(m, n)),
     lambda x, y: F.leaky_relu((x * 2 + y).clamp(-3, 3).abs().sqrt() - y.sigmoid() * x.tanh(), 0.1).exp().log1p()),
    ("powers, logs and roots", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (positive(m, n), positive(m, n)), lambda x, y: x.pow(y) * x.log() + y.rsqrt()),
    ("sines of outer sums", (9, 7), (2000, 2000), (8000, 6000),
     lambda m, n: (x(m), x(n)), lambda a, b: torch.sin(a[:, None] + b)),
    ("rotary positions", (1, 2, 6, 4), (1, 12, 512, 64), (16, 12, 512, 64),
     lambda b, h, s, d: (x(b, h, s, 2 * d), x(s, d)), _rotary),
    ("overlap of boxes", (5, 6), (1000, 1000), (4000, 4000), lambda m, n: (unit(m, 4), unit(n, 4)), _overlap),
    ("where one is greater", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (x(m, n), x(m, n), x(n)), lambda x, y, t: torch.where(x > y, x - t, y * t)),
)
# fmt: on

MOVES = (*GATHERS, *MOVEMENT, *ELEMENTS)
