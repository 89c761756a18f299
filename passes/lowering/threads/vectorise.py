"""Vectorised accesses: neighbouring elements of a thread move as one vector.

A transform that became a scalar graph (`passes.fusion.fold_tables`) reads and writes neighbours of one tile as separate
outputs. A warp then touches every sector several times: thread t stores `y[4*t]`, then `y[4*t + 1]`, and so on. Where
the first of two, four or eight neighbours is aligned and their guards hold together, they become one access:

    y[4*t] = a; y[4*t + 1] = b; y[4*t + 2] = c; y[4*t + 3] = d      ->      y[4*t .. 4*t + 3] = (a, b, c, d)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from attrs import evolve, frozen

from ....ir import (
    Accumulate,
    Guard,
    Item,
    Kernel,
    Load,
    Loop,
    Phase,
    RegisterWrite,
    Root,
    Store,
    Value,
    Var,
    WideStore,
    Window,
    as_index,
    operand_nodes,
    post_order,
    vector_address,
    vector_guards,
    vector_widths,
    with_operands,
)

Access = TypeVar("Access", Load, Store)


@frozen
class _Run(Generic[Access]):
    """Accesses of neighbouring elements in the order of their addresses; `last` is the one that comes last in the
    graph.
    """

    members: tuple[Access, ...]
    last: Access

    @property
    def width(self) -> int:
        """Number of accesses."""
        return len(self.members)

    def guards(self, lane: Var) -> tuple[Guard, ...]:
        """Return the guards of element `lane`."""
        found = _common_guards([m.guards for m in self.members], lane)
        assert found is not None
        return found


def vectorise_accesses(kernel: Kernel) -> Kernel:
    """Return an extracted kernel whose threads move aligned neighbours at once."""
    return evolve(kernel, items=tuple(_item(i, kernel.aligned) for i in kernel.items))


def _item(item: Item, aligned: Mapping[str, int]) -> Item:
    if isinstance(item, Loop):
        return evolve(item, body=tuple(_item(i, aligned) for i in item.body))
    return _phase(item, aligned) if isinstance(item, Phase) and not item.asynchronous else item


def _phase(phase: Phase, aligned: Mapping[str, int]) -> Phase:
    every = post_order(phase.roots)
    shared = {o for node in every if isinstance(node, Window) for o in operand_nodes(node)}
    loads: dict[Value, Value] = {}
    added: list[Var] = []
    for run in _runs((n for n in every if isinstance(n, Load) and n not in shared), aligned):
        lane = Var(f"wide{run.width}", run.width)
        first = run.members[0]
        family = evolve(first, address=first.address + lane, guards=run.guards(lane))
        loads.update({load: Window(family, (lane,), (as_index(k),)) for k, load in enumerate(run.members)})
        added += [lane] if lane not in added else []
    roots: Sequence[Root] = phase.roots
    if loads:
        done: dict[Value, Value] = dict(loads)
        written = (Store, Accumulate, RegisterWrite)
        roots = [evolve(r, value=_replace(r.value, done)) if isinstance(r, written) else r for r in roots]
    stores: dict[Root, _Run[Store]] = {
        store: run
        for run in _runs((r for r in roots if isinstance(r, Store) and not r.into), aligned)
        for store in run.members
    }
    roots = tuple(r for root in roots for r in _widen_store(root, stores.get(root)))
    return evolve(phase, roots=roots, unrolled=(*phase.unrolled, *added))


def _widen_store(root: Root, run: _Run[Store] | None) -> Iterator[Root]:
    """Yield a store without a run as it is, and the vector store of a run at its last element."""
    if run is None:
        yield root
    elif root == run.last:
        lane = Var("wide", run.width)
        first = run.members[0]
        start, guards = vector_address(first.address + lane, lane), vector_guards(run.guards(lane), lane)
        assert start is not None and guards is not None
        yield WideStore(first.space, first.buffer, start, tuple(s.value for s in run.members), first.dtype, guards)


def _runs(accesses: Iterable[Access], aligned: Mapping[str, int]) -> Iterator[_Run[Access]]:
    """Yield disjoint runs of accesses that may become one."""
    rows: dict[Hashable, dict[int, Access]] = {}
    sizes: dict[Hashable, tuple[int, ...]] = {}
    order: dict[Access, int] = {}
    for access in accesses:
        order[access] = len(order)
        if widths := vector_widths(access.dtype):
            key = (access.space, access.buffer, access.dtype, getattr(access, "fill", None), access.address.terms)
            sizes[key] = widths
            rows.setdefault(key, {})[access.address.const] = access
    for place, row in rows.items():
        left = dict(row)
        for width in sizes[place]:
            for start in sorted(left):
                members = tuple(left[start + k] for k in range(width) if start + k in left)
                if len(members) == width and _fits(members, width, aligned):
                    yield _Run(members, max(members, key=lambda m: order[m]))
                    for k in range(width):
                        del left[start + k]


def _fits(members: Sequence[Access], width: int, aligned: Mapping[str, int]) -> bool:
    """Return whether neighbours start at a multiple of their number, and are in range together."""
    first, lane = members[0], Var("wide", width)
    if first.space == "global" and aligned.get(first.buffer, 1) % (width * first.dtype.size):
        return False
    guards = _common_guards([m.guards for m in members], lane)
    return (
        vector_address(first.address + lane, lane) is not None
        and guards is not None
        and vector_guards(guards, lane) is not None
    )


def _common_guards(guards: Sequence[tuple[Guard, ...]], lane: Var) -> tuple[Guard, ...] | None:
    """Return one tuple of guards for all elements; None where guards differ otherwise than by the element's number.

    A guard that depends on the element is dropped where the range of its index proves it.
    """
    found: dict[Guard, None] = {}
    for number, each in enumerate(guards):
        for guard in each:
            walking = tuple(Guard(guard.index + (k - number), guard.low, guard.high) for k in range(len(guards)))
            if all(guard in other for other in guards):
                found[guard] = None
            elif all(g in other or g.always for g, other in zip(walking, guards, strict=True)):
                found[Guard(guard.index - number + lane, guard.low, guard.high)] = None
            else:
                return None
    return tuple(found)


def _replace(node: Value, done: dict[Value, Value]) -> Value:
    """Return a value over the vector loads; `done` maps earlier replacements."""
    if node not in done:
        done[node] = with_operands(node, lambda operand: _replace(operand, done))
    return done[node]
