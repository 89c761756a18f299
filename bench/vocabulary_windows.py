"""Operations whose elements read a window of an image: convolutions of every kind, resizing, pooling."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cuts.bench.vocabulary import distinct, table, unit, w, x

F: Any = import_module("torch.nn.functional")


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

OPERATIONS = (*CONVOLUTIONS, *RESIZING, *POOLING)
