"""Operations that compute little: gathers and scatters, data movement, elementwise chains."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cuts.bench.vocabulary import integers, positive, table, unit, w, x

torch: Any = import_module("torch")
F: Any = torch.nn.functional


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

OPERATIONS = (*GATHERS, *MOVEMENT, *ELEMENTS)
