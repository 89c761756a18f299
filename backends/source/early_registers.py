"""Registers of loads before the wait for earlier launches, and their pointers."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ...ir import (
    HorizontalKernel,
    Index,
    Kernel,
    Var,
    VectorLoad,
    as_index,
    linearise,
    member_name,
    phases,
    post_order,
    row_major,
)
from .dialect import Dialect


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
