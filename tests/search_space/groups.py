"""Fused groups in normal form for the tests of this folder.

One of each kind.
"""

from __future__ import annotations

from cuts.ir.affine import Guard, Var, as_index
from cuts.ir.expr import Call, Const, Expr, Read, call
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.types import DType, TensorType
from cuts.passes.schedule.selection.enumerate import batches
from cuts.passes.schedule.space import Space


def f32(*shape: int) -> TensorType:
    """Return the type of a dense fp32 tensor."""
    return TensorType(DType.F32, shape)


def at(tensor: str, *indices: object) -> Read:
    """Read a tensor at variables, indices or numbers."""
    return Read(tensor, tuple(as_index(i) for i in indices))  # type: ignore[arg-type]


def relu(value: Expr) -> Call:
    """Return max(value, 0)."""
    return call("max", value, Const(0.0, DType.F32))


def write(*axes: Var) -> tuple[object, ...]:
    """Return the identity write of the axes."""
    return tuple(as_index(a) for a in axes)


def pointwise(*shape: int) -> FusedGroup:
    """y = relu(a + b)."""
    axes = tuple(Var(f"i{k}", e) for k, e in enumerate(shape))
    body = relu(call("add", at("a", *axes), at("b", *axes)))
    segment = Segment(axes, (), (Output("y", write(*axes), body),))
    kind = f32(*shape)
    return FusedGroup((segment,), {"a": kind, "b": kind, "y": kind}, ("a", "b"), ("y",))


def two_matmuls(m: int, n: int, k: int) -> FusedGroup:
    """Two products, the first in shared memory.

    h = x @ w, y = h @ v; all widths but that of h are equal.
    """
    i, j, c = Var("i", m), Var("j", n), Var("c", k)
    h = Reduction("acc", (c,), "sum", call("mul", at("x", i, c), at("w", c, j)))
    first = Segment((i, j), (h,), (Output("h", write(i, j), at("acc", i, j)),))
    y = Reduction("sum", (j,), "sum", call("mul", at("h", i, j), at("v", j, c)))
    last = Segment((i, c), (y,), (Output("y", write(i, c), at("sum", i, c)),))
    shapes = {"x": (m, k), "w": (k, n), "v": (n, k), "h": (m, n), "y": (m, k), "acc": (m, n), "sum": (m, k)}
    tensors = {name: f32(*shape) for name, shape in shapes.items()}
    return FusedGroup((first, last), tensors, ("x", "w", "v"), ("y",), ("h",))


def matmul(m: int, n: int, k: int) -> FusedGroup:
    """y[m, n] = sum over k of a[m, k] * b[k, n]."""
    i, j, c = Var("i", m), Var("j", n), Var("c", k)
    total = Reduction("t", (c,), "sum", call("mul", at("a", i, c), at("b", c, j)))
    segment = Segment((i, j), (total,), (Output("y", write(i, j), at("t", i, j)),))
    tensors = {"a": f32(m, k), "b": f32(k, n), "y": f32(m, n), "t": f32(m, n)}
    return FusedGroup((segment,), tensors, ("a", "b"), ("y",))


def _conv_segment(
    prefix: str,
    source: str,
    weight: str,
    target: str,
    n: int,
    c: int,
    k: int,
    h: int,
    w: int,
    r: int,
    s: int,
    d: int,
    pad: int,
    size: int,
) -> Segment:
    axes = tuple(Var(f"{prefix}{x}", e) for x, e in zip("nkhw", (n, k, h, w), strict=True))
    cc, rr, ss = Var(f"{prefix}c", c), Var(f"{prefix}r", r), Var(f"{prefix}s", r)
    row = axes[2] * s + rr * d - pad
    col = axes[3] * s + ss * d - pad
    guards = tuple(g for g in (Guard(row, 0, size), Guard(col, 0, size)) if not g.always)
    image = Read(source, (as_index(axes[0]), as_index(cc), row, col), guards)
    total = Reduction(f"{prefix}t", (cc, rr, ss), "sum", call("mul", image, at(weight, axes[1], cc, rr, ss)))
    return Segment(axes, (total,), (Output(target, write(*axes), relu(at(f"{prefix}t", *axes))),))


