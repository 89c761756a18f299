"""What passes through the cache: tensors that nothing in a plan writes and one launch of it reads, as the weights of a
network at batch 1 are.

A run reads such bytes once, and before it needs them again all others have been there. Where they lie in the L2 cache
like anything else, they drive out what is needed soon: what kernels leave for one another, and the code of kernels.
A device is therefore told of them (`Device.passing`). H100, batch 1, plans that nothing was measured for: DenseNet-121
0.820 ms before and 0.772 after, ResNet-50 0.575 and 0.564.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .plan import Plan, extent_bytes

#: Part of the L2 cache that all that a launch touches fits into, or its blocks may drive out what the next ones read.
ROOM = 0.5


def passing_tensors(plan: Plan) -> Mapping[int, tuple[str, int]]:
    """Return, for each step that has one, the largest tensor that passes through the cache in it, and its bytes."""
    written, reads = set[str](), Counter[str]()
    found: dict[int, list[tuple[int, str]]] = {}
    for number, step in enumerate(plan.steps):
        kernel = plan.kernels[step.kernel]
        touched = {t: a for a, t in zip(kernel.arguments, step.tensors, strict=True) if not a.table}
        written |= {plan.storages[t].buffer for t, argument in touched.items() if argument.written}
        reads.update({plan.storages[t].buffer: plan.turns(number) for t in touched})
        sizes = [(_bytes(plan, tensor), tensor) for tensor in touched]
        if sum(size for size, _ in sizes) <= ROOM * plan.target.l2_bytes:
            found[number] = sorted(sizes, reverse=True)
    alone = {buffer for buffer, count in reads.items() if count == 1} - written
    chosen = {n: [(t, size) for size, t in sizes if plan.storages[t].buffer in alone] for n, sizes in found.items()}
    return {number: tensors[0] for number, tensors in chosen.items() if tensors and tensors[0][1]}


def _bytes(plan: Plan, tensor: str) -> int:
    """Return from its first byte to its last how many a tensor takes."""
    type_, storage = plan.types[tensor], plan.storages[tensor]
    return max(extent_bytes(type_, storage) - storage.start() * type_.dtype.size, 0)
