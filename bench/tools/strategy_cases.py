"""Operations for the comparison of strategies.

They are Table 1 of Woodpecker-DL, the convolutions of ResNet-18, gradients, products, attention, depthwise convolutions
and rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve
from cuts.bench.operators.cases import gradient_case
from cuts.bench.operators.shapes import Case, convolution_case, read_convolution, single
from cuts.ir.graph import Attribute

#: Table 1: name, (channels, height, width), filters, stride; kernels of 3x3, padded so that the image keeps its size.
TABLE_1 = (
    ("conv1a", (3, 112, 96), 64, 1), ("conv1b", (64, 110, 94), 96, 2), ("conv2", (96, 54, 46), 128, 2),
    ("conv3", (128, 26, 22), 256, 2), ("conv4", (256, 12, 10), 512, 1),
)  # fmt: skip
RESNET_18 = (
    "3x224 64x7x7 /2 +3", "64x56 64x3x3 +1", "64x56 128x3x3 /2 +1", "64x56 128x1x1 /2", "128x28 128x3x3 +1",
    "128x28 256x3x3 /2 +1", "128x28 256x1x1 /2", "256x14 256x3x3 +1", "256x14 512x3x3 /2 +1", "256x14 512x1x1 /2",
    "512x7 512x3x3 +1",
)  # fmt: skip
DEPTHWISE = ("144x56 144x3x3 +1 dw", "384x14 384x3x3 +1 dw")


def strategy_cases() -> list[Case]:
    """Return the thirty operations, with alternating kinds.

    Any beginning of the list has most kinds.
    """
    kinds = [list(each) for each in (_table_1(), _resnet_18(), _products(), _gradients(), _rows(), _depthwise(),
                                     _attention())]  # fmt: skip
    return [kind[turn] for turn in range(max(map(len, kinds))) for kind in kinds if turn < len(kind)]


def _table_1() -> Iterator[Case]:
    for name, (channels, high, wide), filters, stride in reversed(TABLE_1):
        shapes = ((1, channels, high, wide), (filters, channels, 3, 3))
        attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": (1, 1, 1, 1), "groups": 1}
        yield single("conv", f"table 1 {name}", 1, "conv", shapes, attributes, 1)


def _resnet_18() -> Iterator[Case]:
    for text in (*RESNET_18[4:], *RESNET_18[:4]):
        yield convolution_case(read_convolution(text)[0], 1)


def _products() -> Iterator[Case]:
    yield single("gemm", "square 512", 1, "matmul", ((512, 512), (512, 512)), {}, 1)
    yield evolve(single("gemm", "bert hidden s384", 1, "matmul", ((384, 768), (768, 768)), {}, 1), precision="fp16")
    yield single("gemm", "odd 333x555x127", 1, "matmul", ((333, 127), (127, 555)), {}, 1)
    yield single("gemv", "dense 2048-1000", 1, "gemm", ((1, 2048), (1000, 2048)), {"trans_b": True}, 1)


def _gradients() -> Iterator[Case]:
    for text, position, kind in (("64x28 64x3x3 +1", 0, "dgrad"), ("64x28 64x3x3 +1", 1, "wgrad"),
                                 ("256x14 512x1x1", 0, "dgrad")):  # fmt: skip
        yield gradient_case(convolution_case(read_convolution(text)[0], 4), position, kind)


def _rows() -> Iterator[Case]:
    yield single("memory", "softmax 512x1024", 1, "softmax", ((512, 1024),), {})
    yield single("memory", "layer norm 384x768", 1, "layer_norm", ((384, 768), (768,), (768,)), {}, 2)
    yield single("memory", "sum of columns 1024x1000", 1, "reduce_sum", ((1024, 1000),), {"axes": (0,)})


def _depthwise() -> Iterator[Case]:
    for text in DEPTHWISE:
        yield convolution_case(read_convolution(text)[0], 1)


def _attention() -> Iterator[Case]:
    yield single("gemm", "scores 12x128x128x64", 1, "matmul", ((12, 128, 64), (12, 64, 128)), {})
    yield single("gemm", "context 12x128x64x128", 1, "matmul", ((12, 128, 128), (12, 128, 64)), {})
