"""Buckets of a range of sizes, chosen by the cost model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from attrs import define, evolve, field

from ...ir import Array, Dim, Graph, UsageError, quote
from ..loading import Spec
from ..plan import CompiledPlan
from .dynamic_plan import BucketPlan
from .model_family import ModelFamily

#: Most sizes of a dim that are candidates for buckets.
MAX_CANDIDATES = 8
#: Cost of padding the end of a bucket to the next one, as a share of its own time.
WASTE = 0.1

Compile = Callable[[Graph], CompiledPlan]


@define
class BucketBuilder:
    """Compiles the graphs of buckets, each once."""

    family: ModelFamily
    spec: Spec
    compile: Compile
    made: dict[tuple[int, ...], BucketPlan] = field(factory=dict)

    def bucket(self, sizes: Mapping[str, int]) -> BucketPlan:
        """Return the bucket of all sizes up to the greatest ones, `sizes`."""
        key = tuple(sizes[dim.name] for dim in self.family.dims)
        if key not in self.made:
            found = self.family.bounded_graph_at(sizes, self.spec.instances)
            scalars = {dim: source.tensor for dim, source in found.sizes.items()}
            plan = self.compile(found.graph)
            self.made[key] = BucketPlan(dict(sizes), scalars, found.layouts, found.fixed, found.counts, plan)
        return self.made[key]


def choose_buckets(
    builder: BucketBuilder, asked: Mapping[str, Sequence[int]], waste: float = WASTE
) -> tuple[BucketPlan, ...]:
    """Return the buckets of all dims.

    They are those asked for, else the fewest that the cost model finds cheap enough.
    A dim's candidates are the powers of two in its range and its greatest size, with the other dims at theirs. A
    candidate is dropped where the time of the next one is at most `waste` above its own.
    """
    top = {dim.name: dim.high for dim in builder.family.dims}
    ends = {
        dim.name: _checked_ends(dim, asked[dim.name]) if dim.name in asked else _by_cost(builder, dim, top, waste)
        for dim in builder.family.dims
    }
    return tuple(builder.bucket(dict(zip(ends, sizes, strict=True))) for sizes in product(*ends.values()))


def _checked_ends(dim: Dim, sizes: Sequence[int]) -> list[int]:
    found = sorted({int(size) for size in sizes})
    outside = [size for size in found if not dim.low <= size <= dim.high]
    if outside:
        raise UsageError(f"bucket {outside[0]} of dim {quote(dim.name)}: expected a size of {dim.low}..{dim.high}")
    return found if found and found[-1] == dim.high else [*found, dim.high]


def candidates(dim: Dim) -> list[int]:
    """Return the sizes of a dim that may end a bucket.

    These are its greatest size and the powers of two below.
    """
    powers = [1 << n for n in range(dim.high.bit_length()) if dim.low <= 1 << n < dim.high]
    return [*powers[-(MAX_CANDIDATES - 1) :], dim.high]


def _by_cost(builder: BucketBuilder, dim: Dim, top: Mapping[str, int], waste: float) -> list[int]:
    sizes = candidates(dim)
    plans = [builder.bucket({**top, dim.name: size}).plan for size in sizes]
    from ...latency import buckets as fewest_buckets

    times = [estimated_time(plan) for plan in plans]
    if None in times:
        return sizes
    return [found.last for found in fewest_buckets(sizes, np.array(times, float), waste)]


def estimated_time(plan: CompiledPlan) -> float | None:
    """Return the estimated seconds of a plan's kernels, or None."""
    found: list[Any] = [group.get("estimate") for group in plan.plan.groups]
    return sum(found) if found and all(isinstance(time, float) for time in found) else None


def share_constants(buckets: Sequence[BucketPlan]) -> None:
    """Let buckets hold one array for all equal constants."""
    places: dict[tuple[Any, ...], Array] = {}
    contents: dict[bytes, Array] = {}

    def share(array: Array) -> Array:
        place = (array.__array_interface__["data"][0], array.dtype.str, array.shape, array.strides)
        if place not in places:
            digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            places[place] = contents.setdefault(digest.digest(), array)
        return places[place]

    for bucket in buckets:
        plan = bucket.plan.plan
        constants = {name: share(array) if array.size else array for name, array in plan.constants.items()}
        bucket.plan.plan = evolve(plan, constants=constants)
