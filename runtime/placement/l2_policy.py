"""L2 policy: tensors that the cache evicts first.

They are tensors that nothing in a plan writes and one launch of it reads, such as the weights of a network at batch 1.
A run reads such bytes once, and they are evicted before the next run reads them. Cached like other data, they evict
bytes that are needed soon: intermediates, and the code of kernels. The device therefore marks them (`Device.passing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..plan import Plan, extent_bytes

#: Part of the L2 cache that a launch's tensors must fit into, or its blocks may evict data that the next ones read.
MAX_L2_PART = 0.5


def evict_first_tensors(plan: Plan) -> Mapping[int, tuple[str, int]]:
    """Map steps to the largest tensor evicted first, and its bytes."""
    written, reads = set[str](), Counter[str]()
    found: dict[int, list[tuple[int, str]]] = {}
    for number, step in enumerate(plan.steps):
        kernel = plan.kernels[step.kernel]
        touched = {t: a for a, t in zip(kernel.arguments, step.tensors, strict=True)}
        written |= {plan.storages[t].buffer for t, argument in touched.items() if argument.written}
        reads.update({plan.storages[t].buffer: plan.turns(number) for t in touched})
        sizes = [(_bytes(plan, tensor), tensor) for tensor in touched]
        if sum(size for size, _ in sizes) <= MAX_L2_PART * plan.target.l2_bytes:
            found[number] = sorted(sizes, reverse=True)
    alone = {buffer for buffer, count in reads.items() if count == 1} - written
    chosen = {n: [(t, size) for size, t in sizes if plan.storages[t].buffer in alone] for n, sizes in found.items()}
    return {number: tensors[0] for number, tensors in chosen.items() if tensors and tensors[0][1]}


def _bytes(plan: Plan, tensor: str) -> int:
    """Return the bytes from a tensor's first to its last."""
    type_, storage = plan.types[tensor], plan.storages[tensor]
    return max(extent_bytes(type_, storage) - storage.start() * type_.dtype.size, 0)
