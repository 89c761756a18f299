"""Space of a group's schedules: enumeration, pruning, hill climbing and choice."""

from .box_products import fills_box, sums_windows
from .check_schedules import check_schedule
from .mma_templates import is_mma_computable, mma_templates
from .register_chains import chain_templates
from .selection import (
    RANKED_POINTS,
    Batch,
    Candidate,
    Point,
    assess,
    batches,
    best_points,
    candidate_of,
    choose,
    choose_soon,
    columns_of,
    evaluate,
    first_points,
    is_pruned,
    least_pul,
    neighbours,
    places_at,
    proven_slower,
    pul_values,
    sample_batches,
    schedule_puls,
    score,
    to_schedule,
)
from .space import Space, combine_templates, make_space, only_chains, segment_templates