def conv(
    n: int, c: int, k: int, size: int, r: int = 3, stride: int = 1, dilation: int = 1, pad: int | None = None
) -> FusedGroup:
    """relu of a square convolution; padding keeps the size at stride 1."""
    pad = (r - 1) * dilation // 2 if pad is None else pad
    out = (size + 2 * pad - (r - 1) * dilation - 1) // stride + 1
    segment = _conv_segment("", "x", "w", "y", n, c, k, out, out, r, stride, dilation, pad, size)
    tensors = {"x": f32(n, c, size, size), "w": f32(k, c, r, r), "y": f32(n, k, out, out), "t": f32(n, k, out, out)}
    return FusedGroup((segment,), tensors, ("x", "w"), ("y",))


def conv_conv(n: int, c: int, mid: int, k: int, size: int, r: int = 3) -> FusedGroup:
    """A 1x1 and an r x r convolution, in shared memory.

    A relu is between them.
    """
    first = _conv_segment("a", "x", "w", "u", n, c, mid, size, size, 1, 1, 1, 0, size)
    second = _conv_segment("b", "u", "v", "y", n, mid, k, size, size, r, 1, 1, (r - 1) // 2, size)
    tensors = {"x": f32(n, c, size, size), "w": f32(mid, c, 1, 1), "u": f32(n, mid, size, size), "v": f32(k, mid, r, r),
               "y": f32(n, k, size, size), "at": f32(n, mid, size, size), "bt": f32(n, k, size, size)}  # fmt: skip
    return FusedGroup((first, second), tensors, ("x", "w", "v"), ("y",), shared=("u",))


def depthwise(n: int, c: int, size: int, r: int = 3, stride: int = 1) -> FusedGroup:
    """A depthwise convolution."""
    out = (size - r) // stride + 1
    axes = tuple(Var(x, e) for x, e in zip("nchw", (n, c, out, out), strict=True))
    rr, ss = Var("r", r), Var("s", r)
    image = at("x", axes[0], axes[1], axes[2] * stride + rr, axes[3] * stride + ss)
    total = Reduction("t", (rr, ss), "sum", call("mul", image, at("w", axes[1], rr, ss)))
    segment = Segment(axes, (total,), (Output("y", write(*axes), at("t", *axes)),))
    tensors = {"x": f32(n, c, size, size), "w": f32(c, r, r), "y": f32(n, c, out, out), "t": f32(n, c, out, out)}
    return FusedGroup((segment,), tensors, ("x", "w"), ("y",))


def pool(n: int, c: int, size: int, r: int = 2, stride: int = 2) -> FusedGroup:
    """Max pooling."""
    out = (size - r) // stride + 1
    axes = tuple(Var(x, e) for x, e in zip("nchw", (n, c, out, out), strict=True))
    rr, ss = Var("r", r), Var("s", r)
    total = Reduction("t", (rr, ss), "max", at("x", axes[0], axes[1], axes[2] * stride + rr, axes[3] * stride + ss))
    segment = Segment(axes, (total,), (Output("y", write(*axes), at("t", *axes)),))
    return FusedGroup(
        (segment,), {"x": f32(n, c, size, size), "y": f32(n, c, out, out), "t": f32(n, c, out, out)}, ("x",), ("y",)
    )


def softmax(rows: int, columns: int) -> FusedGroup:
    """Softmax over the last axis."""
    i, j = Var("i", rows), Var("j", columns)
    top = Reduction("m", (j,), "max", at("x", i, j))
    power = call("exp", call("sub", at("x", i, j), at("m", i)))
    total = Reduction("z", (j,), "sum", power)
    out = Output("y", write(i, j), call("div", power, at("z", i)), extra=(j,))
    kind = f32(rows, columns)
    return FusedGroup(
        (Segment((i,), (top, total), (out,)),), {"x": kind, "y": kind, "m": f32(rows), "z": f32(rows)}, ("x",), ("y",)
    )


def two_rows(rows: int, columns: int) -> FusedGroup:
    """Sums of two rows that are read again.

    Gradients of norms have these.
    """
    i, j = Var("i", rows), Var("j", columns)
    x, y = at("x", i, j), at("y", i, j)
    sums = (Reduction("a", (j,), "sum", call("mul", x, y)), Reduction("b", (j,), "sum", y))
    body = call("add", call("mul", x, at("a", i)), call("mul", y, at("b", i)))
    kind = f32(rows, columns)
    tensors = {"x": kind, "y": kind, "z": kind, "a": f32(rows), "b": f32(rows)}
    return FusedGroup(
        (Segment((i,), sums, (Output("z", write(i, j), body, extra=(j,)),)),), tensors, ("x", "y"), ("z",)
    )


def global_pool(n: int, c: int, size: int) -> FusedGroup:
    """Mean over the pixels of each channel."""
    axes = (Var("n", n), Var("c", c))
    h, w = Var("h", size), Var("w", size)
    total = Reduction("t", (h, w), "sum", at("x", *axes, h, w))
    out = Output("y", write(*axes), call("mul", at("t", *axes), Const(1.0 / size / size, DType.F32)))
    return FusedGroup(
        (Segment(axes, (total,), (out,)),), {"x": f32(n, c, size, size), "y": f32(n, c), "t": f32(n, c)}, ("x",), ("y",)
    )


def total(size: int) -> FusedGroup:
    """Sum of a vector, without a parallel axis."""
    i = Var("i", size)
    whole = Reduction("t", (i,), "sum", at("x", i))
    return FusedGroup(
        (Segment((), (whole,), (Output("y", (), at("t")),)),), {"x": f32(size), "y": f32(), "t": f32()}, ("x",), ("y",)
    )


def normalise_vector(size: int) -> FusedGroup:
    """A vector divided by its sum: a row without parallel axes."""
    i = Var("i", size)
    whole = Reduction("t", (i,), "sum", at("x", i))
    out = Output("y", write(i), call("div", at("x", i), at("t")), extra=(i,))
    return FusedGroup((Segment((), (whole,), (out,)),), {"x": f32(size), "y": f32(size), "t": f32()}, ("x",), ("y",))


def upsampled_conv(rows: int, columns: int, channels: int, r: int = 1) -> FusedGroup:
    """Convolution of upsampled rows.

    y[k, j] = sum over c and s of x[c, (j + s) // 2] * w[k, c, s]. A tile of two columns may read one element.
    """
    k, j, c, s = Var("k", rows), Var("j", columns), Var("c", channels), Var("s", r)
    image = at("x", c, (j + s) // 2)
    total = Reduction("t", (c, s), "sum", call("mul", image, at("w", k, c, s)))
    segment = Segment((k, j), (total,), (Output("y", write(k, j), at("t", k, j)),))
    kinds = {
        "x": f32(channels, (columns + r) // 2),
        "w": f32(rows, channels, r),
        "y": f32(rows, columns),
        "t": f32(rows, columns),
    }
    return FusedGroup((segment,), kinds, ("x", "w"), ("y",))


#: One small group of every kind.
ALL = {
    "pointwise": pointwise(2, 3, 5, 7), "scalar": pointwise(), "matmul": matmul(33, 17, 20), "gemv": matmul(1, 40, 50),
    "conv": conv(2, 3, 8, 9), "conv-stride": conv(1, 4, 8, 11, stride=2), "conv-dilated": conv(1, 2, 4, 9, dilation=2),
    "conv1x1": conv(1, 8, 16, 7, r=1), "conv-conv": conv_conv(1, 4, 6, 5, 7), "conv-1x1": conv_conv(1, 4, 6, 5, 7, r=1),
    "depthwise": depthwise(1, 5, 9), "pool": pool(1, 3, 8), "softmax": softmax(5, 19),
    "global-pool": global_pool(2, 3, 7), "upsampled": upsampled_conv(3, 30, 8),
    "conv-upsampled": upsampled_conv(4, 30, 4, 3),
    "total": total(37), "vector": normalise_vector(37),
}  # fmt: skip


def illegal_histogram(space: Space) -> dict[str, int]:
    """Return how many points break each rule, and the legal ones.

    A point may break several rules.
    """
    counts: dict[str, int] = {"legal": 0}
    for batch in batches(space):
        counts["legal"] += int(batch.legal.sum())
        for name, reason in batch.illegal.items():
            counts[name] = counts.get(name, 0) + int(batch.flat(reason).sum())
    return counts
