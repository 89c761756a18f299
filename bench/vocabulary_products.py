"""Products: of matrices in odd sizes and orders, by index notation, and attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cuts.bench.vocabulary import table, w, x

torch: Any = import_module("torch")
F: Any = torch.nn.functional


def _grouped(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))


def _gated(rows: Any, gate: Any, up: Any) -> Any:
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
     lambda m, n, k: (x(m, k), w(k, n), w(k, n)), _gated),
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
     lambda b, h, s, d: (x(b, h, s, d), x(b, h // 4, s, d), x(b, h // 4, s, d)), _grouped),
    ("attention to another length", (1, 2, 7, 4), (2, 8, 1024, 40), (4, 8, 4096, 40),
     lambda b, h, s, d: (x(b, h, s, d), x(b, h, 77 % s, d), x(b, h, 77 % s, d)), F.scaled_dot_product_attention),
)
# fmt: on

OPERATIONS = (*PRODUCTS, *EINSUMS, *ATTENTION)
