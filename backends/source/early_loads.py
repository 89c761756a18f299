"""Printer of loads before the wait for earlier launches.

A load has registers of its own. A thread fills them where the kernel begins, and in later iterations where it loads:

    uint4 e0[4];  for (v < 4) cuts_early4(e0[v], &w[.. v ..]);  cuts_begin();  ...
    for (k < 8) { for (v < 4) { cuts_guarded4(e0[v], &w[.. v .. k ..], k > 0);  x = e0[v]; ... } }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ...ir import Item, Loop, Phase, Var, VectorLoad, box_variables, substitute, vector_piece
from .early_registers import EarlyLoad
from .index_ctext import index_text
from .scope import KernelNames, Writer


def print_early_loads(names: KernelNames, out: Writer) -> None:
    """Print the early loads of a kernel, and the wait."""
    for phase, loops in _phases(names.kernel.items, ()):
        for node, box in box_variables(phase.roots, phase.unrolled).items():
            if isinstance(node, VectorLoad) and node.early:
                scopes = [v for v in box if v in phase.scopes and v != node.axis]
                rest = (*scopes, *(v for v in box if v not in scopes and v != node.axis))
                early = EarlyLoad(f"e{len(names.early)}", node, rest, loops, scopes[0] if scopes else None)
                names.early[node] = early
                _print(early, names, out)
    out.line(f"{names.dialect.begin}();")


def _phases(items: Sequence[Item], loops: tuple[Var, ...]) -> Iterator[tuple[Phase, tuple[Var, ...]]]:
    for item in items:
        if isinstance(item, Loop):
            yield from _phases(item.body, (*loops, item.var))
        elif isinstance(item, Phase):
            yield item, loops


def _print(early: EarlyLoad, names: KernelNames, out: Writer) -> None:
    node, line = early.node, early.node.line
    vectors, start = names.dialect.vectors[node.memory_dtype.value], 0
    kind = vectors.vector(max(node.pieces))
    out.line(f"{kind} {early.name}[{prod(early.shape)}];")
    box = [Var(v.name, n) for v, n in zip(early.box, early.shape, strict=False)]
    with out.loops([v for v in box if v.extent > 1]):
        for number, width in enumerate(node.pieces):
            piece = vector_piece(line.address, (), line.axis, range(start, start + width))
            assert piece is not None, "a piece is a vector"
            first = dict.fromkeys((*early.loops, *(v for v, n in zip(early.box, box, strict=True) if n.extent == 1)), 0)
            place = names.place(node.space, node.buffer, substitute(piece[0], first))
            register = index_text(substitute(early.register(number), first), names.pointers)
            where = {"p": names.buffer(node.space, node.buffer), "i": place, "words": width // vectors.per_word}
            out.line(vectors.early.format(**where, x=f"{early.name}[{register}]"))
            start += width
