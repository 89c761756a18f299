"""Every row of the suite of many operations, in the order in which they are measured."""

from __future__ import annotations

from cuts.bench import vocabulary_moves, vocabulary_products, vocabulary_rows, vocabulary_windows
from cuts.bench.gradient_rows import GRADIENT_ROWS
from cuts.bench.vocabulary import SizedOperation, UserOperation

#: Every operation.
OPERATIONS: tuple[UserOperation, ...] = (
    *vocabulary_windows.OPERATIONS,
    *vocabulary_rows.OPERATIONS,
    *vocabulary_products.OPERATIONS,
    *vocabulary_moves.OPERATIONS,
)
_FIRST = [o.rows[n % 2] for n, o in enumerate(OPERATIONS)]
_SECOND = [o.rows[1 - n % 2] for n, o in enumerate(OPERATIONS)]
#: Every operation at one of its sizes before any at the other: a call that ends early has seen all of them.
ROWS: tuple[SizedOperation, ...] = (*_FIRST, *_SECOND)
#: These, and behind them the rows of gradients, which are a suite of their own.
EVERY: tuple[SizedOperation, ...] = (*ROWS, *GRADIENT_ROWS)
