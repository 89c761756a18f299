"""Printer of loads before the wait for earlier launches.

A load has registers of its own. A thread fills them where the kernel begins, and in later iterations where it loads:

    uint4 e0[4];  for (v < 4) cuts_early4(e0[v], &w[.. v ..]);  cuts_begin();  ...
    for (k < 8) { for (v < 4) { cuts_guarded4(e0[v], &w[.. v .. k ..], k > 0);  x = e0[v]; ... } }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attrs import frozen

from ...ir import (
    HorizontalKernel,
    Index,
    Item,
    Kernel,
    Loop,
    Phase,
    Var,
    VectorLoad,
    as_index,
    box_variables,
    linearise,
    member_name,
    phases,
    post_order,
    row_major,
    substitute,
    vector_piece,
)
from .dialect import Dialect
from .index_ctext import index_text
from .scope import KernelNames, Writer


@frozen
class EarlyLoad:
    """Registers of a load.

    They are `name`, with a dim for each variable of its `box` and for its pieces. The `loops` around it are in their
    first iteration, and the `scope`, the first variable of the box or none, is below the load's number of early ones.
    """

    name: str
    node: VectorLoad
    box: tuple[Var, ...]
    loops: tuple[Var, ...]
    scope: Var | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of vectors."""
        own = (self.node.early if v == self.scope else v.extent for v in self.box)
        return (*own, len(self.node.pieces))

    def register(self, piece: int) -> Index:
        """Return the place of a piece for an element of the box."""
        return linearise([*map(as_index, self.box), as_index(piece)], row_major(self.shape))

    def lines(self, name: str, register: str, load: str, guarded: str) -> Iterator[str]:
        """Yield the statements that take a vector from its register.

        Later iterations load it.
        """
        later = " | ".join(f"({v.name} > 0)" for v in self.loops)
        take = f"{guarded.format(x=register, ok=later)} " if later else ""
        take += f"{name} = {register};"
        scope = self.scope
        if scope is None or self.node.early == scope.extent:
            yield take
        else:
            yield f"if ({scope.name} < {self.node.early}) {{ {take} }} else {name} = {load};"


def early_tensors(kernel: Kernel) -> frozenset[str]:
    """Return the tensors that a kernel loads before it waits."""
    nodes = (node for phase in phases(kernel.items) for node in post_order(phase.roots))
    return frozenset(node.buffer for node in nodes if isinstance(node, VectorLoad) and node.early)


def early_arguments(kernel: Kernel | HorizontalKernel) -> frozenset[str]:
    """Return the names of arguments that a kernel loads before it waits."""
    if isinstance(kernel, Kernel):
        return early_tensors(kernel)
    return frozenset(member_name(n, t) for n, member in enumerate(kernel.kernels) for t in early_tensors(member))


def movable(pointer: str, early: bool, dialect: Dialect) -> str:
    """Return the declaration of a pointer in a kernel with early loads.

    Assemblers move loads from restricted pointers before the wait, where only `early` tensors may be read.
    """
    return pointer if early else pointer.replace(f" {dialect.restrict_}", "")


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
