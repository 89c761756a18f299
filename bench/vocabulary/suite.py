"""Lists of rows, in the order of measurement."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from cuts.bench.vocabulary import rows, tensors
from cuts.bench.vocabulary.gradients import GradientOperation, gradient
from cuts.bench.vocabulary.operation import SizedOperation, UserOperation, integers, unit, x
from cuts.bench.vocabulary.routines import ROUTINES

torch: Any = import_module("torch")
F: Any = torch.nn.functional

# fmt: off
GRADIENTS: tuple[GradientOperation, ...] = (
    gradient("layer norm", (5, 33), ((2048, 768), (16384, 1024)),
             lambda m, n: (x(m, n), x(n), x(n), x(m, n)), lambda a, s, b: F.layer_norm(a, a.shape[-1:], s, b), 3),
    gradient("rms norm", (5, 33), ((2048, 1024), (16384, 4096)),
             lambda m, n: (x(m, n), x(n), x(m, n)), lambda a, s: F.rms_norm(a, a.shape[-1:], s, 1e-6), 2),
    gradient("batch norm", (3, 5, 6), ((64, 256, 28), (32, 64, 112)),
             lambda n, c, s: (x(n, c, s, s), x(c), x(c), x(n, c, s, s)),
             lambda a, s, b: F.batch_norm(a, None, None, s, b, True), 3),
    gradient("group norm", (2, 8, 5), ((8, 256, 64), (16, 128, 64)),
             lambda n, c, s: (x(n, c, s, s), x(c), x(c), x(n, c, s, s)), lambda a, s, b: F.group_norm(a, 4, s, b), 3),
    gradient("softmax", (5, 33), ((24576, 128), (4096, 1000)),
             lambda m, n: (x(m, n), x(m, n)), lambda a: F.softmax(a, -1)),
    gradient("log softmax", (5, 33), ((4096, 1000), (1024, 32000)),
             lambda m, n: (x(m, n), x(m, n)), lambda a: F.log_softmax(a, -1)),
    gradient("attention", (1, 2, 7, 4), ((16, 12, 128, 64), (4, 12, 512, 64)),
             lambda b, h, s, d: (x(b, h, s, d),) * 4, F.scaled_dot_product_attention, 3),
    gradient("causal attention", (1, 2, 8, 4), ((4, 12, 512, 64), (2, 16, 1024, 64)),
             lambda b, h, s, d: (x(b, h, s, d),) * 4,
             lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), 3),
    gradient("cross entropy", (5, 33), ((4096, 1000), (1024, 32000)),
             lambda m, n: (x(m, n), integers(n, m)), F.cross_entropy, 1, True),
    gradient("binary cross entropy of logits", (5, 33), ((4096, 1000), (16384, 1024)),
             lambda m, n: (x(m, n), unit(m, n)), F.binary_cross_entropy_with_logits, 1, True),
    gradient("gelu", (5, 33), ((2048, 3072), (16384, 3072)), lambda m, n: (x(m, n), x(m, n)), F.gelu),
    gradient("max pool 3x3", (2, 3, 8), ((64, 64, 112), (32, 64, 112)),
             lambda n, c, s: (x(n, c, s, s), x(n, c, s // 2, s // 2)), lambda a: F.max_pool2d(a, 3, 2, 1)),
)
# fmt: on

#: The first size of each before the second of any.
GRADIENT_ROWS: tuple[SizedOperation, ...] = tuple(o.rows[n] for n in (0, 1) for o in GRADIENTS)

#: Every operation.
OPERATIONS: tuple[UserOperation, ...] = (
    *tensors.WINDOWS,
    *rows.OPERATIONS,
    *tensors.MATRICES,
    *tensors.MOVES,
)
_FIRST_ROWS = [o.rows[n % 2] for n, o in enumerate(OPERATIONS)]
_SECOND = [o.rows[1 - n % 2] for n, o in enumerate(OPERATIONS)]
#: Every operation at one of its sizes before any at the other: a call that ends early has seen all of them.
ROWS: tuple[SizedOperation, ...] = (*_FIRST_ROWS, *_SECOND)
#: Lists by name.
LISTS: Mapping[str, tuple[SizedOperation, ...]] = {
    "operations": ROWS,
    "gradients": GRADIENT_ROWS,
    "routines": tuple(row for operation in ROUTINES for row in operation.rows),
}
