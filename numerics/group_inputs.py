"""Random inputs of a fusion group, valid for its reads."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ..ir import Call, DType, FusedGroup, Index, Read, indices, indirects, is_contraction, operands, reads, walk
from .random_numbers import CACHED_SEQUENCES, RandomNumbers, product_scale


def input_numbers(form: FusedGroup, positive: bool) -> dict[str, RandomNumbers]:
    """Return the random numbers of each input."""
    ranges, scales, below = index_ranges(form), group_scales(form), divisor_inputs(form)
    found = {}
    for number, tensor in enumerate(form.inputs):
        dtype = form.tensors[tensor].dtype
        if dtype.is_float:
            seed, away = number % CACHED_SEQUENCES, tensor in below and not positive
            found[tensor] = RandomNumbers(seed, dtype, scales.get(tensor, 1.0), away, positive)
        else:
            found[tensor] = RandomNumbers(number, dtype, high=2 if dtype is DType.BOOL else ranges.get(tensor, 8))
    return found


def divisor_inputs(form: FusedGroup) -> set[str]:
    """Return the inputs that are divisors.

    Some of the numbers around zero are so small that the difference of two quotients exceeds every bound on rounding: 7
    of 800 kernels of a training step failed the check, where rows of a softmax are divided.
    """
    nodes = (node for segment in form.segments for body in segment.expressions for node in walk(body))
    below = (node.args[1] for node in nodes if isinstance(node, Call) and node.fn == "div")
    return {read.tensor for read in below if isinstance(read, Read) and read.tensor in form.inputs}


def group_scales(form: FusedGroup) -> dict[str, float]:
    """Return factors for inputs that keep sums of products near one."""
    found: dict[str, float] = {}
    for segment in form.segments:
        own = [r.name for r in segment.reductions]
        for reduction in segment.reductions:
            if not is_contraction(reduction, own):
                continue
            tensors = {r.tensor for part in operands(reduction, own) for r in reads(part) if r.tensor in form.inputs}
            terms = prod(v.extent for v in reduction.reduce)
            for tensor in tensors:
                found[tensor] = min(found.get(tensor, 1.0), product_scale(terms, len(tensors)))
    return found


def index_ranges(form: FusedGroup) -> dict[str, int]:
    """Return the number of valid values of each tensor that holds indices."""
    found: dict[str, int] = {}
    for index in _indices(form):
        for primary in indirects(index):
            found[primary.tensor] = min(found.get(primary.tensor, primary.extent), primary.extent)
    return found


def _indices(form: FusedGroup) -> Iterator[Index]:
    for segment in form.segments:
        yield from (w for o in segment.outputs for w in o.write)
        yield from (index for body in segment.expressions for index in indices(body))
