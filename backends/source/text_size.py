"""Length and limits of unrolled text, an estimate of compile time.

Its rank correlation with NVRTC's times is 0.85 to 0.92; a statement takes about 0.4 ms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from ...ir import (
    FUNCTIONS,
    Accumulate,
    AsyncCopy,
    Convert,
    DfgNode,
    LaneProduct,
    Load,
    Mma,
    Op,
    Store,
    Test,
    VectorLoad,
    VectorStore,
    WideStore,
    vector_axes,
)

#: Limits of the unrolled statements of a scope: accumulations, instructions of other values, loads and stores, and
#: asynchronous copies. A loop of 200 KB was ten times slower than its loads: instructions came from L2.
_UNROLLED_OPERATIONS = 2048
_UNROLLED_INSTRUCTIONS = 768
_UNROLLED_MOVES = 160
_UNROLLED_FETCHES = 32
_MOVES = (Load, VectorLoad, Store, VectorStore, WideStore, AsyncCopy)

_UNROLL = re.compile(r"#pragma unroll\s*(\d*)$")
_LOOP = re.compile(r"for \(.*?= (\d+); \w+ < (\d+); (?:.*\+= (\d+))?")


def unrolled_statements(source: str) -> int:
    """Return the estimated statements of a text with unrolled loops.

    Loops with a pragma are unrolled; those of unknown length count once.
    """
    total, nest, asked = 0, [1], ""
    for line in map(str.strip, source.splitlines()):
        if pragma := _UNROLL.match(line):
            asked = pragma[1] or "all"
            continue
        times = _turns(line, asked)
        asked = ""
        if line.endswith("{"):
            nest.append(nest[-1] * times)
        elif line.startswith("}") and len(nest) > 1:
            nest.pop()
        else:
            total += nest[-1] * times * line.count(";") if ";" in line else 0
    return total


def _turns(line: str, asked: str) -> int:
    """Return the copies of a line's block in the unrolled text."""
    loop = _LOOP.match(line) if asked else None
    if loop is None:
        return 1
    turns = max(1, (int(loop[2]) - int(loop[1])) // int(loop[3] or 1))
    return turns if asked == "all" else min(turns, int(asked))


def unroll_factor(
    extent: int, sizes: Mapping[DfgNode, int], users: Mapping[DfgNode, Sequence[DfgNode]], is_fetch: bool
) -> int:
    """Return the unroll factor of a loop over nodes' instances.

    Compile time and register pressure grow superlinearly with its text.
    """
    moves = sum(size // prod(v.extent for v in vector_axes(n)) for n, size in sizes.items() if isinstance(n, _MOVES))
    limits = (
        (_UNROLLED_OPERATIONS, sum(size for n, size in sizes.items() if isinstance(n, (Accumulate, LaneProduct, Mma)))),
        (_UNROLLED_INSTRUCTIONS, sum(size * _instructions(n, users) for n, size in sizes.items())),
        (_UNROLLED_FETCHES if is_fetch else _UNROLLED_MOVES, moves),
    )
    times = min(extent, *(most * extent // max(1, count) for most, count in limits))
    # A remainder is additional text; a factor with few divisors would leave a loop.
    return next((n for n in range(times, times // 2, -1) if extent % n == 0), max(1, times))


def _instructions(node: DfgNode, users: Mapping[DfgNode, Sequence[DfgNode]]) -> int:
    """Return about how many instructions a value takes; a product that is accumulated takes none."""
    if isinstance(node, Op):
        multiplied = node.fn == "mul" and all(isinstance(user, Accumulate) for user in users.get(node, ()))
        return 0 if multiplied else FUNCTIONS[node.fn].issue
    return int(isinstance(node, (Convert, Test, VectorLoad)))
