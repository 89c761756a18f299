"""Compilation of a model for a range of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir import Target, UsageError, quote
from ..loading import Spec
from .buckets import WASTE, BucketBuilder, Compile, choose_buckets, share_constants
from .dynamic_plan import DynamicPlan
from .model_family import ModelFamily


def build_dynamic(
    family: ModelFamily,
    spec: Spec,
    target: Target,
    compile_graph: Compile,
    buckets: Mapping[str, Sequence[int]] | None = None,
    waste: float = WASTE,
) -> DynamicPlan:
    """Compile a model's buckets.

    `buckets` has the sizes that end the buckets of a dim. Those of other dims end at powers of two, but for those whose
    next one takes at most the share `waste` longer by the cost model.

    Raises `UsageError` for buckets of a dim that the model does not have.
    """
    names = [dim.name for dim in family.dims]
    unknown = [name for name in buckets or {} if name not in names]
    if unknown:
        raise UsageError(
            f"buckets of dim {quote(unknown[0])}, which the model does not have",
            hint=f"dims are: {', '.join(map(quote, names))}",
        )
    chosen = choose_buckets(BucketBuilder(family, spec, compile_graph), buckets or {}, waste)
    share_constants(chosen)
    return DynamicPlan(chosen[-1].plan.name, target, family.dims, chosen)
