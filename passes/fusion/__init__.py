"""Graph to fusion groups: kernel units, views, legality, normal form, Algorithm 1."""

from ..statements import FusionError, Programs, Unit, apply_guards
from .cut_units import copy_source
from .fold_tables import Folding, collect_foldings, store_foldings
from .fold_units import drop_unused, fold_units
from .grouping import (
    UNKNOWN,
    CachedEvaluator,
    Group,
    GroupBuilder,
    GroupEvaluator,
    Partitioner,
    canonical_names,
    combine_partitions,
    form_key,
    form_text,
    neighbours,
    partition,
    rename_group,
    with_parts,
)
from .interpret import Points, along_row, interpret
from .legality import Policy, box_extent, issue_slots
from .normal_forms import NormalForms
from .normalise import Illegal
from .piecewise import split_piecewise_readers
from .programs import Meaning, build_programs
from .reorder import Order, graph_layout, permute, reorder, reorder_unit, unpermute
from .sums import (
    Family,
    RecomputeChoice,
    UngroupableUnit,
    block_variances,
    defer_normalisation,
    eliminate_common_reductions,
    find_ungroupable,
    recompute_contractions,
    rematerialise,
    shift_means,
    sum_rows_first,
)
from .views import Views, find_views, loop_iterations, memory_span

__all__ = [
    "UNKNOWN",
    "CachedEvaluator",
    "Family",
    "Folding",
    "FusionError",
    "Group",
    "GroupBuilder",
    "GroupEvaluator",
    "Illegal",
    "Meaning",
    "NormalForms",
    "Order",
    "Partitioner",
    "Points",
    "Policy",
    "Programs",
    "RecomputeChoice",
    "UngroupableUnit",
    "Unit",
    "Views",
    "along_row",
    "apply_guards",
    "block_variances",
    "box_extent",
    "build_programs",
    "canonical_names",
    "collect_foldings",
    "combine_partitions",
    "copy_source",
    "defer_normalisation",
    "drop_unused",
    "eliminate_common_reductions",
    "find_ungroupable",
    "find_views",
    "fold_units",
    "form_key",
    "form_text",
    "graph_layout",
    "interpret",
    "issue_slots",
    "loop_iterations",
    "memory_span",
    "neighbours",
    "partition",
    "permute",
    "recompute_contractions",
    "rematerialise",
    "rename_group",
    "reorder",
    "reorder_unit",
    "shift_means",
    "split_piecewise_readers",
    "store_foldings",
    "sum_rows_first",
    "unpermute",
    "with_parts",
]
