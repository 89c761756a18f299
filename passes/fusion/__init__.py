"""Graph to fusion groups: kernel units, views, legality, normal form, Algorithm 1."""

from ..statements import FusionError, Programs, Unit, apply_guards, issue_slots
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
    improve,
    neighbours,
    optimal_partition,
    partition,
    rename_group,
    run_over_updates,
    with_parts,
    writers_of,
)
from .interpret import Points, along_row, interpret
from .legality import Policy, box_extent
from .normal_forms import NormalForms
from .normalise import Illegal
from .piecewise import split_piecewise_readers
from .programs import Meaning, build_programs
from .quantised import fold_scales, multiply_bytes, narrow_extremes, pad_images, widens_bytes
from .reorder import Order, graph_layout, moves_elements, permute, reorder, reorder_unit, unpermute
from .sums import (
    Family,
    RecomputeChoice,
    block_variances,
    copy_rows,
    defer_normalisation,
    eliminate_common_reductions,
    find_ungroupable,
    hoist_parameters,
    recompute_contractions,
    rematerialise,
    shift_means,
    sum_rows_first,
)
from .views import Views, find_views, loop_iterations, memory_span
