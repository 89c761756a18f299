"""Operations along an axis: reductions, scans, orders, norms and losses."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cuts.bench.vocabulary.operation import distinct, integers, positive, table, unit, w, x

torch: Any = import_module("torch")
F: Any = torch.nn.functional


def _rms(rows: Any, scale: Any) -> Any:
    return F.rms_norm(rows, rows.shape[-1:], scale, 1e-6)


def _histogram(rows: Any) -> Any:
    return torch.zeros(256, device=rows.device).index_add(0, rows, torch.ones_like(rows, dtype=torch.float32))


# fmt: off
REDUCTIONS = table(
    "reduction",
    ("sum of rows", (5, 33), (4096, 1000), (16384, 4000), lambda m, n: (x(m, n),), lambda x: x.sum(1)),
    ("sum of columns", (33, 5), (4096, 1000), (16384, 4000), lambda m, n: (x(m, n),), lambda x: x.sum(0)),
    ("sum over the middle axis", (3, 7, 5), (16, 512, 256), (64, 1024, 512),
     lambda a, b, c: (x(a, b, c),), lambda x: x.sum(1)),
    ("sum of everything", (33, 5), (1024, 4096), (8192, 4096), lambda m, n: (x(m, n),), lambda x: x.sum()),
    ("sum of images per channel", (2, 5, 6), (8, 64, 56), (64, 64, 56),
     lambda n, c, s: (x(n, c, s, s),), lambda x: x.sum((0, 2, 3))),
    ("mean of channels", (2, 5, 6), (8, 256, 28), (64, 256, 28),
     lambda n, c, s: (x(n, c, s, s),), lambda x: x.mean(1)),
    ("max of rows", (5, 33), (4096, 1000), (16384, 4000), lambda m, n: (x(m, n),), lambda x: x.amax(1)),
    ("max of columns", (33, 5), (4096, 1000), (16384, 4000), lambda m, n: (x(m, n),), lambda x: x.amax(0)),
    ("argmax of rows", (5, 33), (4096, 1000), (1024, 32000), lambda m, n: (distinct(m, n),), lambda x: x.argmax(1)),
    ("argmin of columns", (33, 5), (1000, 4096), (4000, 4096), lambda m, n: (distinct(m, n),), lambda x: x.argmin(0)),
    ("max and its place in rows", (5, 33), (4096, 1000), (1024, 32000),
     lambda m, n: (distinct(m, n),), lambda x: x.max(1)),
    ("variance of rows", (5, 33), (4096, 1000), (16384, 4000), lambda m, n: (x(m, n),), lambda x: x.var(1)),
    ("deviation and mean of columns", (33, 5), (4096, 1000), (16384, 4000),
     lambda m, n: (x(m, n),), lambda x: torch.std_mean(x, 0)),
    ("norm of rows", (5, 33), (4096, 1000), (16384, 4000),
     lambda m, n: (x(m, n),), lambda x: torch.linalg.vector_norm(x, dim=1)),
    ("log of the sum of exponentials", (5, 33), (4096, 1000), (1024, 32000),
     lambda m, n: (x(m, n),), lambda x: x.logsumexp(1)),
    ("product of rows", (5, 9), (65536, 64), (1048576, 64), lambda m, n: (positive(m, n),), lambda x: x.prod(1)),
    ("any above in rows", (5, 33), (4096, 1000), (16384, 4000), lambda m, n: (x(m, n),), lambda x: (x > 4).any(1)),
    ("count above in columns", (33, 5), (4096, 1000), (16384, 4000), lambda m, n: (x(m, n),), lambda x: (x > 1).sum(0)),
)

ORDERS = table(
    "scan or order",
    ("cumsum of rows", (3, 17), (1024, 1024), (4096, 4096), lambda m, n: (x(m, n),), lambda x: x.cumsum(1)),
    ("cumsum of columns", (17, 3), (1024, 1024), (4096, 4096), lambda m, n: (x(m, n),), lambda x: x.cumsum(0)),
    ("cumsum of one long row", (100,), (65536,), (1048576,), lambda n: (x(n),), lambda x: x.cumsum(0)),
    ("cumprod of rows", (3, 17), (4096, 256), (65536, 256), lambda m, n: (unit(m, n),), lambda x: (x + 0.5).cumprod(1)),
    ("cummax of rows", (3, 17), (4096, 256), (16384, 1024),
     lambda m, n: (distinct(m, n),), lambda x: x.cummax(1).values),
    ("logcumsumexp of rows", (3, 17), (4096, 256), (16384, 1024), lambda m, n: (x(m, n),), lambda x: x.logcumsumexp(1)),
    ("top 8 of rows", (3, 40), (256, 1000), (64, 32000), lambda m, n: (distinct(m, n),), lambda x: x.topk(8)),
    ("sort of rows", (3, 17), (1024, 128), (1024, 1024), lambda m, n: (distinct(m, n),), lambda x: x.sort(1)),
    ("argsort of rows, falling", (3, 17), (1024, 128), (1024, 1024),
     lambda m, n: (distinct(m, n),), lambda x: x.argsort(1, descending=True)),
    ("median of rows", (3, 17), (4096, 65), (1024, 1025),
     lambda m, n: (distinct(m, n),), lambda x: x.median(1).values),
    ("places in sorted bounds", (40, 9), (1 << 20, 65), (1 << 24, 65),
     lambda m, n: (unit(m), w(n)), lambda x, b: torch.bucketize(x, b.sort().values)),
    ("histogram of integers", (100,), (1 << 20,), (1 << 24,), lambda n: (integers(256, n),), _histogram),
)

NORMS = table(
    "norm",
    ("layer norm", (5, 33), (4096, 768), (16384, 4096),
     lambda m, n: (x(m, n), w(n), w(n)), lambda x, s, b: F.layer_norm(x, x.shape[-1:], s, b)),
    ("layer norm, gelu", (5, 33), (4096, 1000), (16384, 1000),
     lambda m, n: (x(m, n), w(n), w(n)), lambda x, s, b: F.gelu(F.layer_norm(x, x.shape[-1:], s, b))),
    ("residual, layer norm", (5, 33), (4096, 768), (16384, 4096),
     lambda m, n: (x(m, n), x(m, n), w(n), w(n)), lambda x, y, s, b: F.layer_norm(x + y, x.shape[-1:], s, b)),
    ("layer norm of channels", (1, 6, 5), (1, 96, 56), (32, 96, 56),
     lambda n, c, s: (x(n, c, s, s), w(c), w(c)),
     lambda x, s, b: F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2], s, b).permute(0, 3, 1, 2)),
    ("rms norm", (5, 33), (4096, 1024), (16384, 4096), lambda m, n: (x(m, n), w(n)), _rms),
    ("group norm, silu", (1, 8, 5), (1, 256, 64), (8, 256, 64),
     lambda n, c, s: (x(n, c, s, s), w(c), w(c)), lambda x, s, b: F.silu(F.group_norm(x, 4, s, b))),
    ("instance norm", (1, 3, 6), (1, 64, 128), (16, 64, 128),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.instance_norm(x)),
    ("batch norm, relu", (2, 5, 6), (8, 256, 28), (64, 256, 28),
     lambda n, c, s: (x(n, c, s, s), w(c), positive(c), w(c), w(c)),
     lambda x, m, v, s, b: F.relu(F.batch_norm(x, m, v, s, b))),
    ("batch norm of this batch", (2, 5, 6), (8, 256, 28), (64, 256, 28),
     lambda n, c, s: (x(n, c, s, s), w(c), w(c)),
     lambda x, s, b: F.batch_norm(x, None, None, s, b, training=True)),
    ("local response norm", (1, 8, 6), (1, 64, 56), (16, 64, 56),
     lambda n, c, s: (x(n, c, s, s),), lambda x: F.local_response_norm(x, 5)),
    ("rows of length one", (5, 33), (4096, 512), (65536, 512),
     lambda m, n: (x(m, n),), lambda x: F.normalize(x, dim=1)),
    ("softmax of rows", (5, 33), (4096, 1000), (1024, 32000), lambda m, n: (x(m, n),), lambda x: x.softmax(1)),
    ("log softmax of rows", (5, 33), (4096, 1000), (1024, 32000), lambda m, n: (x(m, n),), lambda x: x.log_softmax(1)),
    ("softmax of channels", (1, 5, 6), (1, 19, 256), (8, 19, 256),
     lambda n, c, s: (x(n, c, s, s),), lambda x: x.softmax(1)),
)

LOSSES = table(
    "loss",
    ("cross entropy", (5, 33), (4096, 1000), (1024, 32000),
     lambda m, n: (x(m, n), integers(n, m)), lambda x, t: F.cross_entropy(x, t)),
    ("cross entropy, smoothed", (5, 33), (4096, 1000), (1024, 32000),
     lambda m, n: (x(m, n), integers(n, m)), lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1)),
    ("squared error", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (x(m, n), x(m, n)), lambda x, y: F.mse_loss(x, y)),
    ("smooth absolute error", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (x(m, n), x(m, n)), lambda x, y: F.smooth_l1_loss(x, y)),
    ("binary cross entropy of logits", (5, 33), (1024, 4096), (8192, 4096),
     lambda m, n: (x(m, n), unit(m, n)), lambda x, y: F.binary_cross_entropy_with_logits(x, y)),
    ("divergence of rows", (5, 33), (4096, 1000), (1024, 32000),
     lambda m, n: (x(m, n), x(m, n)),
     lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean")),
    ("cosine of pairs", (5, 33), (4096, 512), (65536, 512),
     lambda m, n: (x(m, n), x(m, n)), lambda x, y: F.cosine_similarity(x, y)),
    ("triplet margin", (5, 33), (4096, 512), (65536, 512),
     lambda m, n: (x(m, n), x(m, n), x(m, n)), lambda a, p, n: F.triplet_margin_loss(a, p, n)),
)
# fmt: on

OPERATIONS = (*REDUCTIONS, *ORDERS, *NORMS, *LOSSES)
