"""Layers that a profile measures.

They are convolutions of two networks with varied channels, and other operations of networks.

A convolution is `(N, C, H, W, K, R, S, stride_h, stride_w, pad_h, pad_w, dilation, groups)`. Time rises in steps of
tiles along `K`, so the sets for training hold only values beside the edges of steps (`edges`), where a sweep of all
values would be `DENSE` times as long; the sets for evaluation hold numbers of channels that no training set has
(`held_out`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from attrs import frozen

from ..predictors import POINTWISE, POOLS

Shape = tuple[int, ...]

#: Unique (name, H, W, R, S, stride, pad_h, pad_w) of ResNet-50 V2, whose first layer is Case 0 of the paper ...
RESNET50_V2 = (
    ("r0", 224, 224, 7, 7, 2, 3, 3),
    ("r1", 56, 56, 1, 1, 1, 0, 0),
    ("r2", 56, 56, 3, 3, 1, 1, 1),
    ("r3", 56, 56, 3, 3, 2, 1, 1),
    ("r4", 28, 28, 1, 1, 1, 0, 0),
    ("r5", 28, 28, 3, 3, 1, 1, 1),
    ("r6", 28, 28, 3, 3, 2, 1, 1),
    ("r7", 14, 14, 1, 1, 1, 0, 0),
    ("r8", 14, 14, 3, 3, 1, 1, 1),
    ("r9", 14, 14, 3, 3, 2, 1, 1),
    ("r10", 7, 7, 1, 1, 1, 0, 0),
    ("r11", 7, 7, 3, 3, 1, 1, 1),
)
#: ... and of Inception v3.
INCEPTION_V3 = (
    ("i0", 299, 299, 3, 3, 2, 0, 0),
    ("i1", 149, 149, 3, 3, 1, 0, 0),
    ("i2", 147, 147, 3, 3, 1, 1, 1),
    ("i3", 73, 73, 1, 1, 1, 0, 0),
    ("i4", 73, 73, 3, 3, 1, 0, 0),
    ("i5", 35, 35, 1, 1, 1, 0, 0),
    ("i6", 35, 35, 5, 5, 1, 2, 2),
    ("i7", 35, 35, 3, 3, 1, 1, 1),
    ("i8", 35, 35, 3, 3, 2, 0, 0),
    ("i9", 17, 17, 1, 1, 1, 0, 0),
    ("i10", 17, 17, 1, 7, 1, 0, 3),
    ("i11", 17, 17, 7, 1, 1, 3, 0),
    ("i12", 17, 17, 3, 3, 2, 0, 0),
    ("i13", 8, 8, 1, 1, 1, 0, 0),
    ("i14", 8, 8, 3, 3, 1, 1, 1),
    ("i15", 8, 8, 1, 3, 1, 0, 1),
    ("i16", 8, 8, 3, 1, 1, 1, 0),
)
CASES = {name: rest for name, *rest in (*RESNET50_V2, *INCEPTION_V3)}
#: The batch of the sweeps.
BATCH = 16
#: Numbers of input channels that training sweeps have. No evaluation has one of them.
TRAINING_CHANNELS = (3, 16, 24, 32, 48, 64, 65, 96, 127, 128, 130, 160, 192, 256, 257, 320, 384, 511, 512, 768, 1024)
#: Steps are multiples of this many output channels: the greatest common divisor of the tiles of GEMM kernels but the
#: smallest.
STEP = 32
#: Samples of output channels for one number of input channels, and how many values a sweep of all of them would have.
SAMPLES, DENSE = 9, 1024 - 16 + 1
#: No layer of more operations or of a tensor with more elements is measured.
MOST_FLOPS, MOST_ELEMENTS = 1.5e11, 1.5e8


@frozen
class LayerTask:
    """Measured operation: set, varied case, name, shape, and rounding of products."""

    kind: str
    case: str
    op: str
    shape: Shape
    precision: str = "fp32"

    @property
    def key(self) -> str:
        """Identity of the task."""
        return f"{self.kind}/{self.case}/{self.op}/{self.precision}/{'x'.join(map(str, self.shape))}"

    @classmethod
    def parse(cls, key: str) -> LayerTask:
        """Return the task of a key.

        Raises `ValueError` where it is none.
        """
        kind, case, op, precision, shape = key.split("/")
        return cls(kind, case, op, tuple(int(size) for size in shape.split("x")), precision)


def output_size(shape: Shape) -> tuple[int, int]:
    """Return P and Q of a convolution."""
    _, _, h, w, _, r, s, sh, sw, ph, pw, dilation, _ = shape
    return (h + 2 * ph - dilation * (r - 1) - 1) // sh + 1, (w + 2 * pw - dilation * (s - 1) - 1) // sw + 1


def convolution_flops(shape: Shape) -> float:
    """Return the multiplications and additions of a convolution."""
    n, c, _, _, k, r, s, *_, groups = shape
    p, q = output_size(shape)
    return 2.0 * n * k * p * q * (c // groups) * r * s


def reasonable(shape: Shape) -> bool:
    """Return whether a convolution has an output within the limits."""
    n, c, h, w, k, *_ = shape
    p, q = output_size(shape)
    flops = convolution_flops(shape)
    return min(p, q) > 0 and flops <= MOST_FLOPS and max(n * c * h * w, n * k * p * q) <= MOST_ELEMENTS


def convolution(case: str, channels: int, filters: int, batch: int = BATCH) -> Shape:
    """Return a case with other numbers of channels."""
    h, w, r, s, stride, pad_h, pad_w = CASES[case]
    return (batch, channels, h, w, filters, r, s, stride, stride, pad_h, pad_w, 1, 1)


def edges() -> Iterator[LayerTask]:
    """Yield training sweeps: points at the edges of steps.

    At each step these are the last value of its plateau or the first values of the next (of three alignments).
    """
    draw = random.Random("edges")
    at = [16, *(STEP * m for m in range(1, 1024 // STEP + 1))]
    for case in CASES:
        for channels in TRAINING_CHANNELS:
            chosen = [
                value if draw.random() < 0.5 else value + draw.choice((1, 2, 4)) for value in draw.sample(at, SAMPLES)
            ]
            shapes = (convolution(case, channels, filters) for filters in sorted(set(chosen)))
            yield from (LayerTask("edges", case, "conv2d", shape) for shape in shapes if reasonable(shape))


def any_channels(draw: random.Random, least: int, most: int) -> int:
    """Return a log-uniform number of channels; every other one divides by 8."""
    value = int(least * (most / least) ** draw.random())
    return max(8, value // 8 * 8) if draw.random() < 0.5 else value


def held_out(each: int = 60) -> Iterator[LayerTask]:
    """Yield the evaluation set: input channels without training, any output channels."""
    draw = random.Random("held")
    for case in CASES:
        found: set[Shape] = set()
        while len(found) < each:
            channels, filters = any_channels(draw, 8, 1100), any_channels(draw, 16, 1024)
            shape = convolution(case, channels, filters)
            if channels not in TRAINING_CHANNELS and reasonable(shape):
                found.add(shape)
        yield from (LayerTask("held", case, "conv2d", shape) for shape in sorted(found))


def more_edges(each: int = 200, filters: int = 3) -> Iterator[LayerTask]:
    """Yield more training sweeps with many input channels and few samples.

    None has input channels that `held_out` or `sweep` has for its case.

    Which kernel runs depends on the channels in regions with sharp borders: to learn where these are takes many values
    of either.
    """
    draw = random.Random("more edges")
    unseen = {(task.case, task.shape[1]) for task in (*held_out(), *sweep())}
    at = [16, *(STEP * m for m in range(1, 1024 // STEP + 1))]
    for case in CASES:
        channels = {any_channels(draw, 8, 1200) for _ in range(4 * each)} - set(TRAINING_CHANNELS)
        for c in draw.sample(sorted(c for c in channels if (case, c) not in unseen), each):
            ends = [end if draw.random() < 0.5 else end + draw.choice((1, 2, 4)) for end in draw.sample(at, filters)]
            shapes = (convolution(case, c, k) for k in sorted(set(ends)))
            yield from (LayerTask("edges", case, "conv2d", shape) for shape in shapes if reasonable(shape))


def sweep() -> Iterator[LayerTask]:
    """Yield three dense sweeps of output channels for the figure.

    Their input channels have no training rows.
    """
    for case, channels in (("r2", 100), ("r8", 288), ("i7", 80)):
        shapes = (convolution(case, channels, filters) for filters in range(16, 1025, 8))
        yield from (LayerTask("sweep", case, "conv2d", shape) for shape in shapes if reasonable(shape))


_FILTERS = (*((1, 1),) * 5, *((3, 3),) * 5, (5, 5), (7, 7), (11, 11), (1, 3), (3, 1), (1, 7), (7, 1))


def general(count: int = 1800, seed: str = "general") -> Iterator[LayerTask]:
    """Yield convolutions of any size.

    Batches and images are other than those of the sweeps.
    """
    draw = random.Random(seed)
    found: set[Shape] = set()
    while len(found) < count:
        r, s = draw.choice(_FILTERS)
        size = int(5 * (256 / 5) ** draw.random())
        stride = 4 if r == 11 else draw.choice((1, 1, 1, 2))
        dilation = 2 if (r, s) == (3, 3) and draw.random() < 0.05 else 1
        pads = (dilation * (r // 2), dilation * (s // 2)) if draw.random() < 0.8 else (0, 0)
        batch = draw.choice((1, 1, 2, 4, 8, 16, 16, 32, 64))
        shape = (
            batch,
            any_channels(draw, 3, 2048),
            size,
            size,
            any_channels(draw, 8, 2048),
            r,
            s,
            stride,
            stride,
            *pads,
            dilation,
            1,
        )
        if reasonable(shape):
            found.add(shape)
    yield from (LayerTask("general", "any", "conv2d", shape) for shape in sorted(found))


def depthwise(count: int = 300) -> Iterator[LayerTask]:
    """Yield convolutions with one filter for each channel."""
    draw = random.Random("depthwise")
    found: set[Shape] = set()
    while len(found) < count:
        r = draw.choice((3, 3, 5))
        size, c, stride = (
            draw.choice((7, 14, 28, 56, 112, draw.randint(7, 150))),
            any_channels(draw, 8, 1536),
            draw.choice((1, 1, 2)),
        )
        shape = (draw.choice((1, 4, 16, 16, 64)), c, size, size, c, r, r, stride, stride, r // 2, r // 2, 1, c)
        if reasonable(shape):
            found.add(shape)
    yield from (LayerTask("other", "depthwise", "conv2d", shape) for shape in sorted(found))


def linear(count: int = 250, seed: str = "linear") -> Iterator[LayerTask]:
    """Yield matrix products with weights and bias: (rows, inputs, outputs)."""
    draw = random.Random(seed)
    for _ in range(count):
        rows = draw.choice((1, 2, 4, 8, 16, 16, 32, 64, 128, 512))
        wide = draw.choice((1000, 4096, any_channels(draw, 8, 4096)))
        yield LayerTask(
            "other",
            "linear",
            "linear",
            (rows, draw.choice((512, 2048, 9216, 25088, *(any_channels(draw, 16, 8192) for _ in range(3)))), wide),
        )


def _image(draw: random.Random) -> Shape:
    size = draw.choice((7, 8, 14, 17, 28, 35, 56, 112, draw.randint(4, 224)))
    return (draw.choice((1, 1, 4, 16, 16, 16, 64)), any_channels(draw, 8, 2048), size, size)


def pointwise(each: int = 60) -> Iterator[LayerTask]:
    """Yield operations between convolutions."""
    draw = random.Random("pointwise")
    for op in (*POINTWISE, *POOLS):
        found: set[Shape] = set()
        while len(found) < each:
            shape = _image(draw)
            window, stride, pad = draw.choice(((3, 2, 1), (3, 2, 0), (3, 1, 1), (2, 2, 0)))
            if shape[0] * shape[1] * shape[2] * shape[3] <= MOST_ELEMENTS:
                found.add((*shape, window, stride, pad) if op in POOLS else shape)
        yield from (LayerTask("other", op, op, shape) for shape in sorted(found))


def small_tasks(most_flops: float, seed: str = "small") -> Iterator[LayerTask]:
    """Yield training layers of a slow device in a fixed random order.

    They are single images, beside the edges of steps. Any beginning of them is an even sample.
    """
    draw = random.Random(seed)
    found = [LayerTask("edges", t.case, t.op, (1, *t.shape[1:])) for t in edges()]
    found += [task for task in general() if task.shape[0] <= 4]
    found += [LayerTask(t.kind, t.case, t.op, (1, *t.shape[1:])) for t in pointwise(100) if t.op in ("add", "relu")]
    found += [task for task in linear() if 2.0 * task.shape[0] * task.shape[1] * task.shape[2] <= most_flops]
    draw.shuffle(found)
    yield from (task for task in found if task.op != "conv2d" or convolution_flops(task.shape) <= most_flops)


SETS: dict[str, Callable[[], Iterator[LayerTask]]] = {
    "edges": edges,
    "held": held_out,
    "sweep": sweep,
    "general": general,
    "more_edges": more_edges,
    "more_general": lambda: general(4000, "more general"),
    "more_linear": lambda: linear(1200, "more linear"),
    "depthwise": depthwise,
    "linear": linear,
    "pointwise": pointwise,
}
#: Sets whose products are rounded in two ways.
TF32_SETS = ("edges", "held", "sweep", "general")
PRECISIONS = ("fp32", "tf32")


@frozen
class Chunk:
    """Tasks that one session of the profiler measures, all of one precision."""

    number: int
    precision: str
    tasks: tuple[LayerTask, ...]


def chunks(sets: Sequence[str], size: int = 160) -> tuple[Chunk, ...]:
    """Return all tasks of some sets in a fixed random order.

    Any beginning of it is an even sample.
    """
    shapes = [task for name in sets for task in SETS[name]()]
    random.Random("chunks").shuffle(shapes)
    found: list[Chunk] = []
    for begin in range(0, len(shapes), size):
        part = shapes[begin : begin + size]
        for precision in PRECISIONS:
            tasks = [t for t in part if precision == "fp32" or t.op == "linear" or t.kind in TF32_SETS]
            renamed = tuple(LayerTask(t.kind, t.case, t.op, t.shape, precision) for t in tasks)
            found += [Chunk(len(found), precision, renamed)] if renamed else []
    return tuple(found)


def listed_chunks(keys: Sequence[str], size: int = 160) -> tuple[Chunk, ...]:
    """Return the tasks of some keys in order, the precisions in turn.

    Any beginning has the same part of each precision.
    """
    tasks = [LayerTask.parse(key) for key in keys]
    parts: list[tuple[float, str, tuple[LayerTask, ...]]] = []
    for precision in PRECISIONS:
        own = [task for task in tasks if task.precision == precision]
        parts += [(at / len(own), precision, tuple(own[at : at + size])) for at in range(0, len(own), size)]
    parts.sort(key=lambda part: part[0])
    return tuple(Chunk(number, precision, own) for number, (_, precision, own) in enumerate(parts))
