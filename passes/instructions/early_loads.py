"""Loads of weights before the wait for earlier launches.

    wait; norm of x; for each K block k:  acc += x[k] * w[k]
      ->   keep e = w[0]; wait; norm of x; for each K block k:  acc += x[k] * (e if k is 0 else w[k])

Nothing writes such tensors in a run. A kernel that earlier ones make wait, or that computes its other factor first,
begins to read memory at once. Its threads share sums, so that each has few rows. Programmatic launch places blocks
before their predecessors have ended (`backends.cuda`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from attrs import evolve

from ...ir import (
    HALF_BYTES,
    Accumulate,
    DfgNode,
    Item,
    Kernel,
    LaneReduce,
    Load,
    Loop,
    Phase,
    Root,
    Value,
    Var,
    VectorLoad,
    box_variables,
    indirects,
    phases,
    post_order,
    variables,
    with_operands,
)

#: Share of a thread's registers for early loads, most of them, and most for each load of no factor.
EARLY_SHARE, MAX_EARLY_REGISTERS, MAX_OTHER_REGISTERS = 0.3125, 64, 16
#: Bytes of a register, and registers of a multiprocessor.
_REGISTER, _REGISTERS = 4, 1 << 16


def mark_early_loads(kernel: Kernel, unwritten: Collection[str]) -> Kernel:
    """Return a kernel over instructions that loads factors early that nothing writes."""
    tensors = {*unwritten} - {*kernel.writes}
    shares = any(isinstance(root, LaneReduce) for phase in phases(kernel.items) for root in phase.roots)
    alone = kernel.turn.extent == 1 and not kernel.producer and kernel.cluster == 1
    if not tensors or not shares or not alone:
        return kernel
    every = list(_unguarded_phases(kernel.items))
    own = _block_variables(kernel)
    found = [each for phase in every for each in _factors(phase, tensors) if own & variables(each[0].address)]
    others = [load for phase in every if found for load in _loads(phase, tensors, phase.roots) if _is_small(load)]
    limit = _REGISTERS // (kernel.threads * max(kernel.min_blocks, 1))
    left, chosen = min(MAX_EARLY_REGISTERS, int(EARLY_SHARE * limit)), dict[VectorLoad, int]()
    for load, registers, places in (*found, *others):
        count = min(places, left // registers) if load not in chosen else 0
        if count:
            chosen[load] = count
            left -= count * registers
    return evolve(kernel, items=_items(kernel.items, chosen)) if chosen else kernel


def _block_variables(kernel: Kernel) -> frozenset[Var]:
    """Return the variables that differ from block to block."""
    found = frozenset({Var("blk", kernel.blocks)})
    for define in kernel.defines:
        found |= {define.var} if variables(define.value) & found else frozenset()
    return found


def _is_small(load: tuple[VectorLoad, int, int]) -> bool:
    _, registers, places = load
    return registers * places <= MAX_OTHER_REGISTERS


def _unguarded_phases(items: Sequence[Item]) -> Iterator[Phase]:
    """Yield the phases that all threads execute, once or in one loop of known length."""
    for item in items:
        if isinstance(item, Phase) and not item.when and not item.asynchronous:
            yield item
        elif isinstance(item, Loop) and item.until is None:
            yield from (i for i in item.body if isinstance(i, Phase) and not i.when and not i.asynchronous)


def _factors(phase: Phase, tensors: Collection[str]) -> Iterator[tuple[VectorLoad, int, int]]:
    """Yield loads of factors of sums that have another factor, too, which is written."""
    boxes = box_variables(phase.roots, phase.unrolled)
    for root in phase.roots:
        if isinstance(root, Accumulate) and root.combine == "sum":
            factors = [
                n for n in post_order([root]) if isinstance(n, (Load, VectorLoad)) and {*root.over} & {*boxes[n]}
            ]
            if not all(n.space == "global" and n.buffer in tensors for n in factors):
                yield from (each for each in _loads(phase, tensors, [root]) if each[0] in factors)


def _loads(phase: Phase, tensors: Collection[str], roots: Sequence[DfgNode]) -> Iterator[tuple[VectorLoad, int, int]]:
    """Yield vector loads of some tensors.

    Each comes with the registers of its first place along the reduced variable, and the number of such places.
    """
    boxes = box_variables(roots, phase.unrolled)
    for load, box in boxes.items():
        if not isinstance(load, VectorLoad) or load.space != "global" or load.buffer not in tensors:
            continue
        scopes = [v for v in box if v in phase.scopes and v != load.axis]
        plain = not load.guards and not any(True for _ in indirects(load.address))
        plain = plain and load.memory_dtype.size <= HALF_BYTES
        if plain and len({*load.pieces}) == 1 and len(scopes) <= 1:
            rows = prod(v.extent for v in box if v not in scopes and v != load.axis)
            words = -(-sum(load.pieces) * load.memory_dtype.size // _REGISTER)
            yield load, rows * words, prod(v.extent for v in scopes)


def _items(items: Sequence[Item], chosen: Mapping[VectorLoad, int]) -> tuple[Item, ...]:
    return tuple(
        evolve(item, body=_items(item.body, chosen))
        if isinstance(item, Loop)
        else evolve(item, roots=tuple(_mark(root, chosen, {}) for root in item.roots))
        if isinstance(item, Phase)
        else item
        for item in items
    )


def _mark(root: Root, chosen: Mapping[VectorLoad, int], done: dict[Value, Value]) -> Root:
    def value(operand: Value) -> Value:
        if operand not in done:
            marked = isinstance(operand, VectorLoad) and operand in chosen
            done[operand] = _early(operand, chosen) if marked else with_operands(operand, value)
        return done[operand]

    return with_operands(root, value)


def _early(load: Value, chosen: Mapping[VectorLoad, int]) -> VectorLoad:
    assert isinstance(load, VectorLoad)
    return evolve(load, early=chosen[load])
