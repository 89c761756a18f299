"""Shapes of the suite of single operations.

They are convolutions of four networks, matrix products, and memory-bound operations.

The convolutions are those of inference of one image (224 pixels a side, 299 for Inception-v3). The networks have 53,
94, 120 and 52 convolutions of 4.09, 5.71, 2.83 and 0.299 billion multiply-adds, which are the published figures.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from attrs import evolve, field, frozen
from cuts.backends.device import Array
from cuts.ir.graph import Attribute, Graph, Node
from cuts.ir.machine import PRECISIONS
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry

#: Random numbers repeat after this many: a prime, so that no stride meets the same ones again.
PERIOD = 4_194_301

BATCHES = (1, 16, 64)

#: Lists of cases, and the distinct convolutions of networks as text.
LISTS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
CONVOLUTIONS: Mapping[str, str] = LISTS["convolutions"]
_CONVOLUTION = re.compile(
    r"(?P<c>\d+)x(?P<size>\d+) (?P<k>\d+)x(?P<r>\d+)x(?P<s>\d+)(?: /(?P<stride>\d+))?"
    r"(?: \+(?P<rows>\d+)(?:,(?P<columns>\d+))?)?(?P<dw> dw)?(?: \*(?P<uses>\d+))?"
)


@lru_cache(maxsize=8)
def normal_numbers(seed: int) -> Array:
    """Return a period of normal numbers in f32."""
    return np.random.default_rng(seed).standard_normal(PERIOD, np.float32)


@lru_cache(maxsize=8)
def unit_numbers(seed: int) -> Array:
    """Return a period of numbers from 0 up to 1 in f32."""
    return np.random.default_rng(seed).random(PERIOD, np.float32)


@frozen
class ConvolutionShape:
    """Convolution of one square image.

    It has one stride for both directions, and padding of rows and of columns on both sides.
    """

    channels: int
    size: int
    filters: int
    kernel: tuple[int, int]
    stride: int = 1
    pads: tuple[int, int] = (0, 0)
    depthwise: bool = False

    @property
    def name(self) -> str:
        """Text form without common parts."""
        text = f"{self.channels}x{self.size} {self.filters}x{self.kernel[0]}x{self.kernel[1]}"
        pads = dict.fromkeys(self.pads) if any(self.pads) else ()
        return (
            text + (f" /{self.stride}" if self.stride > 1 else "") + (f" +{','.join(map(str, pads))}" if pads else "")
        )

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the result."""
        high, wide = ((self.size + 2 * p - k) // self.stride + 1 for p, k in zip(self.pads, self.kernel, strict=True))
        return high, wide

    @property
    def multiplications(self) -> int:
        """Multiply-adds of one image."""
        return self.filters * (1 if self.depthwise else self.channels) * prod(self.kernel) * prod(self.output)


def read_convolution(text: str) -> tuple[ConvolutionShape, int]:
    """Return a convolution from its text, and how often it occurs."""
    found = _CONVOLUTION.fullmatch(text)
    assert found is not None, f"no convolution: {text!r}"
    numbers = {key: int(value) for key, value in found.groupdict().items() if value and key != "dw"}
    rows = numbers.get("rows", 0)
    kernel, pads = (numbers["r"], numbers["s"]), (rows, numbers.get("columns", rows))
    shape = ConvolutionShape(
        numbers["c"], numbers["size"], numbers["k"], kernel, numbers.get("stride", 1), pads, found["dw"] is not None
    )
    return shape, numbers.get("uses", 1)


def convolutions(network: str) -> dict[ConvolutionShape, int]:
    """Return a network's distinct convolutions with counts, by first use."""
    return dict(read_convolution(text.strip()) for text in " ".join(CONVOLUTIONS[network].split()).split(", "))


#: The layout of cases whose images have their channels innermost, and the dims of either order in the other.
CHANNELS_LAST, TO_LAST, TO_FIRST = "channels last", (0, 2, 3, 1), (0, 3, 1, 2)
#: An operation of a case: its name, its operands, its result, its attributes.
Step: TypeAlias = tuple[str, tuple[str, ...], str, Mapping[str, Attribute]]


@frozen
class Case:
    """Row of the benchmark: a small graph and its tensor shapes.

    The last result of `nodes` is the output. `weights` are the inputs that are known when the
    case is compiled; `uses` names the networks that contain it, and how often; tensors are stored as `precision` says.
    With `channels_last`, images are given and taken with their channels innermost, as they lie between the kernels of a
    network; shapes and operations are still those of channels first.
    """

    kind: str
    name: str
    batch: int
    inputs: Mapping[str, tuple[int, ...]]
    nodes: tuple[Step, ...]
    uses: Mapping[str, int] = field(factory=dict)
    weights: tuple[str, ...] = ()
    precision: str = "fp32"
    channels_last: bool = False
    deterministic: bool = field(default=True, kw_only=True)

    @property
    def key(self) -> str:
        """Identity of a row."""
        known = f"{self.kind}/{self.name}/b{self.batch}{'' if self.precision == 'fp32' else f'/{self.precision}'}"
        return f"{known}/{CHANNELS_LAST}" if self.channels_last else known

    @property
    def dtype(self) -> DType:
        """The element type of all tensors."""
        return PRECISIONS[self.precision].stored

    @property
    def outputs(self) -> tuple[str, ...]:
        """The result, which is that of the last operation."""
        return (self.nodes[-1][2],)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The operations of the graph, in the dim order of the shapes."""
        return self.nodes

    @property
    def sources(self) -> tuple[Source, ...]:
        """Declarations that it needs besides the vocabulary."""
        return ()

    def type_of(self, tensor: str) -> TensorType:
        """Return an input's type, in the dim order of its shape."""
        return TensorType(self.dtype, self.inputs[tensor])

    def values(self, tensor: str) -> Array:
        """Return reproducible random numbers for an input."""
        weight = tensor in self.weights
        array = np.resize(normal_numbers(int(weight)), self.inputs[tensor])
        positive = weight and self.nodes[0][0] == "batch_norm"  # one of its operands is a variance
        return (np.abs(array) + 0.5 if positive else array).astype(self.dtype.numpy)

    def is_channels_last(self, tensor: str) -> bool:
        """Return whether an input or output has its channels innermost."""
        image = len(self.inputs.get(tensor, ())) == 4 or tensor == self.nodes[-1][2]
        return self.channels_last and image and tensor not in self.weights

    def graph(self, registry: Registry) -> Graph:
        """Return the case as a graph of tensors of its element type."""
        types: dict[str, TensorType] = {}
        nodes: list[Node] = []

        def add(op: str, operands: tuple[str, ...], result: str, attributes: Mapping[str, Attribute]) -> None:
            (types[result],) = registry[op].instantiate([types[t] for t in operands], attributes).output_types
            nodes.append(Node(f"n{len(nodes)}_{op}", op, operands, (result,), dict(attributes)))

        for name, shape in self.inputs.items():
            lies = tuple(shape[d] for d in TO_LAST) if self.is_channels_last(name) else shape
            types[name] = TensorType(self.dtype, lies)
            if self.is_channels_last(name):
                add("transpose", (name,), f"{name}.first", {"perm": TO_FIRST})
        for op, operands, result, attributes in self.steps:
            names = tuple(f"{t}.first" if t in self.inputs and self.is_channels_last(t) else t for t in operands)
            add(op, names, f"{result}.first" if self.is_channels_last(result) else result, attributes)
        (*_, result) = (step[2] for step in self.nodes)
        if self.is_channels_last(result):
            add("transpose", (f"{result}.first",), result, {"perm": TO_LAST})
        return Graph(self.key, tuple(self.inputs), (result,), types, tuple(nodes))


def single(
    kind: str,
    name: str,
    batch: int,
    op: str,
    shapes: tuple[tuple[int, ...], ...],
    attributes: Mapping[str, Attribute],
    weights: int = 0,
) -> Case:
    """Return the case of one operation with `weights` constant operands.

    They are the last ones.
    """
    names = tuple(f"x{k}" for k in range(len(shapes)))
    nodes = ((op, names, "y", attributes),)
    return Case(kind, name, batch, dict(zip(names, shapes, strict=True)), nodes, weights=names[len(names) - weights :])


def convolution_cases(batches: tuple[int, ...] = BATCHES) -> Iterator[Case]:
    """Yield every distinct convolution of the networks at every batch size.

    There are four networks; depthwise ones are a class of their own.
    """
    uses: dict[ConvolutionShape, dict[str, int]] = {}
    for network in CONVOLUTIONS:
        for shape, count in convolutions(network).items():
            uses.setdefault(shape, {})[network] = count
    for batch in batches:
        for shape, where in uses.items():
            yield convolution_case(shape, batch, where)


def convolution_case(shape: ConvolutionShape, batch: int, uses: Mapping[str, int] | None = None) -> Case:
    """Return the case of a convolution."""
    image = (batch, shape.channels, shape.size, shape.size)
    weight = (shape.filters, 1 if shape.depthwise else shape.channels, *shape.kernel)
    attributes: dict[str, Attribute] = {
        "strides": (shape.stride, shape.stride),
        "pads": (*shape.pads, *shape.pads),
        "groups": shape.channels if shape.depthwise else 1,
    }
    kind = "depthwise" if shape.depthwise else "conv"
    return evolve(single(kind, shape.name, batch, "conv", (image, weight), attributes, 1), uses=uses or {})


#: Shapes of products by class of use.
PRODUCTS: Mapping[str, Any] = LISTS["products"]


def gemm_cases() -> Iterator[Case]:
    """Yield matrix products: y = a @ b, weights stored [k, n]."""
    for batch, tokens in ((1, 128), (1, 384), (64, 128), (64, 384)):
        for name, (n, k) in PRODUCTS["bert"].items():
            yield single("gemm", f"bert {name} s{tokens}", batch, "matmul", ((batch * tokens, k), (k, n)), {}, 1)
        rows, heads = (tokens, 64), 12 * batch
        yield single("gemm", f"bert scores s{tokens}", batch, "matmul", ((heads, *rows), (heads, 64, tokens)), {})
        yield single("gemm", f"bert context s{tokens}", batch, "matmul", ((heads, tokens, tokens), (heads, *rows)), {})
    for batch in (128, 2048):
        for n, k in PRODUCTS["dlrm"]:
            yield single("gemm", f"dlrm {k}-{n}", batch, "matmul", ((batch, k), (k, n)), {}, 1)
    for kind in ("square", "skinny", "odd"):
        for m, n, k in PRODUCTS[kind]:
            yield single("gemm", f"{kind} {m}x{n}x{k}", 1, "matmul", ((m, k), (k, n)), {})


def dense_cases() -> Iterator[Case]:
    """Yield dense layers on 1 to 8 rows, with weights [n, k].

    Frameworks store them so.
    """
    for batch in (1, 2, 4, 8):
        for n, k in PRODUCTS["dense"]:
            yield single("gemv", f"dense {k}-{n}", batch, "gemm", ((batch, k), (n, k)), {"trans_b": True}, 1)


def chain_case(name: str, shape: tuple[int, int]) -> Case:
    """Return the case of elementwise operations with a broadcast row."""
    nodes: tuple[Step, ...] = (
        ("mul", ("a", "b"), "t0", {}),
        ("add", ("t0", "c"), "t1", {}),
        ("sigmoid", ("t1",), "t2", {}),
        ("mul", ("t1", "t2"), "y", {}),
    )
    return Case("memory", name, 1, {"a": shape, "b": shape, "c": shape[1:]}, nodes)


def memory_cases() -> Iterator[Case]:
    """Yield memory-bound operations of three sizes.

    Tensors have about 1 MB, a middle size, or at least 64 MB.
    """
    for size, label in ((1 << 18, "1 MB"), (1 << 22, "16 MB"), (1 << 24, "64 MB"), (1 << 26, "256 MB")):
        yield from _elementwise(size, label)
        yield from _rows(size, label)
        yield from _images(size, label)


def _elementwise(size: int, label: str) -> Iterator[Case]:
    shape = (size // 1024, 1024)
    yield single("memory", f"relu {label}", 1, "relu", (shape,), {})
    yield single("memory", f"add {label}", 1, "add", (shape, shape), {})
    yield chain_case(f"chain {label}", shape)
    yield single("memory", f"transpose {label}", 1, "transpose", (shape,), {"perm": (1, 0)})


def _rows(size: int, label: str) -> Iterator[Case]:
    for width in (384, 4096, 65536):
        shape = (size // width, width)
        yield single("memory", f"softmax {width} {label}", 1, "softmax", (shape,), {})
        yield single("memory", f"sum of rows {width} {label}", 1, "reduce_sum", (shape,), {"axes": (1,)})
    for width in (768, 4096):
        shapes = ((size // width, width), (width,), (width,))
        yield single("memory", f"layer norm {width} {label}", 1, "layer_norm", shapes, {}, 2)
    yield single("memory", f"sum of columns {label}", 1, "reduce_sum", ((size // 1024, 1024),), {"axes": (0,)})


def _images(size: int, label: str) -> Iterator[Case]:
    image = (size // (64 * 64 * 64) or 1, 64, 64, 64)
    window = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    halving = {"kernel_shape": (2, 2), "strides": (2, 2)}
    yield single("memory", f"max pool {label}", image[0], "max_pool", (image,), window)
    yield single("memory", f"average pool {label}", image[0], "average_pool", (image,), halving)
    yield single("memory", f"global average pool {label}", image[0], "global_average_pool", (image,), {})
    yield single("memory", f"batch norm {label}", image[0], "batch_norm", (image, *((64,),) * 4), {}, 4)
    yield single("memory", f"channels last {label}", image[0], "transpose", (image,), {"perm": (0, 2, 3, 1)})
